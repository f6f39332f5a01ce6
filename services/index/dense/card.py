"""Exact search on a GPU: the card proposes candidates, and the processor decides, as for every other proposer.

    vectors ── float16 ──► card          queries ── unit length, float16 ──► card: products ─► top ─► Proposal ± error

A card holds one copy of the vectors of each generation that is open. onnxruntime multiplies them with the queries and
picks the best; the products are float16, accumulated in float32. The error of a product has a bound that holds for
every row (decision 51), so hits are those of a CPU to the bit. Where the card fails, the processor searches alone
(`auto`), or the search is refused (`cuda`) and the index is not ready; after a while the card is tried again.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.arrays import norms_of
from services.devices import is_out_of_memory
from services.index.dense.exact import UNIT_ROUNDOFF, Proposal, ProposerLost, best_of
from services.kit.logs import get
from services.onnx_devices import CPU, Placement, providers_of

log = get(__name__)
HALF_ROUNDOFF = 2.0**-11  # of float16
HALF_SMALLEST = 2.0**-25  # half of the least number that it has: what a tiny component may lose
LARGEST_NORM = 30_000.0  # of a row: its products with unit vectors stay finite in float16
PART_ROWS = 2**21  # rows of one product
QUERIES_AT_ONCE = 64
TRIED_AGAIN_S = 60.0
_OUT_OF_REACH = np.float16(-65_000)
_WORK_BYTES = 4 * 2 * QUERIES_AT_ONCE * PART_ROWS  # of the products: themselves, with the mask, and two to pick in
_ANSWERS = "answers"  # the problem of the card itself


class Card:
    """One card and what is on it. `gpu_bytes` bounds premises and the room to work in, as counted here (0: no bound).

    `on_state` receives its problems in any thread ("": none). With `is_must`, nothing stands in for it.
    """

    def __init__(
        self,
        placement: Placement,
        *,
        gpu_bytes: int = 0,
        is_must: bool = False,
        on_state: Callable[[str], object] = lambda _: None,
    ) -> None:
        # Partial sums stay in float32, as the bound wants it. Read by onnxruntime at its first product.
        os.environ["ORT_CUDA_GEMM_OPTIONS"] = "2"
        self._gpu_bytes, self._is_must, self._on_state = gpu_bytes, is_must, on_state
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = ort.InferenceSession(
            _model(), options, providers=list(placement.providers), provider_options=placement.options
        )
        number = (placement.options or [{}])[0].get("device_id", "0")
        self._at = ("cpu", 0) if placement.providers[0] == CPU else ("cuda", int(number))
        self._held_bytes, self._rests_until = _WORK_BYTES, 0.0
        self._reserving = threading.RLock()  # a generation may end in the middle of a reservation
        self._problems: dict[object, str] = {}

    @classmethod
    def open(cls, device: str, gpu_bytes: int, on_state: Callable[[str], object]) -> Card | None:
        """Opens the card that a setting names, inside the event loop, where `on_state` is called; None for a CPU.

        Raises FailedPrecondition where it must work and fails.
        """
        placement, loop = providers_of("index", device, gpu_bytes), asyncio.get_running_loop()
        if placement.providers[0] == CPU:
            on_state(placement.reason)
            return None

        def tell(problem: str) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(on_state, problem)

        return cls(placement, gpu_bytes=gpu_bytes, is_must=device != "auto", on_state=tell)

    @property
    def works(self) -> bool:
        """Whether the card is asked: not for a while after it has failed."""
        return time.monotonic() >= self._rests_until

    def load(self, vectors: NDArray[Any], largest_norm: float) -> CardProposer | None:
        """Copies vectors (rows, dim) to the card. Returns None where they do not fit and the processor will do.

        Raises FailedPrecondition where it will not.
        """
        rows, dim = vectors.shape
        wanted, remedy = 2 * rows * dim, "delete old generations, give the index more of the card"
        if largest_norm > LARGEST_NORM:
            problem = f"vectors of length {largest_norm:,.0f} have products beyond float16"
            remedy = f"build the corpus from vectors of at most {LARGEST_NORM:,.0f}"
        elif taken := self._reserve(wanted):
            problem = f"{rows:,} premises need {wanted:,} bytes of the card, and {taken}"
        else:
            try:
                parts = [self._copy(vectors[start : start + PART_ROWS]) for start in range(0, rows, PART_ROWS)]
            except Exception as error:  # noqa: BLE001 -- the runtime raises its own unexported classes
                self._release(wanted)
                problem = f"the card did not take {rows:,} premises: {_end_of(error)}"
            else:
                proposer = CardProposer(self, parts, dim, largest_norm)
                weakref.finalize(proposer, self._release, wanted)
                return proposer
        if self._is_must:
            raise errors.FailedPrecondition(f"{problem}; {remedy}, or set AEENC_INDEX_DEVICE=auto")
        of = object()
        self._tell(of, f"searches {rows:,} premises on the CPU: {problem}")
        weakref.finalize(vectors, self._tell, of, "").atexit = False  # until that generation is closed
        return None

    def multiply(
        self, parts: list[Any], queries: NDArray[np.float16], width: int, allowed: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Finds the best of all parts for each query (n, dim): products and ordinals (n, width), best first.

        Raises Unavailable, or ProposerLost where the processor will do, while the card does not answer.
        """
        problem = self._problems.get(_ANSWERS, "")
        if self.works:
            try:
                found = self._multiply(parts, queries, width, allowed)
            except Exception as error:  # noqa: BLE001 -- the runtime raises its own unexported classes
                is_full = is_out_of_memory(error)
                failed = "has no memory to multiply in" if is_full else "does not answer"
                problem = f"the card {failed}: {_end_of(error)}"
                may_pass = is_full and (not self._is_must or self._has_room(parts, queries[:1]))
                if not may_pass:
                    self._rest(parts, queries[:1])
                if not (may_pass and self._is_must):
                    self._tell(_ANSWERS, problem)
            else:
                self._tell(_ANSWERS, "")
                return found
        if self._is_must:
            raise errors.Unavailable(f"{problem}; repeat the call, restart the index, or set AEENC_INDEX_DEVICE=auto")
        raise ProposerLost

    def _has_room(self, parts: list[Any], query: NDArray[np.float16]) -> bool:
        """Whether the least search has memory where another had none."""
        try:
            self._multiply(parts, query, 1, None)
        except Exception:  # noqa: BLE001 -- as in `multiply`
            return False
        return True

    def _rest(self, *probe: Any) -> None:
        self._rests_until = time.monotonic() + TRIED_AGAIN_S
        if self._is_must:  # the index is not ready, and no search comes
            again = threading.Timer(TRIED_AGAIN_S, self._try, probe)
            again.daemon = True
            again.start()

    def _try(self, parts: list[Any], query: NDArray[np.float16]) -> None:
        with suppress(errors.Unavailable):
            self.multiply(parts, query, 1, None)

    def _multiply(
        self, parts: list[Any], queries: NDArray[np.float16], width: int, allowed: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        found = []
        for number, part in enumerate(parts):
            start, rows = number * PART_ROWS, part.shape()[0]
            binding = self._session.io_binding()
            binding.bind_ortvalue_input("premises", part)
            bias = np.zeros(1, np.float16)
            if allowed is not None:
                bias = np.where(allowed[start : start + rows], np.float16(0), _OUT_OF_REACH)
            for name, value in {"queries": queries, "bias": bias, "width": np.array([min(width, rows)])}.items():
                binding.bind_cpu_input(name, value)
            for name in ("scores", "ordinals"):
                binding.bind_output(name)
            self._session.run_with_iobinding(binding)
            scores, ordinals = binding.copy_outputs_to_cpu()
            found.append((scores.astype(np.float32), ordinals + start))
        return best_of(found, width)

    def _copy(self, vectors: NDArray[Any]) -> Any:
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(vectors, dtype=np.float16), *self._at)

    def _reserve(self, size: int) -> str:
        """Takes so much of the budget; returns what is taken already where that is too much."""
        with self._reserving:
            if self._gpu_bytes and self._held_bytes + size > self._gpu_bytes:
                return f"{self._held_bytes:,} of AEENC_INDEX_GPU_BYTES={self._gpu_bytes:,} are taken"
            self._held_bytes += size
            return ""

    def _release(self, size: int) -> None:
        with self._reserving:
            self._held_bytes -= size

    def _tell(self, of: object, problem: str) -> None:
        if problem == self._problems.get(of, ""):
            return
        if problem:
            self._problems[of] = problem
            log.warning("the card is not used", reason=problem)
        else:
            self._problems.pop(of, None)
        self._on_state("; ".join([*self._problems.values()]))


def _end_of(error: Exception) -> str:
    """The end of a runtime's message, whose beginning is where its code was built."""
    return str(error)[-200:]


class CardProposer:
    """Proposes rows of the vectors that lie on a card in parts."""

    up_to = 1_000  # hits: candidates on a card are few, as its error is

    def __init__(self, card: Card, parts: list[Any], dim: int, largest_norm: float) -> None:
        self._card, self._parts = card, parts
        # |q·p - q'·p'| <= |q - q'| |p| + |q'| |p - p'| for q, p rounded to float16, and the product is rounded, too.
        # Sums in float32 lose at most dim roundings, each twice that of rounding to nearest, as tensor cores cut off.
        rounded = 3 * HALF_ROUNDOFF + 4 * HALF_ROUNDOFF**2 + 2 * (dim + 4) * UNIT_ROUNDOFF
        tiny = (2 * dim**0.5 + 1) * HALF_SMALLEST
        self._error = 1.01 * (rounded * largest_norm + tiny * (1 + largest_norm))

    @property
    def on_card(self) -> bool:
        """Whether the card answers."""
        return self._card.works

    def propose(self, queries: NDArray[np.float32], width: int, allowed: NDArray[np.bool_] | None) -> Proposal:
        """Proposes `width` rows for each query (n, dim), fewer than are `allowed` (rows,).

        Raises Unavailable or ProposerLost as `Card.multiply` says.
        """
        lengths = np.maximum(norms_of(queries), np.finfo(np.float32).tiny)
        units = (queries / lengths[:, None]).astype(np.float16)
        found = [
            self._card.multiply(self._parts, units[start : start + QUERIES_AT_ONCE], width, allowed)
            for start in range(0, len(units), QUERIES_AT_ONCE)
        ]
        products, ordinals = (np.concatenate(of) for of in zip(*found, strict=True))
        return Proposal(ordinals, products * lengths[:, None], self._error * lengths)


def _model() -> bytes:
    """Multiplies `queries` (n, dim) with `premises` (rows, dim), adds `bias` (rows or 1,), picks the best `width`."""
    from onnx import TensorProto, helper

    half, value, node = TensorProto.FLOAT16, helper.make_tensor_value_info, helper.make_node
    graph = helper.make_graph(
        [
            node("Gemm", ["queries", "premises"], ["products"], transB=1),
            node("Add", ["products", "bias"], ["allowed"]),
            node("TopK", ["allowed", "width"], ["scores", "ordinals"]),
        ],
        "card",
        [
            value("queries", half, ["n", "dim"]),
            value("premises", half, ["rows", "dim"]),
            value("bias", half, ["m"]),
            value("width", TensorProto.INT64, [1]),
        ],
        [value("scores", half, ["n", "width"]), value("ordinals", TensorProto.INT64, ["n", "width"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(model.SerializeToString())

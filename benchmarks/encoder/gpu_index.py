"""Exact search on a GPU beside a CPU's and beside brute force on the card: hits to the bit, and what they cost.

Vectors are made on the device from a seed, in slices. The card that searches is the index's (onnxruntime), the same by
products of torch, or faiss-gpu's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.encoder.gpu_setting import PRODUCTS, NotMeasured, Setting
from benchmarks.harness.rows import Rows
from services.corpus.arrays import norms_of
from services.index.dense.card import PART_ROWS, Card
from services.index.dense.exact import SLACK, FaissProposer, FlatIndex, Int8Proposer, selector_of
from services.index.values import SearchHits
from services.onnx_devices import CPU, Placement

DIM, K = 384, 10
CROWDED, QUERIES = 2_000_000, 200
NEAR = 4_096  # rows that differ in the last bit of one component
COPIES, COPIED = 100, 20  # equal rows, and how many others have so many
LARGE, BATCH = 10_000_000, 64
SLICE = 2**18  # rows
TO_CPU = 0.01  # the most of the queries that a card may leave to the CPU
SLOWER, BESIDE_MS, TOGETHER, LOAD_S = 1.5, 1.5, 6.0, 60.0
COPY_BYTES = 2 * 1024**3
Matrix = NDArray[np.float32]


class TorchCard(Card):
    """The same by products of torch, which the index does not import: a rival."""

    def __init__(self, device: str) -> None:
        super().__init__(Placement([CPU]), is_must=True)
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False  # as the bound wants it
        self._device = device

    def _copy(self, vectors: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(vectors.astype(np.float16)).to(self._device)

    def _multiply(
        self, parts: list[torch.Tensor], queries: NDArray[np.float16], width: int, allowed: NDArray[np.bool_] | None
    ) -> tuple[Matrix, NDArray[np.int64]]:
        asked, found = torch.from_numpy(queries).to(self._device), []
        for start, part in zip(range(0, PART_ROWS * len(parts), PART_ROWS), parts, strict=True):
            products = asked @ part.T
            if allowed is not None:
                mask = torch.from_numpy(allowed[start : start + len(part)]).to(self._device)
                products.masked_fill_(~mask, -torch.inf)
            top = products.topk(min(width, len(part)))
            found.append((top.values.float(), top.indices + start))
        every, where = (torch.cat(of, 1) for of in zip(*found, strict=True))
        best = every.topk(width)
        return best.values.cpu().numpy(), where.gather(1, best.indices).cpu().numpy()


async def index(rows: Rows, setting: Setting) -> None:
    """The index's own card, by onnxruntime."""
    measure(rows, setting, partial(Card, setting.placement("index"), is_must=True))


async def index_torch(rows: Rows, setting: Setting) -> None:
    """The same by products of torch."""
    measure(rows, setting, partial(TorchCard, setting.device))


async def faiss_gpu(rows: Rows, setting: Setting) -> None:
    """Measures faiss-gpu over the crowded rows, with and without a mask; torch is the rival."""
    gpu: Any = faiss
    if not hasattr(gpu, "StandardGpuResources"):
        raise NotMeasured("this faiss has no GPU")
    (matrix, _), (queries, _) = crowded(setting), made_up(setting, BATCH, 2)
    config = gpu.GpuIndexFlatConfig()
    config.useFloat16, config.device = True, int(setting.device.partition(":")[2] or 0)
    begun, resources = time.perf_counter(), gpu.StandardGpuResources()
    on_card = gpu.GpuIndexFlatIP(resources, DIM, config)
    for start in range(0, len(matrix), SLICE):
        on_card.add(matrix[start : start + SLICE])
    rows.note(f"{len(matrix):,} x {DIM}: loaded", time.perf_counter() - begun, "s")
    flat, width = FlatIndex(matrix, coarse=TorchCard(setting.device).load(matrix, norm_of(matrix))), K + SLACK
    truth = flat.nearest(queries, K)
    found = on_card.search(queries, width)[1]
    best = [flat.rescore(query, of, K).scores for query, of in zip(queries, found, strict=True)]
    lacking = sum(not np.array_equal(scores, hits.scores) for scores, hits in zip(best, truth, strict=True))
    rows.note(f"queries of {len(queries)} whose {K} best are not all among {width}", lacking, "")
    allowed = np.arange(len(matrix)) % 3 > 0
    try:
        masked = on_card.search(queries, width, params=gpu.SearchParameters(sel=selector_of(allowed)))[1]
        rows.note(f"rows that a mask forbids, of {masked.size}", int((~allowed[masked[masked >= 0]]).sum()), "")
    except Exception as error:  # noqa: BLE001 -- faiss raises RuntimeError, its bindings others
        rows.note("a mask", f"refused: {str(error)[:100]}", "")
    proposed: Any = flat.coarse
    for name, search in {
        "faiss-gpu": lambda asked: on_card.search(asked, width),
        "torch": lambda asked: proposed.propose(asked, width, None),
    }.items():
        rows.note(f"{name} proposes for one query", 1e3 * seconds_of(search, one_by_one(queries)), "ms")
        rows.note(f"{name} proposes for {BATCH} at once", 1e3 * seconds_of(search, [queries] * 5), "ms")


def measure(rows: Rows, setting: Setting, opened: Callable[[], Card]) -> None:
    """All rows of a card."""
    beside_cpu(rows, setting, opened())
    beside_brute_force(rows, setting, opened())


def beside_cpu(rows: Rows, setting: Setting, card: Card) -> None:
    """Crowded rows: lists that differ from those of the CPU's exact engine, also with masks."""
    matrix, queries = crowded(setting)
    norm = norm_of(matrix)
    on_card = FlatIndex(matrix, largest_norm=norm, coarse=card.load(matrix, norm))
    on_cpu = FlatIndex(matrix, largest_norm=norm, coarse=Int8Proposer(matrix))
    ordinals, half = np.arange(len(matrix)), len(queries) // 2
    differing = left = 0
    for asked, k, allowed in (
        (queries[:half], K, None),
        (queries[half : -half // 2], K, ordinals % 3 > 0),
        (queries[-half // 2 :], 10 * K, ordinals % 50 == 0),
    ):
        found, to_cpu = nearest(on_card, asked, k, allowed)
        differing, left = differing + unlike(found, on_cpu.nearest(asked, k, allowed)), left + to_cpu
    name = f"{len(matrix):,} x {DIM}"
    rows.at_most(f"{name}, half with masks: lists unlike the CPU's", differing, f"of {len(queries)}", 0)
    rows.at_most(f"{name}: share left to the CPU", left / len(queries), "", setting.most(TO_CPU), left)
    for where, engine in {"card": on_card, "CPU": on_cpu}.items():
        asked = one_by_one(queries[half // 2 : half])
        rows.note(
            f"{name}: one query, {where}", 1e3 * seconds_of(lambda one, of=engine: of.nearest(one, K), asked), "ms"
        )


def beside_brute_force(rows: Rows, setting: Setting, card: Card) -> None:
    """Many rows: lists that differ from brute force in float64 on the card, and the time over that of a copy."""
    count = setting.count(LARGE, 1_000)
    (matrix, norm), (queries, _), name = made_up(setting, count, 1), made_up(setting, BATCH, 2), f"{count:,} x {DIM}"
    begun = time.perf_counter()
    engine = FlatIndex(matrix, largest_norm=norm, coarse=card.load(matrix, norm))
    rows.at_most(f"{name}: loaded", time.perf_counter() - begun, "s", setting.most(LOAD_S))
    found, left = nearest(engine, queries, K)
    rows.at_most(
        f"{name}: lists unlike brute force", unlike(found, brute_force(setting, matrix, queries)), f"of {BATCH}", 0
    )
    rows.at_most(f"{name}: share left to the CPU", left / BATCH, "", setting.most(TO_CPU), left)
    single_s = seconds_of(lambda one: engine.nearest(one, K), one_by_one(queries))
    batch_s = seconds_of(lambda some: engine.nearest(some, K), [queries] * 5)
    read_ms = 1e3 * 2 * matrix.size / copy_rate(setting)
    bar = setting.most(SLOWER * read_ms + BESIDE_MS)
    rows.at_most(f"{name}: one query (reading all vectors: baseline)", 1e3 * single_s, "ms", bar, read_ms)
    gain = BATCH * single_s / batch_s
    rows.at_least(f"{name}: {BATCH} at once over one at a time", gain, "x", setting.least(TOGETHER), BATCH / batch_s)


def made_up(setting: Setting, count: int, seed: int) -> tuple[Matrix, float]:
    """Unit vectors (count, DIM), and the largest norm."""
    matrix, norm = np.empty((count, DIM), np.float32), 0.0
    generator = torch.Generator(setting.device).manual_seed(seed)
    for start in range(0, count, SLICE):
        part = matrix[start : start + SLICE]
        drawn = torch.randn(part.shape, generator=generator, device=setting.device)
        drawn = torch.nn.functional.normalize(drawn, dim=1)
        norm = max(norm, float(drawn.double().norm(dim=1).max()))
        part[:] = drawn.cpu().numpy()
    return matrix, norm


def crowded(setting: Setting) -> tuple[Matrix, Matrix]:
    """Vectors with many near-equal and many equal ones among them, and queries: two of these, some of those.

    A hundredth of the queries lies among the near-equal rows, a tenth at equal ones, the rest near a row or anywhere.
    """
    count, rng = setting.count(CROWDED, 2_000), np.random.default_rng(0)
    matrix, _ = made_up(setting, count, 0)
    near, copies = min(NEAR, count // 8), min(COPIES, count // 100)
    order = rng.permutation(count)
    places = order[: near + copies * COPIED]
    crowd = np.repeat(matrix[places[:1]], near, axis=0)
    nudged = np.arange(near), rng.integers(0, DIM, near)
    crowd[nudged] = np.nextafter(crowd[nudged], np.float32(2))
    matrix[places[:near]] = crowd
    equal = places[near:].reshape(COPIED, copies)
    matrix[equal] = matrix[equal[:, :1]]
    anywhere, _ = made_up(setting, QUERIES, 3)
    queries = matrix[order[-QUERIES:]] + anywhere  # at an angle of 45 degrees
    queries[::4] = anywhere[::4]
    queries[1::10] = matrix[equal[:, 0]]
    queries[[0, 2]] = matrix[places[:2]]
    return matrix, np.ascontiguousarray(queries)


def norm_of(matrix: Matrix) -> float:
    """The largest norm of a row."""
    return max(float(norms_of(matrix[start : start + SLICE]).max()) for start in range(0, len(matrix), SLICE))


def brute_force(setting: Setting, matrix: Matrix, queries: Matrix) -> list[SearchHits]:
    """The K best of all rows by products in float64 on the device."""
    asked, found = torch.from_numpy(queries).to(setting.device).double(), []
    for start in range(0, len(matrix), SLICE):
        part = torch.from_numpy(matrix[start : start + SLICE]).to(setting.device).double()
        top = (asked @ part.T).topk(min(K + SLACK, len(part)))
        found.append((top.values.cpu().numpy(), top.indices.cpu().numpy() + start))
    scores, ordinals = (np.concatenate(of, axis=1) for of in zip(*found, strict=True))
    return [SearchHits.best(*one, K) for one in zip(ordinals, scores, strict=True)]


def nearest(
    engine: FlatIndex, queries: Matrix, k: int, allowed: NDArray[np.bool_] | None = None
) -> tuple[list[SearchHits], int]:
    """The hits of queries, and how many of these the card left to the CPU."""
    with patch.object(FaissProposer, "propose", autospec=True, side_effect=FaissProposer.propose) as fine:
        hits = engine.nearest(queries, k, allowed)
    return hits, max((len(call.args[1]) for call in fine.call_args_list), default=0)


def unlike(found: Sequence[SearchHits], expected: Sequence[SearchHits]) -> int:
    """How many lists differ in ids, order, or a bit of a score."""
    lists = ([(one.ordinals.tobytes(), one.scores.tobytes()) for one in hits] for hits in (found, expected))
    return sum(one != other for one, other in zip(*lists, strict=True))


def copy_rate(setting: Setting) -> float:
    """Bytes a second that the device reads and writes while it copies."""
    source = torch.zeros(setting.count(COPY_BYTES, 2**24), dtype=torch.uint8, device=setting.device)
    target = torch.ones_like(source)
    target.copy_(source)
    begun = setting.clock()
    for _ in range(PRODUCTS):
        target.copy_(source)
    return 2 * PRODUCTS * source.nbytes / (setting.clock() - begun)


def one_by_one(queries: Matrix) -> Iterator[Matrix]:
    """Each query (1, dim)."""
    return (queries[row : row + 1] for row in range(len(queries)))


def seconds_of(search: Callable[[Matrix], object], asked: Iterator[Matrix] | Sequence[Matrix]) -> float:
    """The median seconds of a search."""
    seconds = []
    for queries in asked:
        begun = time.perf_counter()
        search(queries)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)

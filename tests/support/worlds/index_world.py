"""An encoder for tests of the index: a real server with hashed vectors for a model; facts, builds that break off."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from aeenc import errors, vectors
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc, index_pb2, types_pb2
from services.encoder.servicer import ordered
from services.index.building.journal import BUILDS
from services.store.artifacts import ArtifactStore
from support.waiting import eventually
from support.worlds.sampler_world import refuse

DIM = 32
SPACE = "s00000000000000aa"
VERSION = "q00000000000000aa"


def vector_of(text: str, role: int = encoder_pb2.ROLE_PREMISE) -> np.ndarray:
    """A unit vector that depends on the text's words; a query's differs a little from a premise's of the same text."""
    total = np.zeros(DIM)
    for word in re.findall(r"\w+", text.lower()) or [text]:
        total += _of_word(word)
    if role == encoder_pb2.ROLE_QUERY:
        total[0] += 0.01
    return (total / np.linalg.norm(total)).astype(np.float32)


def unit(rows: NDArray[Any]) -> NDArray[np.float32]:
    """The directions of rows (n, dim)."""
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def brute_force(
    matrix: NDArray[np.floating], query: NDArray[np.float32], k: int, allowed: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The k best rows of a matrix for a query (dim,) and their scores, computed in float64; ties by position."""
    scores = np.einsum("ij,j->i", matrix.astype(np.float64), query.astype(np.float64)).astype(np.float32)
    ordinals = np.arange(len(matrix)) if allowed is None else np.flatnonzero(allowed)
    order = ordinals[np.lexsort((ordinals, -scores[ordinals]))][:k]
    return order, scores[order]


@cache
def _of_word(word: str) -> NDArray[np.float64]:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
    return np.random.default_rng(seed).normal(size=DIM)


class HashedEncoder(encoder_pb2_grpc.EncoderServiceServicer):
    """Answers Encode and EncodeStream; its public attributes can be changed while it serves."""

    def __init__(self) -> None:
        self.space_id = SPACE
        self.other_spaces: set[str] = set()  # served beside it where a call asks for one
        self.version = VERSION
        self.encoded_premises: list[str] = []
        self.requests: list[Any] = []
        self.score_requests: list[Any] = []
        self.cross_version = "x00000000000000aa"
        self.cross_ensemble: Sequence[str] = ()  # what the label names instead
        self.cross_precisions: Iterator[Any] = itertools.repeat(types_pb2.PRECISION_FLOAT32)  # where none is asked for
        self.request_ids: list[str] = []
        self.batches: list[int] = []  # the numbers of the batches that came in streams
        self.tokens: set[str] = set()
        self.opened_at: list[float] = []  # when a stream began, by time.monotonic()
        self.open_streams = self.ended_streams = 0
        self.fail: tuple[grpc.StatusCode, str] | None = None
        self.refuse: Callable[[Any], errors.AeencError | None] = lambda _: None
        self.most_chars = 10**6  # of a text; longer ones are refused, or cut
        self.pause_s = 0.0
        self.may_answer = asyncio.Event()  # while it is cleared, calls and batches wait
        self.may_answer.set()
        self.in_flight = 0
        self.most_in_flight = 0

    async def EncodeStream(self, request_iterator: Any, context: Any) -> Any:
        async def answer(request: Any) -> Any:
            self.batches.append(request.batch_seq)
            batch = await self._encode(request.batch, context)
            return encoder_pb2.EncodeStreamResponse(batch=batch, batch_seq=request.batch_seq)

        self.opened_at.append(time.monotonic())
        self.open_streams += 1
        try:
            async for response in ordered(request_iterator, answer, window=4):
                yield response
            self.ended_streams += 1
        except errors.AeencError as error:
            await refuse(context, error)
        finally:
            self.open_streams -= 1

    async def Encode(self, request: Any, context: Any) -> Any:
        try:
            return await self._encode(request, context)
        except errors.AeencError as error:
            await refuse(context, error)

    async def _encode(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        metadata = dict(context.invocation_metadata())
        self.request_ids.append(metadata["x-request-id"])
        self.tokens.add(metadata.get("authorization", ""))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.pause_s)
            await self.may_answer.wait()
            if self.fail:
                await context.abort(*self.fail)
            if error := self.refuse(request):
                raise error
            long = [n for n, text in enumerate(request.texts) if len(text) > self.most_chars]
            if long and request.truncate != types_pb2.TRUNCATE_END:
                raise errors.InvalidArgument.field(
                    f"texts[{long[0]}]", "has 300 tokens, the model sees 256; shorten it or ask for truncate END"
                )
            if request.role == encoder_pb2.ROLE_PREMISE:
                self.encoded_premises += request.texts
            matrix = np.stack([vector_of(text[: self.most_chars], request.role) for text in request.texts])
            return encoder_pb2.EncodeResponse(
                embeddings=vectors.to_proto(matrix),
                model_version=self.version,
                space_id=request.space_id if request.space_id in self.other_spaces else self.space_id,
                truncated=len(long),
            )
        finally:
            self.in_flight -= 1

    async def Score(self, request: Any, context: Any) -> Any:
        """Scores a premise by how many letters "e" it has; a version by its own last letter; in int8 by minus them."""
        self.score_requests.append(request)
        await self.may_answer.wait()
        if self.fail:
            await context.abort(*self.fail)
        ensemble = self.cross_ensemble if request.first_of_ensemble and not request.model.version else ()
        version = request.model.version or next(iter(ensemble), self.cross_version)
        letter = version[-1] if request.model.version or ensemble else "e"
        precision = request.precision or next(self.cross_precisions)
        sign = -1.0 if precision == types_pb2.PRECISION_INT8 else 1.0
        scores = [sign * premise.count(letter) for premise in request.premises]
        return encoder_pb2.ScoreResponse(scores=scores, model_version=version, ensemble=ensemble, precision=precision)


class RunningEncoder:
    """The hashed encoder on a port of its own, or on that of one before, which can be stopped.

    With `pair`, the files of a certificate and its key, it speaks TLS.
    """

    def __init__(self, target: str = "127.0.0.1:0", pair: tuple[Path, Path] | None = None) -> None:
        self.servicer = HashedEncoder()
        self.server = grpc.aio.server()
        encoder_pb2_grpc.add_EncoderServiceServicer_to_server(self.servicer, self.server)
        if pair is None:
            port = self.server.add_insecure_port(target)
        else:
            cert, key = (path.read_bytes() for path in pair)
            port = self.server.add_secure_port(target, grpc.ssl_server_credentials([(key, cert)]))
        self.target = f"{target.rpartition(':')[0]}:{port}"

    async def __aenter__(self) -> RunningEncoder:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        await self.server.stop(0)


async def raises(expected: type[Exception], call: Awaitable[Any], *words: str) -> Exception:
    """Awaits a call that must fail with exactly this class, and each of the words in its message."""
    with pytest.raises(expected) as caught:
        await call
    assert type(caught.value) is expected
    for word in words:
        assert word in str(caught.value), str(caught.value)
    return caught.value


def premise(
    premise_id: str, text: str, splits: Iterable[str] = (), aliases: Iterable[str] = (), tags: Iterable[str] = ()
) -> types_pb2.Premise:
    return types_pb2.Premise(id=premise_id, text=text, splits=splits, aliases=aliases, tags=tags)


FACTS = [
    "a magnet attracts iron",
    "iron is a kind of metal",
    "metal conducts electricity",
    "the sun is a star",
    "a star gives light and heat",
    "ice is frozen water",
    "heat melts ice",
    "a plant needs light",
    "a frog eats insects",
    "rain falls from clouds",
]


def facts() -> list[types_pb2.Premise]:
    return [premise(f"f{n}", text) for n, text in enumerate(FACTS)]


async def two_generations(index: Any, corpus: str = "science") -> tuple[str, str]:
    """Builds a generation of some facts, which serves, and one of all, which does not; returns their ids."""
    first = await index.client.build(corpus, facts()[:6])
    return first.id, (await index.client.build(corpus, facts(), activate=False)).id


def files_of(store: ArtifactStore) -> dict[Path, bytes]:
    """Every file of the store but locks and the records of live replicas; one that goes meanwhile is left out."""
    found = {}
    for path in sorted(store.root.rglob("*")):
        if path.is_file() and path.suffix != ".lock" and path.parent != store.root / "replicas":
            with suppress(FileNotFoundError):
                found[path] = path.read_bytes()
    return found


PREMISES = [premise(f"p{n}", f"fact {n}") for n in range(60)]


async def broken_build(
    index: Any,
    premises: Sequence[types_pb2.Premise] = PREMISES,
    *,
    durable: int = 40,
    rows: int = 16,
    request_id: str = "r",
    **fields: Any,
) -> index_pb2.BuildGenerationResponse:
    """Streams premises until so many are durable, and the vectors of so many; then the caller goes away."""
    wait = asyncio.Event()
    header = index_pb2.BuildHeader(corpus="science", request_id=request_id, **fields)

    async def requests():
        yield index_pb2.BuildGenerationRequest(header=header)
        for start in range(0, len(premises), 20):
            yield index_pb2.BuildGenerationRequest(premises=premises[start : start + 20])
        await wait.wait()

    stream = index.client._admin_channel.stream(index.client._admin.BuildGeneration, requests(), timeout_s=20)
    async for report in stream:
        is_durable = report.ack_level == index_pb2.ACK_LEVEL_DURABLE
        if report.durable >= durable and is_durable and report.encoded >= rows:
            await stream.aclose()
            return report
    raise AssertionError("the build ended")


class Gate:
    """Holds up the first call of a function or method in its thread until it is opened."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.entered, self.opened, self.left = threading.Event(), threading.Event(), threading.Event()
        self._function = function

    def __get__(self, owner: Any, _: type) -> Callable[..., Any]:
        return self if owner is None else partial(self, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.entered.is_set():
            return self._function(*args, **kwargs)
        self.entered.set()
        assert self.opened.wait(20)
        try:
            return self._function(*args, **kwargs)
        finally:
            self.left.set()


async def served(index: Any, corpus: str = "science", generation: str = "") -> str:
    """The generation that an index answers from."""
    query = vector_of("ice melts")[None, :]
    return str((await index.client.search(corpus, query, space_id=SPACE, generation=generation)).generation)


async def follows(index: Any, generation: str, corpus: str = "science") -> None:
    """Waits until an index answers from this generation."""
    await eventually(lambda: served(index, corpus), is_so=generation.__eq__)


def works(store: ArtifactStore) -> list[Path]:
    """The directories of unfinished builds of `science`."""
    return [
        path for path in (store.root / "generations/science").glob(f"{BUILDS}/*") if (path / "premises.jsonl").exists()
    ]


def indexing_processes() -> list[int]:
    """The ids of our children that index; what ends meanwhile is left out."""
    children: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            children += (task / "children").read_text().split()
    indexing = []
    for pid in children:
        with suppress(FileNotFoundError, ProcessLookupError):
            if b"services.index.building.index_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                indexing.append(int(pid))
    return indexing

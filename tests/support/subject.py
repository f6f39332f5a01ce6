"""The index that a conformance test talks to, and what each test asks of it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc import AsyncClient, IndexClient
from aeenc.v1 import index_pb2, types_pb2
from support.worlds.index_world import RunningEncoder

TOLERANCE = 1e-5  # between two encodings of one text by a foreign encoder


class Subject:
    """One index over the wire. With `is_hashed` vectors are known to the bit, otherwise to a tolerance."""

    def __init__(self, client: AsyncClient, *, is_hashed: bool, encoder: RunningEncoder | None = None) -> None:
        self.client = client
        self.index = client.index
        self.is_hashed = is_hashed
        self.encoder = encoder
        self.space_id = ""

    def corpus(self) -> str:
        """A name that no other test has."""
        return f"conformance-{uuid.uuid4().hex[:16]}"

    async def encode(self, texts: Sequence[str], role: str = "premise") -> NDArray[np.float32]:
        """The texts' vectors (n, dim)."""
        parts = []
        for start in range(0, len(texts), 200):
            encoded = await self.client.encoder.encode(texts[start : start + 200], role=role)  # type: ignore[arg-type]
            self.space_id = encoded.space_id
            parts.append(encoded.vectors)
        return np.concatenate(parts)

    async def unary(self, name: str, request: Any) -> Any:
        """Calls a method of either service with a message."""
        admin = hasattr(self.index._admin, name)
        channel = self.index._admin_channel if admin else self.index.channel
        return await channel.unary(getattr(self.index._admin if admin else self.index._stub, name), request)

    async def reports(self, *messages: Any) -> list[Any]:
        """All answers of a build of these messages."""
        return await reports(self.index, *messages)

    def is_ranking(
        self,
        ids: Sequence[str],
        scores: NDArray[np.float32],
        names: Sequence[str],
        matrix: NDArray[np.float32],
        query: NDArray[np.float32],
        k: int,
    ) -> None:
        """Asserts that a list is the k best of `matrix` (n, dim) for `query` (dim,), ties by position."""
        exact = np.einsum("ij,j->i", matrix.astype(np.float64), query.astype(np.float64)).astype(np.float32)
        order = np.lexsort((np.arange(len(names)), -exact))[:k]
        assert len(ids) == len(order)
        if self.is_hashed:
            assert list(ids) == [names[n] for n in order]
            assert scores.tobytes() == exact[order].tobytes()
            return
        place = {name: n for n, name in enumerate(names)}
        assert np.allclose(scores, exact[[place[one] for one in ids]], atol=TOLERANCE)
        assert np.allclose(scores, exact[order], atol=TOLERANCE)
        pairs = [(float(score), -place[one]) for one, score in zip(ids, scores, strict=True)]
        assert pairs == sorted(pairs, reverse=True), "best first, equal ones in the order of insertion"


async def reports(index: IndexClient, *messages: Any) -> list[Any]:
    """All answers of a build of these messages."""

    async def requests() -> AsyncIterator[Any]:
        for message in messages:
            yield message

    stream = index._admin_channel.stream(index._admin.BuildGeneration, requests(), timeout_s=60)
    return [report async for report in stream]


def header(corpus: str, **fields: Any) -> index_pb2.BuildGenerationRequest:
    """The message that opens a build."""
    return index_pb2.BuildGenerationRequest(header=index_pb2.BuildHeader(corpus=corpus, **fields))


def chunk(*premises: types_pb2.Premise) -> index_pb2.BuildGenerationRequest:
    """A message with premises."""
    return index_pb2.BuildGenerationRequest(premises=premises)

"""The encoder's client: texts in, unit vectors out."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aeenc import vectors
from aeenc.channel import Channel
from aeenc.errors import InvalidArgument
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc, types_pb2

Role = Literal["query", "premise"]
_ROLES = {"query": encoder_pb2.ROLE_QUERY, "premise": encoder_pb2.ROLE_PREMISE}


@dataclass(frozen=True)
class Encoded:
    """The embeddings of one batch.

    `vectors` is (n, dim) float32, rows of unit length; `model_version` computed all; `truncated` texts were cut.
    """

    vectors: NDArray[np.float32]
    model_version: str
    space_id: str
    timings: types_pb2.Timings
    truncated: int


def refuse_single_text(texts: Sequence[str]) -> None:
    """Raises InvalidArgument for one string in the place of a list, which would be taken for its characters."""
    if isinstance(texts, str):
        raise InvalidArgument.field("texts", f"is one string ({texts[:40]!r}); give a list of strings")


def selector(label: str | None, version: str | None) -> types_pb2.ModelSelector | None:
    """The query encoder named by a label or a version; None means the label `stable`."""
    if version:
        return types_pb2.ModelSelector(version=version)
    return types_pb2.ModelSelector(label=label) if label else None


class EncoderClient:
    """Calls EncoderService. Raises the classes of `aeenc.errors`."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._stub = encoder_pb2_grpc.EncoderServiceStub(channel.grpc)

    async def encode(
        self,
        texts: Sequence[str],
        *,
        role: Role = "query",
        label: str | None = None,
        version: str | None = None,
        space_id: str = "",
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> Encoded:
        """Embeds texts, at most `Limits.items` of them. A text too long for the model is an error unless `truncate`."""
        request = _request(texts, role, label, version, space_id, truncate)
        return _encoded(await self.channel.unary(self._stub.Encode, request, timeout_s=timeout_s))

    async def encode_stream(
        self,
        batches: Iterable[Sequence[str]] | AsyncIterable[Sequence[str]],
        *,
        role: Role = "query",
        label: str | None = None,
        version: str | None = None,
        space_id: str = "",
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncIterator[Encoded]:
        """Embeds any number of batches, in order, while later ones are already on their way."""

        async def requests() -> AsyncIterator[encoder_pb2.EncodeStreamRequest]:
            seq = 0
            async for texts in _each(batches):
                seq += 1
                batch = _request(texts, role, label, version, space_id, truncate)
                yield encoder_pb2.EncodeStreamRequest(batch=batch, batch_seq=seq)

        async for response in self.channel.stream(self._stub.EncodeStream, requests(), timeout_s=timeout_s):
            yield _encoded(response.batch)

    async def info(self) -> encoder_pb2.EncoderServiceGetInfoResponse:
        """What the encoder says about itself: versions, labels, limits, state, last swaps."""
        return await self.channel.unary(self._stub.GetInfo, encoder_pb2.EncoderServiceGetInfoRequest())


async def _each(batches: Iterable[Sequence[str]] | AsyncIterable[Sequence[str]]) -> AsyncIterator[Sequence[str]]:
    if isinstance(batches, AsyncIterable):
        async for batch in batches:
            yield batch
    else:
        for batch in batches:
            yield batch


def _request(
    texts: Sequence[str], role: Role, label: str | None, version: str | None, space_id: str, truncate: bool
) -> encoder_pb2.EncodeRequest:
    refuse_single_text(texts)
    return encoder_pb2.EncodeRequest(
        texts=texts,
        role=_ROLES[role],
        model=selector(label, version),
        truncate=types_pb2.TRUNCATE_END if truncate else types_pb2.TRUNCATE_ERROR,
        space_id=space_id,
    )


def _encoded(response: encoder_pb2.EncodeResponse) -> Encoded:
    return Encoded(
        vectors=vectors.from_proto(response.embeddings),
        model_version=response.model_version,
        space_id=response.space_id,
        timings=response.timings,
        truncated=response.truncated,
    )

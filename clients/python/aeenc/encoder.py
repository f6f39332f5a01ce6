"""The encoder's client: texts in, unit vectors out; a query and premises in, scores out."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from typing import Unpack

from aeenc import values
from aeenc.calls.bulk import BATCH, PATIENCE_S, WINDOW, BulkEncoder
from aeenc.calls.encoding import (
    Encoded,
    EncodeKeywords,
    EncodeOptions,
    Precision,
    Scored,
    selector,
    truncation,
)
from aeenc.calls.inputs import at_least_one, each
from aeenc.calls.rpc import ServiceClient, rpc, value
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc
from aeenc.values.writing import message


class EncoderClient(ServiceClient):
    """Calls EncoderService. Raises the classes of `aeenc.errors`.

    Options of the encode calls: `role` is that of the texts, "query" (default) or "premise"; `label` or `version` names
    the query encoder (default: label `stable`), `space_id` the space (default: the encoder's own); `truncate` cuts
    texts that are too long, which else are an error; `precision` is that of the computation (default: that of the
    label); texts of the `lane` "bulk" let interactive ones go first; while label `canary` has a share, calls with the
    same `routing_key` get the same version.
    """

    _services = (encoder_pb2_grpc.EncoderServiceStub,)

    async def encode(
        self,
        texts: Sequence[str],
        *,
        request_id: str = "",
        timeout_s: float | None = None,
        **options: Unpack[EncodeKeywords],
    ) -> Encoded:
        """Embeds texts, at most `Limits.items` in a call.

        `request_id` passes on the `x-request-id` of the call that this one is part of.
        """
        request = EncodeOptions.of(options, "encode").request(texts)
        response = await self.channel.unary(
            self._stub.Encode, request, timeout_s=timeout_s, hedge=True, request_id=request_id
        )
        return Encoded.of(response)

    async def encode_stream(
        self,
        batches: Iterable[Sequence[str]] | AsyncIterable[Sequence[str]],
        *,
        timeout_s: float | None = None,
        **options: Unpack[EncodeKeywords],
    ) -> AsyncIterator[Encoded]:
        """Embeds any number of batches in order over one stream to one encoder; sends later ones meanwhile.

        The lane is bulk by default. Raises the error that breaks the stream; `encode_all` resumes instead.
        """
        asked = EncodeOptions.of(options, "encode_stream")

        async def requests() -> AsyncIterator[encoder_pb2.EncodeStreamRequest]:
            seq = 0
            async for texts in each(batches, "batches"):
                seq += 1
                yield encoder_pb2.EncodeStreamRequest(batch=asked.request(texts), batch_seq=seq)

        async for response in self.channel.stream(self._stub.EncodeStream, requests(), timeout_s=timeout_s):
            yield Encoded.of(response.batch)

    async def encode_all(
        self,
        texts: Iterable[str] | AsyncIterable[str],
        *,
        batch: int = BATCH,
        window: int = WINDOW,
        patience_s: float = PATIENCE_S,
        **options: Unpack[EncodeKeywords],
    ) -> AsyncIterator[Encoded]:
        """Embeds any number of texts over all encoders of the target; yields their batches of `batch` texts in order.

        Each encoder has at most `window` batches at once. Broken streams are resumed: answered batches are kept, the
        others sent again. Raises Unavailable once no encoder has answered for `patience_s`, or as any call does
        (`Retry.away_s`) when none is there from the start, FailedPrecondition when the version changes meanwhile. The
        lane is bulk by default.
        """
        asked = EncodeOptions.of(options, "encode_all")
        async with (
            BulkEncoder(self.channel, asked, window=window, patience_s=patience_s) as bulk,
            aclosing(bulk.encode(_batches(texts, at_least_one(batch, "batch")))) as answers,
        ):
            async for answer in answers:
                yield answer

    async def score(
        self,
        query: str,
        premises: Sequence[str],
        *,
        label: str | None = None,
        version: str | None = None,
        truncate: bool = False,
        first_of_ensemble: bool = False,
        precision: Precision | None = None,
        timeout_s: float | None = None,
    ) -> Scored:
        """Scores premises against a query with a cross-encoder, by default the one that label `stable` names.

        A pair too long for the model is an error unless `truncate`, which cuts the premise. A label that names several
        versions is refused unless `first_of_ensemble`; `ensemble` of the answer then has all of them. `precision` is
        the encoder's choice unless given. Raises Unimplemented when no cross-encoder is `stable`
        and the call names none.
        """
        request = message(
            encoder_pb2.ScoreRequest,
            query=query,
            premises=premises,
            model=selector(label, version),
            truncate=truncation(truncate),
            first_of_ensemble=first_of_ensemble,
            precision=precision,
        )
        response = await self.channel.unary(self._stub.Score, request, timeout_s=timeout_s, hedge=True)
        return Scored.of(response)

    @rpc(encoder_pb2.EncoderServiceGetInfoRequest, value("EncoderInfo"))
    async def info(self) -> values.EncoderInfo:
        """Gets the encoder's versions, labels, limits, state and last swaps."""


async def _batches(texts: Iterable[str] | AsyncIterable[str], size: int) -> AsyncIterator[list[str]]:
    batch: list[str] = []
    async for text in each(texts, "texts"):
        batch.append(text)
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch

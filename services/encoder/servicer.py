"""EncoderService: converts and delegates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from aeenc.v1 import encoder_pb2, encoder_pb2_grpc
from services.encoder import convert
from services.encoder.encoding import Encoding
from services.encoder.ordered import ordered
from services.encoder.swaps import Swaps
from services.encoder.versions import Versions
from services.kit.convert import deadline_s, request_id
from services.kit.limits import Limits
from services.kit.server import GrpcServer, to_service_info

STREAM_WINDOW = 4  # batches of one stream in flight


class EncoderServicer(encoder_pb2_grpc.EncoderServiceServicer):
    """The RPC face of the encoder."""

    def __init__(
        self, server: GrpcServer, encoding: Encoding, versions: Versions, swaps: Swaps, limits: Limits, runtime: str
    ) -> None:
        self._server, self._encoding, self._versions = server, encoding, versions
        self._swaps, self._limits, self._runtime = swaps, limits, runtime

    async def Encode(self, request: encoder_pb2.EncodeRequest, context: Any) -> encoder_pb2.EncodeResponse:
        result = await self._encoding.encode(convert.to_call(request, deadline_s(context), request_id(context)))
        return convert.to_response(result)

    async def EncodeStream(
        self, request_iterator: AsyncIterator[encoder_pb2.EncodeStreamRequest], context: Any
    ) -> AsyncIterator[encoder_pb2.EncodeStreamResponse]:
        key = request_id(context)

        async def answer(request: encoder_pb2.EncodeStreamRequest) -> encoder_pb2.EncodeStreamResponse:
            call = convert.to_call(request.batch, deadline_s(context), key, lane="bulk")
            result = await self._encoding.encode(call)
            return encoder_pb2.EncodeStreamResponse(batch=convert.to_response(result), batch_seq=request.batch_seq)

        async for response in ordered(request_iterator, answer, window=STREAM_WINDOW):
            yield response

    async def Score(self, request: encoder_pb2.ScoreRequest, context: Any) -> encoder_pb2.ScoreResponse:
        result = await self._encoding.score(convert.to_score_call(request, deadline_s(context), request_id(context)))
        return convert.to_score_response(result)

    async def GetInfo(self, request: Any, context: Any) -> encoder_pb2.EncoderServiceGetInfoResponse:
        premise = self._versions.models.get(self._versions.premise_version)
        limits = replace(self._limits, tokens=premise.description.max_tokens if premise else 0)
        return encoder_pb2.EncoderServiceGetInfoResponse(
            service=to_service_info(self._server, limits),
            default_space_id=self._versions.space_id,
            dim=premise.dim if premise else 0,
            versions=convert.to_versions(self._versions),
            labels=convert.to_labels(self._versions),
            swaps=convert.to_swaps(self._swaps),
            runtime=self._runtime,
        )

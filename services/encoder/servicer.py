"""EncoderService: converts and delegates. A stream is answered in order while a few of its batches are computed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

from aeenc.v1 import encoder_pb2, encoder_pb2_grpc
from services.encoder import convert
from services.encoder.batching.encoder import Encoder
from services.encoder.rollout.history import SwapHistory
from services.encoder.rollout.versions import Versions
from services.kit.call import CALL
from services.kit.convert import deadline_s, label_of, request_id
from services.kit.credentials.gate import caller, origin
from services.kit.limits import Limits
from services.kit.server import GrpcServer, to_service_info

A = TypeVar("A")
B = TypeVar("B")

STREAM_WINDOW = 4  # batches of one stream in flight


class EncoderServicer(encoder_pb2_grpc.EncoderServiceServicer):
    """The RPC face of the encoder."""

    def __init__(
        self,
        server: GrpcServer,
        encoder: Encoder,
        versions: Versions,
        history: SwapHistory,
        limits: Limits,
        runtime: tuple[str, str],
    ) -> None:
        self._server, self._encoder, self._versions = server, encoder, versions
        self._history, self._limits = history, limits
        self._runtime, self._runtime_reason = runtime

    async def Encode(self, request: encoder_pb2.EncodeRequest, context: Any) -> encoder_pb2.EncodeResponse:
        call = convert.to_call(request, deadline_s(context), request_id(context), origin(context))
        result = await self._encoder.encode(call)
        return convert.to_response(result)

    async def EncodeStream(
        self, request_iterator: AsyncIterator[encoder_pb2.EncodeStreamRequest], context: Any
    ) -> AsyncIterator[encoder_pb2.EncodeStreamResponse]:
        # The context is asked at once: of a call that has ended `peer` crashes the process, and work may outlast it.
        key, who = request_id(context), origin(context)

        async def answer(request: encoder_pb2.EncodeStreamRequest) -> encoder_pb2.EncodeStreamResponse:
            await asyncio.sleep(caller().wait_s())
            call = convert.to_call(request.batch, deadline_s(context), key, who, is_unary=False)
            result = await self._encoder.encode(call)
            return encoder_pb2.EncodeStreamResponse(batch=convert.to_response(result), batch_seq=request.batch_seq)

        async for response in ordered(convert.alike(request_iterator), answer, window=STREAM_WINDOW):
            yield response

    async def Score(self, request: encoder_pb2.ScoreRequest, context: Any) -> encoder_pb2.ScoreResponse:
        call = convert.to_score_call(request, deadline_s(context), request_id(context), origin(context))
        result = await self._encoder.score(call)
        return convert.to_score_response(result)

    async def GetInfo(self, request: Any, context: Any) -> encoder_pb2.EncoderServiceGetInfoResponse:
        premise = self._versions.models.get(self._versions.premise_version)
        limits = replace(self._limits, tokens=premise.description.max_tokens if premise else 0)
        return encoder_pb2.EncoderServiceGetInfoResponse(
            service=to_service_info(self._server, limits),
            default_space_id=self._versions.space_id,
            dim=premise.dim if premise else 0,
            versions=convert.to_versions(self._versions),
            labels=[label_of(row) for _, row in sorted(self._versions.labels.items())],
            swaps=convert.to_swaps(self._history, self._server.settings.instance),
            runtime=self._runtime,
            runtime_reason=self._runtime_reason,
        )


async def ordered(
    items: AsyncIterator[A], work: Callable[[A], Coroutine[Any, Any, B]], *, window: int
) -> AsyncIterator[B]:
    """Yields `await work(item)` for each item, in order, with at most `window` in flight and one more read.

    It raises the first failure in its turn and cancels the items in flight behind it. While none is, the call is idle.
    """
    slots = asyncio.Semaphore(window)
    results: asyncio.Queue[asyncio.Task[B] | None] = asyncio.Queue()

    async def read() -> None:
        try:
            async for item in items:
                await slots.acquire()
                results.put_nowait(asyncio.create_task(work(item)))
        finally:
            results.put_nowait(None)

    call, reader = CALL.get(), asyncio.ensure_future(read())
    try:
        while True:
            with call.idle() if call and results.empty() else nullcontext():
                task = await results.get()
            if task is None:
                break
            result = await task
            slots.release()
            yield result
        await reader
    finally:
        reader.cancel()
        while not results.empty():
            pending = results.get_nowait()
            if pending is not None:
                pending.cancel()

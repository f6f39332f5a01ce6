"""An encoder without a model: a real server that makes vectors up from the text."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from aeenc import vectors
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc

DIM = 32
SPACE = "s00000000000000aa"
VERSION = "q00000000000000aa"

Matrix = NDArray[np.float32]


def vector_of(text: str) -> Matrix:
    """A unit vector (32,) by the text's hash, so that no two texts share one."""
    raw = np.frombuffer(hashlib.shake_128(text.encode()).digest(2 * DIM), dtype="<i2").astype(np.float64)
    return (raw / np.linalg.norm(raw)).astype(np.float32)


def hashed(texts: Sequence[str]) -> Matrix:
    """The vectors of texts by their hashes, (n, 32)."""
    return np.stack([vector_of(text) for text in texts])


class StandInEncoder(encoder_pb2_grpc.EncoderServiceServicer):
    """Answers Encode and EncodeStream with `embed`, after `pause_s`; `encoded` counts how often each was encoded.

    Used by `async with`.
    """

    def __init__(self, embed: Callable[[Sequence[str]], Matrix] = hashed, *, pause_s: float = 0.0) -> None:
        self.encoded: Any = Counter[str]()
        self._embed = embed
        self._pause_s = pause_s
        self._server = grpc.aio.server()
        encoder_pb2_grpc.add_EncoderServiceServicer_to_server(self, self._server)
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    async def __aenter__(self) -> StandInEncoder:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)

    async def Encode(self, request: encoder_pb2.EncodeRequest, _context: Any) -> encoder_pb2.EncodeResponse:
        """The vectors of the texts."""
        await asyncio.sleep(self._pause_s)
        if self.encoded is not None:
            self.encoded.update(request.texts)
        embeddings = vectors.to_proto(self._embed(request.texts))
        return encoder_pb2.EncodeResponse(embeddings=embeddings, model_version=VERSION, space_id=SPACE)

    async def EncodeStream(self, request_iterator: Any, context: Any) -> Any:
        """One answer a batch, in order."""
        async for request in request_iterator:
            batch = await self.Encode(request.batch, context)
            yield encoder_pb2.EncodeStreamResponse(batch=batch, batch_seq=request.batch_seq)

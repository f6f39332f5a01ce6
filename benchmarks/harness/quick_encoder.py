"""An encoder that is as real a server as any but has no model: the vector of a text is a hash of it."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from aeenc import vectors
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc

DIM = 32
SPACE = "s00000000000000aa"
VERSION = "q00000000000000aa"


def vector_of(text: str) -> NDArray[np.float32]:
    """A unit vector (32,) that any other text has not."""
    raw = np.frombuffer(hashlib.shake_128(text.encode()).digest(2 * DIM), dtype="<i2").astype(np.float64)
    return (raw / np.linalg.norm(raw)).astype(np.float32)


class QuickEncoder(encoder_pb2_grpc.EncoderServiceServicer):
    """Answers EncodeStream after `pause_s` a batch; `encoded` counts how often each text was encoded."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.pause_s = pause_s
        self.encoded: Counter[str] = Counter()
        self._server = grpc.aio.server()
        encoder_pb2_grpc.add_EncoderServiceServicer_to_server(self, self._server)
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    async def __aenter__(self) -> QuickEncoder:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)

    async def EncodeStream(self, request_iterator: Any, _context: Any) -> Any:
        """One answer a batch, in order."""
        async for request in request_iterator:
            await asyncio.sleep(self.pause_s)
            texts = request.batch.texts
            self.encoded.update(texts)
            embeddings = vectors.to_proto(np.stack([vector_of(text) for text in texts]))
            batch = encoder_pb2.EncodeResponse(embeddings=embeddings, model_version=VERSION, space_id=SPACE)
            yield encoder_pb2.EncodeStreamResponse(batch=batch, batch_seq=request.batch_seq)

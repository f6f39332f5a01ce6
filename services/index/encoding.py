"""Query vectors from the encoder. Texts of concurrent calls that ask for the same go out together.

There is no delay timer: while `WINDOW` calls are at the encoder, texts wait, and what waits is the next call. A call
that is refused for one of its texts is repeated for each caller alone, so that a bad text fails nobody else.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from aeenc.calls.encoding import Encoded, Precision
from aeenc.encoder import EncoderClient
from services.index.queries import TextQuery

ANSWER_SHARE = 0.9  # of the caller's time that the encoder may take, so that its failure still arrives
GRACE = 1.05  # so that the call, which has the same time, says itself why it failed
WINDOW = 2  # one call computed, one on its way
TOGETHER = 32  # texts; a longer call goes out alone
RETRY_AFTER_S = 0.05
REMEDY = "; start it, retrieve in mode LEXICAL, or call Search with vectors"


@dataclass(frozen=True)
class EncodeKey:
    """What two texts must have in common to be encoded by one call; it names one version of the query encoder."""

    space_id: str
    label: str | None = None
    version: str | None = None
    truncate: bool = False
    precision: Precision | None = None
    routing_key: str = ""

    @classmethod
    def of(cls, query: TextQuery, space_id: str) -> EncodeKey:
        """What a query's texts ask of the encoder, for a generation in `space_id`."""
        return cls(space_id, query.label, query.version, query.truncate, query.precision, query.routing_key)


@dataclass(frozen=True)
class QueryVectors:
    """The vectors of a call's texts (n, dim) float32, the version that encoded them, and their space."""

    vectors: NDArray[np.float32]
    version: str
    space_id: str


@dataclass(eq=False)
class _Asked:
    texts: tuple[str, ...]
    request_id: str
    deadline: float
    answer: asyncio.Future[QueryVectors]


@dataclass(eq=False)
class _Queue:
    waiting: deque[_Asked] = field(default_factory=deque)
    senders: set[asyncio.Task[None]] = field(default_factory=set)


class QueryEncoder:
    """Encodes query texts. `on_change` is told what is wrong with the encoder ("" when it answers)."""

    def __init__(
        self,
        client: EncoderClient,
        *,
        timeout_s: float = 10.0,
        max_queued: int = 4096,
        on_change: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._client, self._timeout_s, self._max_queued, self._on_change = client, timeout_s, max_queued, on_change
        self._queues: dict[EncodeKey, _Queue] = {}
        self._queued = 0  # texts

    async def encode(
        self, texts: Sequence[str], key: EncodeKey, *, request_id: str = "", left_s: float | None = None
    ) -> QueryVectors:
        """The texts' vectors; `left_s` seconds are left to the caller.

        Raises what the encoder raises; Unavailable naming the encoder when it does not answer, DeadlineExceeded,
        Overloaded when too many texts wait.
        """
        if self._queued and self._queued + len(texts) > self._max_queued:
            raise errors.Overloaded(
                f"{self._queued:,} texts wait for the encoder, the limit is {self._max_queued:,}; come back later",
                retry_after_s=RETRY_AFTER_S,
            )
        timeout_s = self._timeout_s if left_s is None else min(self._timeout_s, left_s * ANSWER_SHARE)
        deadline = time.monotonic() + timeout_s
        asked = _Asked(tuple(texts), request_id, deadline, asyncio.get_running_loop().create_future())
        queue = self._queues.setdefault(key, _Queue())
        queue.waiting.append(asked)
        if len(queue.senders) < WINDOW:
            sender = asyncio.create_task(self._send(key, queue))
            queue.senders.add(sender)
            sender.add_done_callback(queue.senders.discard)
        self._queued += len(texts)
        try:
            async with asyncio.timeout(timeout_s * GRACE):
                vectors = await asked.answer
        except TimeoutError:
            raise errors.DeadlineExceeded(
                f"the encoder at {self._client.channel.target} took longer than the {timeout_s:.3g} s that it had; "
                "allow more time"
            ) from None
        except errors.Unavailable as error:
            target = self._client.channel.target
            self._on_change(f"no encoder answers at {target}; Retrieve by vectors is away, Search works")
            raise errors.Unavailable(
                f"the encoder at {target} does not answer ({error.message}){REMEDY}", retry_after_s=error.retry_after_s
            ) from None
        finally:
            self._queued -= len(texts)
        self._on_change("")
        return vectors

    async def close(self) -> None:
        """Drops what is under way."""
        senders = [task for queue in self._queues.values() for task in queue.senders]
        for task in senders:
            task.cancel()
        await asyncio.gather(*senders, return_exceptions=True)

    async def _send(self, key: EncodeKey, queue: _Queue) -> None:
        while batch := _next(queue.waiting):
            await self._encode(key, batch)
        if not queue.waiting and len(queue.senders) <= 1 and self._queues.get(key) is queue:
            del self._queues[key]

    async def _encode(self, key: EncodeKey, batch: list[_Asked]) -> None:
        try:
            encoded = await self._call(key, batch)
        except errors.InvalidArgument as error:
            if len(batch) == 1:
                _fail(batch, error)
            else:
                await asyncio.gather(*(self._encode(key, [asked]) for asked in batch))
            return
        except BaseException as error:
            _fail(batch, error if isinstance(error, Exception) else errors.Unavailable("the index is shutting down"))
            if not isinstance(error, Exception):
                raise
            return
        start = 0
        for asked in batch:
            part = encoded.vectors[start : start + len(asked.texts)]
            start += len(asked.texts)
            if not asked.answer.done():
                asked.answer.set_result(QueryVectors(part, encoded.model_version, encoded.space_id))

    async def _call(self, key: EncodeKey, batch: list[_Asked]) -> Encoded:
        return await self._client.encode(
            [text for asked in batch for text in asked.texts],
            role="query",
            label=key.label,
            version=key.version,
            space_id=key.space_id,
            truncate=key.truncate,
            precision=key.precision,
            routing_key=key.routing_key,
            request_id=batch[0].request_id,
            timeout_s=max(max(asked.deadline for asked in batch) - time.monotonic(), 0.001),
        )


def _next(waiting: deque[_Asked]) -> list[_Asked]:
    """The callers whose texts go out together; those who have gone are passed over."""
    batch: list[_Asked] = []
    room = TOGETHER
    while waiting and (not batch or len(waiting[0].texts) <= room):
        asked = waiting.popleft()
        if not asked.answer.done():
            batch.append(asked)
            room -= len(asked.texts)
    return batch


def _fail(batch: Sequence[_Asked], error: Exception) -> None:
    for asked in batch:
        if not asked.answer.done():
            asked.answer.set_exception(error)

"""The parts of `aeenc.bulk`: the batches that wait, and the conversation with one encoder.

A stream takes the first waiting batch whenever it has room, and gives back what it leaves unanswered when it breaks.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc

from aeenc import errors
from aeenc.channel import MAX_BACKOFF_S, Channel
from aeenc.encoded import Encoded
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc

FIRST_PAUSE_S = 0.1
MAX_CRASHES = 2  # streams that a batch may end with an internal error before it is taken to be the cause
_PASSING = (errors.Unavailable, errors.Overloaded, errors.Cancelled, errors.DeadlineExceeded)


@dataclass(order=True)
class Batch:
    """A batch to encode. The lowest number goes first."""

    seq: float
    request: encoder_pb2.EncodeRequest = field(compare=False)
    answer: asyncio.Future[Encoded] = field(compare=False)
    crashes: int = field(default=0, compare=False)


class Work:
    """The batches of one caller: those that wait to be sent, and those that have no answer yet."""

    def __init__(self) -> None:
        self.trouble: errors.AeencError | None = None  # what last broke a stream, until the next answer
        self.heard_at = 0.0  # the loop's time of the last answer, or when the waiting for one began
        self._waiting: asyncio.PriorityQueue[Batch] = asyncio.PriorityQueue()
        self._open: dict[float, Batch] = {}
        self._submitted = 0
        self._is_ended = False

    @property
    def is_open(self) -> bool:
        """Whether an answer is awaited."""
        return bool(self._open)

    def put(self, request: encoder_pb2.EncodeRequest) -> asyncio.Future[Encoded]:
        """Adds a batch; the future gets its answer."""
        loop = asyncio.get_running_loop()
        if not self._open:
            self.heard_at = loop.time()
        self._submitted += 1
        batch = Batch(self._submitted, request, loop.create_future())
        batch.answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())  # seen, if nobody asks
        self._open[batch.seq] = batch
        self._waiting.put_nowait(batch)
        return batch.answer

    async def next(self) -> Batch | None:
        """The first batch that waits, once there is one; None when the work has ended."""
        while True:
            batch = await self._waiting.get()
            if batch.seq == math.inf:
                self._waiting.put_nowait(batch)  # for the other streams
                return None
            if not batch.answer.done():
                return batch

    def answered(self, batch: Batch, outcome: Encoded | errors.AeencError) -> None:
        """Gives a batch its answer, or what the encoder has against it."""
        self._open.pop(batch.seq, None)
        self.trouble = None
        self.heard_at = asyncio.get_running_loop().time()
        _settle(batch, outcome)

    def give_back(self, batches: Iterable[Batch]) -> None:
        """Lets batches wait again."""
        for batch in batches:
            self._waiting.put_nowait(batch)

    def fail(self, error: Exception) -> None:
        """Fails all that is open."""
        for batch in self._open.values():
            _settle(batch, error)
        self._open.clear()

    def end(self) -> None:
        """No more batches; what is open is given up."""
        if not self._is_ended:
            self._is_ended = True
            for batch in self._open.values():
                batch.answer.cancel()
            last = encoder_pb2.EncodeRequest()
            self._waiting.put_nowait(Batch(math.inf, last, asyncio.get_running_loop().create_future()))


class BulkStream:
    """The stream to one encoder, opened again whenever it breaks, until the work ends."""

    def __init__(self, channel: Channel, work: Work, window: int) -> None:
        self.channel = channel
        self.heard_at = 0.0  # as in Work
        self._stub = encoder_pb2_grpc.EncoderServiceStub(channel.grpc)
        self._work, self._window = work, window
        self._sent: deque[Batch] = deque()
        self._room = asyncio.Event()
        self._failures = 0  # since the last answer
        self._limit: asyncio.Timeout | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether it owes an answer."""
        return bool(self._sent)

    @property
    def is_broken(self) -> bool:
        """Whether it has broken and not answered since."""
        return self._failures > 0

    def hang_up(self) -> None:
        """Breaks the stream; its batches wait again."""
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        """Encodes what waits until the work ends."""
        while True:
            try:
                await self._converse()
                return
            except errors.AeencError as error:
                trouble = error
            except TimeoutError:
                trouble = errors.Unavailable(f"{self.channel.target} hangs")
            if not isinstance(trouble, _PASSING):
                await self._blame(trouble)
            self._work.trouble = trouble
            self._work.give_back(self._sent)
            self._sent.clear()
            self._failures += 1
            await asyncio.sleep(self._pause_s(trouble))

    async def _converse(self) -> None:
        limit = asyncio.timeout(None)
        async with limit, self.channel.conversation(self._stub.EncodeStream) as call:
            self._limit, writer = limit, asyncio.ensure_future(self._write(call))
            try:
                async for response in call:
                    self._answered(response)
            finally:
                self._limit = None
                writer.cancel()
                await asyncio.wait([writer])
        if self._sent or writer.cancelled() or not writer.result():
            raise errors.Unavailable(f"{self.channel.target} ended the stream early")

    async def _write(self, call: Any) -> bool:
        """Sends batches as long as there is room. True: the work has ended. False: the call has."""
        try:
            await call.wait_for_connection()  # nothing is dealt to an encoder that cannot be reached
            while True:
                while len(self._sent) >= (1 if self._failures else self._window):
                    self._room.clear()
                    await self._room.wait()
                batch = await self._work.next()
                if batch is None:
                    await call.done_writing()
                    return True
                if not self._sent:
                    self.heard_at = asyncio.get_running_loop().time()
                self._sent.append(batch)
                await call.write(encoder_pb2.EncodeStreamRequest(batch=batch.request, batch_seq=int(batch.seq)))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return False

    def _answered(self, response: encoder_pb2.EncodeStreamResponse) -> None:
        if not self._sent or response.batch_seq != self._sent[0].seq:
            due = f"batch {self._sent[0].seq}" if self._sent else "nothing"
            raise errors.AeencError(f"{self.channel.target} answered batch {response.batch_seq}, {due} was due")
        outcome: Encoded | errors.AeencError
        try:
            outcome = Encoded.of(response.batch)
        except errors.AeencError as error:
            outcome = error
        self._work.answered(self._sent.popleft(), outcome)
        self.heard_at = asyncio.get_running_loop().time()
        self._failures = 0
        self._room.set()

    async def _blame(self, error: errors.AeencError) -> None:
        """Fails the batch at whose turn the stream ended, which is what the encoder complains about."""
        if not self._sent:
            batch = await self._work.next()
            if batch is None:
                return
            self._sent.append(batch)
        first = self._sent[0]
        first.crashes += 1
        if type(error) is not errors.AeencError or first.crashes > MAX_CRASHES:  # a connection may also end as INTERNAL
            self._work.answered(self._sent.popleft(), error)

    def _pause_s(self, error: errors.AeencError) -> float:
        pause_s: float = min(FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 10), MAX_BACKOFF_S)
        if error.retry_after_s is not None:
            pause_s = max(error.retry_after_s, 0.01)
        return pause_s * random.uniform(0.8, 1.2)  # noqa: S311 -- spreads callers out, protects nothing


def _settle(batch: Batch, outcome: Encoded | Exception) -> None:
    if batch.answer.done():
        return
    if isinstance(outcome, Exception):
        batch.answer.set_exception(outcome)
    else:
        batch.answer.set_result(outcome)

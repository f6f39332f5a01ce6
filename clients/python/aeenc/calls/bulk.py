"""Encodes many batches through all encoders of a target: a stream to each, answers in order, broken streams resumed.

    submit ──► BatchQueue ──► BulkStream ══ EncodeStream ══ encoder a
                   ▲     └──► BulkStream ══ EncodeStream ══ encoder b
                   └─ a broken stream gives its unanswered batches back

A gRPC stream stays with one server, so each address gets a stream of its own, and a batch goes to whichever has room.
Answered batches are kept. Batches that a broken stream leaves unanswered go to another stream, or to the same encoder
once it is back.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import grpc

from aeenc import errors
from aeenc.calls.encoding import Encoded, EncodeOptions
from aeenc.calls.inputs import at_least_one, each
from aeenc.transport.addresses import Address
from aeenc.transport.channel import AWAY, PASSING, Channel, pause_s
from aeenc.transport.checks import check_seconds
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc

BATCH = 128  # texts
WINDOW = 4  # batches at one encoder; it works on as many of a stream at once
AHEAD = 8  # times the window: how far the other encoders may be ahead of the slowest
PATIENCE_S = 120.0
STALL_SHARE = 0.25  # of the patience that one encoder may be silent while another answers
LOOK_UP_EVERY_S = 30.0
CLOSE_S = 1.0
MAX_CRASHES = 2  # internal errors that may end streams at a batch before it counts as their cause
_PASSING = (*PASSING, errors.Cancelled, errors.DeadlineExceeded)  # for a stream


class BulkEncoder:
    """Encodes batches over one stream to each encoder behind `channel`, at most `window` batches at a time to each.

    The work fails once no encoder has answered for `patience_s` or, where none is there from the start, for the time
    of any call (`Retry.away_s`). Use it with `async with`, or `close` it.
    The lane is bulk unless the options say otherwise.
    """

    def __init__(
        self, channel: Channel, options: EncodeOptions, *, window: int = WINDOW, patience_s: float = PATIENCE_S
    ) -> None:
        self._channel = channel
        self._options = replace(options, lane=options.lane or "bulk")
        self._window, self._patience_s = at_least_one(window, "window"), check_seconds(patience_s, "patience_s")
        self._queue = BatchQueue()
        self._streams: dict[Address, BulkStream] = {}
        self._running: dict[Address, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._look_up_at = 0.0
        self._has_looked_up = asyncio.Event()

    @property
    def capacity(self) -> int:
        """The number of batches to submit ahead of reading answers, so that no encoder waits for a slower one."""
        return self._window * (2 if len(self._streams) < 2 else AHEAD * len(self._streams))

    def submit(self, texts: Sequence[str]) -> asyncio.Future[Encoded]:
        """Adds a batch; the future gets its answer. Call it inside a running event loop.

        The future fails with the encoder's error about this batch; after `patience_s` with Unavailable when no encoder
        answers, and with Overloaded when their queues stay full.
        """
        answer = self._queue.put(self._options.request(texts))
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._watch())
            self._watching.add_done_callback(self._ended)
        return answer

    async def encode(
        self, batches: Iterable[Sequence[str]] | AsyncIterable[Sequence[str]]
    ) -> AsyncGenerator[Encoded, None]:
        """Yields the answers to batches, in order, reading at most `capacity` batches ahead of the caller.

        Raises FailedPrecondition when an answer is of another version or space than the first, and as `submit` does.
        """
        first: Encoded | None = None
        waiting: deque[asyncio.Future[Encoded]] = deque()
        async for texts in each(batches):
            waiting.append(self.submit(texts))
            if len(waiting) >= self.capacity:
                await self._has_looked_up.wait()  # with the encoders, the capacity grows
            while len(waiting) >= self.capacity or (waiting and waiting[0].done()):
                answer = await waiting.popleft()
                first = _alike(first or answer, answer)
                yield answer
        for left in waiting:
            answer = await left
            first = _alike(first or answer, answer)
            yield answer

    async def close(self) -> None:
        """Ends the streams; gives unanswered batches up."""
        if self._watching is None:
            return
        is_finished = not self._queue.is_open
        self._queue.end()
        self._watching.cancel()
        for address, stream in self._streams.items():
            if not is_finished or stream.is_broken:
                self._running[address].cancel()
        left = {self._watching, *self._running.values()}
        await asyncio.wait(left, timeout=CLOSE_S)  # lets the encoders see an orderly end
        while left := {task for task in left if not task.done()}:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=CLOSE_S)
        await asyncio.gather(*(stream.channel.close() for stream in self._streams.values()))

    async def __aenter__(self) -> BulkEncoder:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _watch(self) -> None:
        """Keeps a stream to every address, ends those that hang, and fails the work when nobody answers."""
        loop = asyncio.get_running_loop()
        nap_s = min(self._patience_s / 8, 1.0)
        while True:
            if self._queue.trouble is not None or loop.time() >= self._look_up_at:
                await self._open_streams()
            due = loop.time() + nap_s
            await asyncio.sleep(nap_s)
            self._excuse(loop.time() - due)
            if self._queue.is_open and loop.time() - self._queue.heard_at > self._limit_s():
                self._queue.fail(self._silence())
            for stream in self._streams.values():
                self._check(stream, loop.time())

    async def _open_streams(self) -> None:
        self._look_up_at = asyncio.get_running_loop().time() + LOOK_UP_EVERY_S
        try:
            addresses = await self._channel.addresses()
        except errors.Unavailable as error:
            self._queue.trouble = error
            return
        finally:
            self._has_looked_up.set()
        for address in addresses:
            if address not in self._streams:
                stream = self._streams[address] = BulkStream(self._channel.to(address), self._queue, self._window)
                task = asyncio.ensure_future(stream.run())
                task.add_done_callback(self._ended)
                self._running[address] = task

    def _excuse(self, late_s: float) -> None:
        """Counts no time as silence in which this process itself stood still: answers may lie unread in the socket."""
        now = asyncio.get_running_loop().time()
        waiting: list[BatchQueue | BulkStream] = [self._queue, *self._streams.values()]
        for one in waiting:
            one.heard_at = min(one.heard_at + max(late_s, 0.0), now)

    def _check(self, stream: BulkStream, now: float) -> None:
        others = [other.heard_at for other in self._streams.values() if other is not stream]
        is_slow = stream.is_awaited and now - stream.heard_at > self._patience_s * STALL_SHARE
        if is_slow and max(others, default=0.0) > stream.heard_at:
            stream.hang_up()

    def _limit_s(self) -> float:
        """Says how long the work may wait for an answer; where no encoder was ever met, as long as any call may."""
        was_met = self._queue.has_answers or not all(stream.is_away for stream in self._streams.values())
        return self._patience_s if was_met else min(self._patience_s, self._channel.retry.away_s)

    def _silence(self) -> errors.AeencError:
        trouble = self._queue.trouble
        if isinstance(trouble, errors.Overloaded):
            return trouble
        reason = trouble.message if trouble else f"no answer for {self._patience_s:g} s"
        return errors.Unavailable(f"the encoder at {self._channel.target} does not answer ({reason}); try again later")

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._queue.fail(error)


@dataclass(order=True)
class Batch:
    """A batch to encode. The lowest number goes first."""

    seq: float
    request: encoder_pb2.EncodeRequest = field(compare=False)
    answer: asyncio.Future[Encoded] = field(compare=False)
    crashes: int = field(default=0, compare=False)


class BatchQueue:
    """The batches of one caller: those that wait to be sent, and those that have no answer yet."""

    def __init__(self) -> None:
        self.trouble: errors.AeencError | None = None  # what last broke a stream, until the next answer
        self.heard_at = 0.0  # the loop's time of the last answer, or when the waiting for one began
        self.has_answers = False
        self.is_ended = False  # no more batches come
        self._waiting: asyncio.PriorityQueue[Batch] = asyncio.PriorityQueue()
        self._open: dict[float, Batch] = {}
        self._submitted = 0

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
        batch.answer.add_done_callback(
            lambda answer: answer.cancelled() or answer.exception()
        )  # marks an error as seen when nobody awaits it
        self._open[batch.seq] = batch
        self._waiting.put_nowait(batch)
        return batch.answer

    async def next(self) -> Batch | None:
        """Waits for the first batch to send; None when the work has ended."""
        while True:
            batch = await self._waiting.get()
            if batch.seq == math.inf:
                self._waiting.put_nowait(batch)  # wakes the other streams too
                return None
            if not batch.answer.done():
                return batch

    def answered(self, batch: Batch, outcome: Encoded | errors.AeencError) -> None:
        """Gives a batch its answer, or the encoder's error about it."""
        self._open.pop(batch.seq, None)
        self.trouble, self.has_answers = None, True
        self.heard_at = asyncio.get_running_loop().time()
        _resolve(batch, outcome)

    def give_back(self, batches: Iterable[Batch]) -> None:
        """Lets batches wait again."""
        for batch in batches:
            self._waiting.put_nowait(batch)

    def fail(self, error: Exception) -> None:
        """Fails all open batches."""
        for batch in self._open.values():
            _resolve(batch, error)
        self._open.clear()

    def end(self) -> None:
        """Takes no more batches and gives open ones up."""
        if not self.is_ended:
            self.is_ended = True
            for batch in self._open.values():
                batch.answer.cancel()
            last = encoder_pb2.EncodeRequest()
            self._waiting.put_nowait(Batch(math.inf, last, asyncio.get_running_loop().create_future()))


class BulkStream:
    """The stream to one encoder, opened again whenever it breaks, until the work ends."""

    def __init__(self, channel: Channel, queue: BatchQueue, window: int) -> None:
        self.channel = channel
        self.heard_at = 0.0  # as in BatchQueue
        self.is_away = False  # nothing answers at the address
        self._stub = encoder_pb2_grpc.EncoderServiceStub(channel.grpc)
        self._queue, self._window = queue, window
        self._sent: deque[Batch] = deque()
        self._room = asyncio.Event()
        self._failures = 0  # since the last answer
        self._limit: asyncio.Timeout | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether the encoder owes an answer."""
        return bool(self._sent)

    @property
    def is_broken(self) -> bool:
        """Whether the stream has broken and not answered since."""
        return self._failures > 0

    def hang_up(self) -> None:
        """Breaks the stream; its batches wait again."""
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        """Encodes waiting batches until the work ends."""
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
            self._queue.trouble, self.is_away = trouble, trouble.reason == AWAY
            self._queue.give_back(self._sent)
            self._sent.clear()
            self._failures += 1
            await asyncio.sleep(pause_s(self._failures, trouble))

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
        if not writer.cancelled():
            writer.result()  # raises what it should not have met
        if self._sent or not self._queue.is_ended:
            raise errors.Unavailable(f"{self.channel.target} ended the stream early")

    async def _write(self, call: Any) -> None:
        """Sends batches as long as there is room, until the work or the call has ended."""
        try:
            await call.wait_for_connection()  # nothing is dealt to an encoder that cannot be reached
            self.is_away = False
            while True:
                while len(self._sent) >= (1 if self._failures else self._window):
                    self._room.clear()
                    await self._room.wait()
                batch = await self._queue.next()
                if batch is None:
                    await call.done_writing()
                    return
                if not self._sent:
                    self.heard_at = asyncio.get_running_loop().time()
                self._sent.append(batch)
                await call.write(encoder_pb2.EncodeStreamRequest(batch=batch.request, batch_seq=int(batch.seq)))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # whoever reads the answers finds out why the call has ended

    def _answered(self, response: encoder_pb2.EncodeStreamResponse) -> None:
        if not self._sent or response.batch_seq != self._sent[0].seq:
            due = f"batch {self._sent[0].seq}" if self._sent else "nothing"
            raise errors.AeencError(f"{self.channel.target} answered batch {response.batch_seq}, {due} was due")
        outcome: Encoded | errors.AeencError
        try:
            outcome = Encoded.of(response.batch)
        except errors.AeencError as error:
            outcome = error
        self._queue.answered(self._sent.popleft(), outcome)
        self.heard_at = asyncio.get_running_loop().time()
        self._failures = 0
        self._room.set()

    async def _blame(self, error: errors.AeencError) -> None:
        """Fails the batch that was due when the stream ended: the encoder complains about that one."""
        if not self._sent:
            batch = await self._queue.next()
            if batch is None:
                return
            self._sent.append(batch)
        first = self._sent[0]
        first.crashes += 1
        if type(error) is not errors.AeencError or first.crashes > MAX_CRASHES:  # a connection may also end as INTERNAL
            self._queue.answered(self._sent.popleft(), error)


def _alike(first: Encoded, answer: Encoded) -> Encoded:
    if (answer.model_version, answer.space_id) != (first.model_version, first.space_id):
        raise errors.FailedPrecondition(
            f"the encoder changed from {first.model_version} of space {first.space_id} to {answer.model_version} of "
            f"space {answer.space_id} meanwhile; start again, or name a version"
        )
    return first


def _resolve(batch: Batch, outcome: Encoded | Exception) -> None:
    if batch.answer.done():
        return
    if isinstance(outcome, Exception):
        batch.answer.set_exception(outcome)
    else:
        batch.answer.set_result(outcome)

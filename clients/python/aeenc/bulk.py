"""Many batches through all encoders of a target: a stream to each, answers in order, broken streams resumed.

A gRPC stream stays with one server, so one is opened to every address, and a batch goes to whichever has room. What was
answered is kept; what a broken stream leaves unanswered goes to another stream, or to the same encoder once it is back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from aeenc import errors
from aeenc.addresses import Address
from aeenc.bulk_stream import BulkStream, Work
from aeenc.channel import Channel
from aeenc.encoded import Encoded, EncodeOptions

T = TypeVar("T")

BATCH = 128  # texts
WINDOW = 4  # batches at one encoder; it works on as many of a stream at once
AHEAD = 8  # times the window: how far the other encoders may be ahead of the slowest
PATIENCE_S = 120.0
STALL_SHARE = 0.25  # of the patience that one encoder may be silent while another answers
LOOK_UP_EVERY_S = 30.0
CLOSE_S = 1.0


class BulkEncoder:
    """Encodes batches over one stream to each encoder behind `channel`, at most `window` batches at a time to each.

    `patience_s` is how long all encoders together may answer nothing before the work fails. Use it with `async with`,
    or `close` it. The lane is bulk unless the options say otherwise.
    """

    def __init__(
        self, channel: Channel, options: EncodeOptions, *, window: int = WINDOW, patience_s: float = PATIENCE_S
    ) -> None:
        self._channel = channel
        self._options = replace(options, lane=options.lane or "bulk")
        self._window, self._patience_s = window, patience_s
        self._work = Work()
        self._streams: dict[Address, BulkStream] = {}
        self._running: dict[Address, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._look_up_at = 0.0

    @property
    def capacity(self) -> int:
        """How many batches to have submitted and not yet taken, so that no encoder waits for a slower one."""
        return self._window * (2 if len(self._streams) < 2 else AHEAD * len(self._streams))

    def submit(self, texts: Sequence[str]) -> asyncio.Future[Encoded]:
        """Puts a batch in; the future has its answer. Call it inside a running event loop.

        The future fails with what the encoder has against this batch, with Unavailable when nobody answers, and with
        Overloaded when the encoders' queues stay full, each for `patience_s`.
        """
        answer = self._work.put(self._options.request(texts))
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._watch())
            self._watching.add_done_callback(self._ended)
        return answer

    async def encode(
        self, batches: Iterable[Sequence[str]] | AsyncIterable[Sequence[str]]
    ) -> AsyncGenerator[Encoded, None]:
        """The answers to batches, in order, reading at most `capacity` batches ahead of the caller.

        Raises FailedPrecondition when an answer is of another version or space than the first, and as `submit` does.
        """
        first: Encoded | None = None
        waiting: deque[asyncio.Future[Encoded]] = deque()
        async for texts in each(batches):
            waiting.append(self.submit(texts))
            while len(waiting) >= self.capacity or (waiting and waiting[0].done()):
                answer = await waiting.popleft()
                first = _alike(first or answer, answer)
                yield answer
        for left in waiting:
            answer = await left
            first = _alike(first or answer, answer)
            yield answer

    async def close(self) -> None:
        """Ends the streams; what is unanswered is given up."""
        if self._watching is None:
            return
        is_finished = not self._work.is_open
        self._work.end()
        self._watching.cancel()
        for address, stream in self._streams.items():
            if not is_finished or stream.is_broken:
                self._running[address].cancel()
        left = {self._watching, *self._running.values()}
        await asyncio.wait(left, timeout=CLOSE_S)  # so that the encoders see an orderly end
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
        while True:
            if self._work.trouble is not None or loop.time() >= self._look_up_at:
                await self._open_streams()
            await asyncio.sleep(min(self._patience_s / 8, 1.0))
            if self._work.is_open and loop.time() - self._work.heard_at > self._patience_s:
                self._work.fail(self._silence())
            for stream in self._streams.values():
                self._check(stream, loop.time())

    async def _open_streams(self) -> None:
        self._look_up_at = asyncio.get_running_loop().time() + LOOK_UP_EVERY_S
        try:
            addresses = await self._channel.addresses()
        except errors.Unavailable as error:
            self._work.trouble = error
            return
        for address in addresses:
            if address not in self._streams:
                stream = self._streams[address] = BulkStream(self._channel.to(address), self._work, self._window)
                task = asyncio.ensure_future(stream.run())
                task.add_done_callback(self._ended)
                self._running[address] = task

    def _check(self, stream: BulkStream, now: float) -> None:
        others = [other.heard_at for other in self._streams.values() if other is not stream]
        is_slow = stream.is_awaited and now - stream.heard_at > self._patience_s * STALL_SHARE
        if is_slow and max(others, default=0.0) > stream.heard_at:
            stream.hang_up()

    def _silence(self) -> errors.AeencError:
        trouble = self._work.trouble
        if isinstance(trouble, errors.Overloaded):
            return trouble
        reason = trouble.message if trouble else f"no answer for {self._patience_s:g} s"
        return errors.Unavailable(f"the encoder at {self._channel.target} does not answer ({reason}); try again later")

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._work.fail(error)


async def each(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    """The items of either kind of iterable."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


def _alike(first: Encoded, answer: Encoded) -> Encoded:
    if (answer.model_version, answer.space_id) != (first.model_version, first.space_id):
        raise errors.FailedPrecondition(
            f"the encoder changed from {first.model_version} of space {first.space_id} to {answer.model_version} of "
            f"space {answer.space_id} meanwhile; start again, or name a version"
        )
    return first

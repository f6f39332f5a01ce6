"""Load: callers that wait for their answers (closed loop), and arrivals that do not (open loop, Poisson)."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any

import grpc
import numpy as np

from aeenc.calls.encoding import EncodeOptions


@dataclass
class Calls:
    """The outcomes of calls: (time sent, seconds, outcome, texts), on the clock of time.monotonic()."""

    rows: list[tuple[float, float, str, int]] = field(default_factory=list)

    def add(self, sent: float, outcome: str, texts: int) -> None:
        """Records a call that has just ended."""
        self.rows.append((sent, time.monotonic() - sent, outcome, texts))

    def count(self, outcome: str) -> int:
        """Calls with an outcome."""
        return sum(row[2] == outcome for row in self.rows)

    def texts(self, outcome: str = "OK") -> int:
        """Texts of the calls with an outcome."""
        return sum(row[3] for row in self.rows if row[2] == outcome)

    def seconds(self, outcome: str = "OK") -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Durations of the calls with an outcome."""
        return np.array([row[1] for row in self.rows if row[2] == outcome])

    def outcomes(self) -> dict[str, int]:
        """The number of calls by outcome."""
        return {outcome: self.count(outcome) for outcome in sorted({row[2] for row in self.rows})}


class RawCalls:
    """Encode calls as bytes, made ready beforehand: a load generator must leave the processor to what it loads.

    Calls go round the connections; `calls` has what became of them under OK or the name of their status.
    """

    METHOD = "/aeenc.v1.EncoderService/Encode"

    def __init__(self, target: str, texts: Sequence[str], size: int, *, timeout_s: float, connections: int = 4) -> None:
        self.size = size
        self.calls = Calls()
        self._timeout_s = timeout_s
        self._requests = [
            EncodeOptions(role="premise").request(texts[start : start + size]).SerializeToString()
            for start in range(0, len(texts) - size + 1, size)
        ]
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels = [grpc.aio.insecure_channel(target, options=options) for _ in range(connections)]
        self._methods = [channel.unary_unary(self.METHOD) for channel in self._channels]
        self._count = 0

    async def send(self) -> None:
        """Makes the next call."""
        self._count += 1
        method = self._methods[self._count % len(self._methods)]
        request = self._requests[self._count % len(self._requests)]
        sent = time.monotonic()
        try:
            await method(request, timeout=self._timeout_s)
            outcome = "OK"
        except grpc.aio.AioRpcError as error:
            outcome = error.code().name
        self.calls.add(sent, outcome, self.size)

    async def capacity(self, callers: int, seconds: float) -> float:
        """Texts a second of callers that wait for their answers."""
        begun, before = time.monotonic(), self.calls.texts()
        await rate_of(lambda _: self.send(), callers, seconds)
        return (self.calls.texts() - before) / (time.monotonic() - begun)

    async def close(self) -> None:
        """Closes the connections."""
        await asyncio.gather(*(channel.close() for channel in self._channels))


async def rate_of(call: Callable[[int], Awaitable[object]], callers: int, seconds: float) -> float:
    """Calls a second of `callers` that wait for their answers; each call gets the next number, from 0."""
    begun, numbers, done = time.monotonic(), itertools.count(), 0

    async def caller() -> None:
        nonlocal done
        while time.monotonic() - begun < seconds:
            await call(next(numbers))
            done += 1

    await asyncio.gather(*(caller() for _ in range(callers)))
    return done / (time.monotonic() - begun)


async def closed_loop(
    calls: Sequence[Callable[[Sequence[str]], Awaitable[object]]], texts: Sequence[str], *, callers: int, size: int
) -> float:
    """Texts a second of `callers` that share `texts`, each sending `size` by one of `calls`, and waits."""
    waiting = iter([texts[start : start + size] for start in range(0, len(texts), size)])

    async def caller(call: Callable[[Sequence[str]], Awaitable[object]]) -> None:
        for part in waiting:
            await call(part)

    started = time.monotonic()
    await asyncio.gather(*(caller(calls[n % len(calls)]) for n in range(callers)))
    return len(texts) / (time.monotonic() - started)


async def times_ms(calls: Mapping[str, Callable[[Any], object]], over: Iterable[Any]) -> dict[str, list[float]]:
    """The milliseconds of each call, awaited or not, with one thing after another.

    The calls take turns, so that each finds the processor as the others leave it.
    """
    took: dict[str, list[float]] = {name: [] for name in calls}
    for one in over:
        for name, call in calls.items():
            begun = time.perf_counter()
            answer = call(one)
            if isawaitable(answer):
                await answer
            took[name].append(1000 * (time.perf_counter() - begun))
    return took


@contextmanager
def without_collector() -> Iterator[None]:
    """No garbage collection in the load generator: its pauses would be counted as the service's."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def poisson(
    send: Callable[[], Awaitable[None]], rate: float, *, seconds: float, seed: int, stop: asyncio.Event | None = None
) -> None:
    """Starts `send` at Poisson arrivals of `rate` a second, whatever has become of those before; waits for all."""
    rng = random.Random(seed)
    running: set[asyncio.Task[None]] = set()
    begun = due = time.monotonic()
    while due - begun < seconds and not (stop is not None and stop.is_set()):
        due += rng.expovariate(rate)
        if (pause := due - time.monotonic()) > 0:
            await asyncio.sleep(pause)
        task = asyncio.ensure_future(send())  # type: ignore[arg-type]
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)

"""Load: callers that wait for their answers (closed loop), and arrivals that do not (open loop, Poisson)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from aeenc import EncoderClient, errors
from aeenc.encoder import Role


@dataclass
class Calls:
    """What became of calls: (when sent, seconds, outcome, texts), on the clock of time.monotonic()."""

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
        """How many calls ended how."""
        return {outcome: self.count(outcome) for outcome in sorted({row[2] for row in self.rows})}


async def one_call(client: EncoderClient, texts: Sequence[str], calls: Calls, **options: object) -> None:
    """Makes one call and records it under OK or the name of its status."""
    sent = time.monotonic()
    try:
        await client.encode(texts, **options)  # type: ignore[arg-type]
        outcome = "OK"
    except errors.AeencError as error:
        outcome = error.code
    calls.add(sent, outcome, len(texts))


async def closed_loop(
    clients: Sequence[EncoderClient],
    texts: Sequence[str],
    *,
    callers: int,
    size: int,
    passes: int = 1,
    role: Role = "premise",
) -> float:
    """Texts a second of `callers` that share `texts`, each sending `size` and waiting for the answer."""
    parts = [texts[start : start + size] for start in range(0, len(texts), size)] * passes
    waiting = iter(parts)

    async def caller(client: EncoderClient) -> None:
        for part in waiting:
            await client.encode(part, role=role)

    started = time.monotonic()
    await asyncio.gather(*(caller(clients[n % len(clients)]) for n in range(callers)))
    return sum(map(len, parts)) / (time.monotonic() - started)


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

"""A worker that dies in the middle of its work: which calls fail, and whether the rest goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from aeenc.errors import Unavailable
from services.encoder.batching.admission import CostModel
from services.encoder.batching.batcher import Batcher
from services.encoder.metrics import EncoderMetrics
from services.encoder.runtime.runners import Tokens
from services.kit import logs

DEADLY = 13  # a text of so many tokens kills the thread that computes it
CALLS = 2000
KILLS = 20


class _Deadly:
    """A runner that ends its thread, as no model can and a bug of the service might."""

    pads = True
    width = 4

    def __init__(self) -> None:
        self.held: set[int] = set()

    def run(self, batch: Sequence[Tokens]) -> NDArray[np.float32]:
        time.sleep(0.001)
        if any(len(tokens.ids) == DEADLY for tokens in batch):
            self.held |= {tokens.ids[0] for tokens in batch}
            raise SystemExit
        return np.repeat(np.array([[tokens.ids[0]] for tokens in batch], dtype=np.float32), self.width, axis=1)


async def failed_beyond_held() -> int:
    """Calls that failed, hung or were answered wrongly although no dead worker held them; of 2,000 with 20 kills."""
    logs.configure(log_format="console", level="critical", service="bench", instance="worker-kill")
    batcher = Batcher(
        workers=2,
        batch_items=8,
        batch_tokens=512,
        stuck_s=10,
        cost=CostModel(2),
        metrics=EncoderMetrics(CollectorRegistry()),
    )
    runner, bad = _Deadly(), 0

    async def call(number: int) -> None:
        nonlocal bad
        length = DEADLY if number % (CALLS // KILLS) == 50 else 3 + number % 9
        try:
            async with asyncio.timeout(20):
                answer = await batcher.encode(runner, [Tokens([number] * length)], "interactive")
        except Unavailable:
            bad += number not in runner.held
        except TimeoutError:
            bad += 1
        else:
            bad += bool((answer.rows != number).any())

    for start in range(0, CALLS, 100):
        await asyncio.gather(*(call(number) for number in range(start, start + 100)))
    await batcher.close()
    return bad

"""The thread that ranks by words: a large call holds up no small one."""

import asyncio
import threading
import time

from services.index.lexical.bm25 import SLICE_S, LexicalExecutor
from services.index.values import Timings


async def test_a_slice_of_slow_texts_ends_early_so_that_another_call_has_its_turn():
    executor, is_submitted = LexicalExecutor(), threading.Event()
    order, timings = list[str](), Timings()
    slow_s = 1.2 * SLICE_S

    def slow(row: int) -> int:
        if row == 0:
            assert is_submitted.wait(timeout=20)
        time.sleep(slow_s)
        order.append("large")
        return row

    large = asyncio.create_task(executor.each(range(8), slow, None, timings))
    small = asyncio.create_task(executor.each([0], lambda _: order.append("small"), None, Timings()))
    await asyncio.sleep(0)  # both calls are with the thread now, in this order
    is_submitted.set()
    await small
    assert await large == [*range(8)]
    assert timings.compute_s >= 8 * slow_s
    assert order == ["large", "small", *["large"] * 7]
    executor.close()

"""The thread that ranks by words: a large call holds up no small one."""

import asyncio
import time

from services.index.lexical.executor import LexicalExecutor


async def test_a_slice_of_slow_texts_ends_early_so_that_another_call_has_its_turn():
    executor = LexicalExecutor()
    order: list[str] = []

    def slow(row: int) -> int:
        time.sleep(0.06)
        order.append("large")
        return row

    large = asyncio.create_task(executor.each(range(8), slow))
    await asyncio.sleep(0.02)
    await executor.each([0], lambda _: order.append("small"))
    found, _, compute_s = await large
    assert found == [*range(8)]
    assert compute_s >= 8 * 0.06
    assert order.index("small") <= 2
    executor.close()

"""Ctrl-C at the moment in which a blocking call is handed to the loop: the loop may have it already, or not yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aeenc.transport.sync import Caller


@pytest.mark.parametrize("is_scheduled", [True, False])
def test_an_interrupt_while_a_step_is_handed_over_ends_it_and_closes_the_iterator(monkeypatch, is_scheduled):
    ended: list[str] = []

    async def endless() -> AsyncIterator[int]:
        try:
            await asyncio.sleep(600)
            yield 1
        finally:
            ended.append("closed")

    hand_over = asyncio.run_coroutine_threadsafe

    def interrupted(coroutine, loop):
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", hand_over)
        if is_scheduled:
            hand_over(coroutine, loop)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05), loop).result()  # it waits by then
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(Caller().iterate(endless()))
    assert ended == (["closed"] if is_scheduled else [])

"""Ctrl-C at the moment in which a blocking call is handed to the loop, or in which the loop is started."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from aeenc.transport.sync import Caller, _Loop


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


def test_an_interrupt_while_the_loop_is_started_leaves_later_calls_a_loop_that_runs(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    loops = _Loop()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loops.get()
    loop = loops.get()
    assert asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "done"), loop).result(20) == "done"
    loop.call_soon_threadsafe(loop.stop)
    loops._thread.join(20)
    loop.close()

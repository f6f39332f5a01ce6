"""Waiting for long work, a run or a job, across restarts of the service that does it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from typing import TYPE_CHECKING, TypeVar

from aeenc import errors

if TYPE_CHECKING:
    from aeenc.values import Job, Run

Work = TypeVar("Work", "Run", "Job")


async def wait_for_end(
    watch: Callable[[int], AsyncIterator[tuple[int, Work]]],
    get: Callable[[], Awaitable[Work]],
    end_states: Container[int],
    on_progress: Callable[[Work], None] | None,
) -> Work:
    """Follows events until the work is in one of `end_states`; `watch` starts them at a sequence number."""
    seq = 0
    while True:
        with contextlib.suppress(errors.Unavailable):  # the service restarts; `get` waits for it
            async for event_seq, work in watch(seq + 1):
                seq = event_seq
                if on_progress is not None:
                    on_progress(work)
        work = await get()
        if work.state in end_states:
            return work

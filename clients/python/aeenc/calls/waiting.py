"""Waiting for long work, a run or a job, across restarts of the service that does it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from aeenc import errors
from aeenc.transport.channel import PASSING, pause_s
from aeenc.v1 import types_pb2

if TYPE_CHECKING:
    from aeenc.values import Job, Run

ENDED = (types_pb2.WORK_STATE_SUCCEEDED, types_pb2.WORK_STATE_FAILED, types_pb2.WORK_STATE_CANCELLED)
SILENT_S = 600.0  # without an event, after which the state is asked for; a lost connection is noticed before
Work = TypeVar("Work", "Run", "Job")


async def wait_for_end(
    watch: Callable[[int], AsyncIterator[tuple[int, Work]]],
    get: Callable[[], Awaitable[Work]],
    on_progress: Callable[[Work], None] | None,
) -> Work:
    """Follows events until the work has ended; `watch` starts them at a sequence number.

    A service that restarts or refuses to be watched for now is watched again, after a pause. Raises what `on_progress`
    raises.
    """
    seq, in_vain = 0, 0
    events = watch(1)
    while True:
        event: tuple[int, Work] | None = None
        refusal: errors.AeencError | None = None
        try:
            async with asyncio.timeout(SILENT_S):
                event = await anext(events, None)
        except PASSING as error:
            refusal = error
        except TimeoutError:
            pass
        if event is not None:
            (seq, work), in_vain = event, -1
            if on_progress is not None:
                on_progress(work)
            continue
        work = await get()
        if work.state in ENDED:
            return work
        in_vain += 1
        if refusal is not None or in_vain:
            await asyncio.sleep(pause_s(in_vain, refusal))
        events = watch(seq + 1)

"""Tuning of the interpreter for many short calls beside threads that compute: garbage collector, thread switches."""

from __future__ import annotations

import gc
import sys

COLLECT_AFTER = 700  # new objects: a pass of 3 ms
COLLECT_OLDER = 500  # passes over new objects between two over older ones, which are calls in flight: 70 ms
SWITCH_S = 0.0005  # Python's default is ten times that


async def tune_interpreter() -> None:
    """Tunes this process: the last start hook, when everything is loaded.

    The garbage collector skips what is loaded by now. A thread that returns from computing gets the interpreter from a
    busy event loop sooner.
    """
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, COLLECT_OLDER, 2)

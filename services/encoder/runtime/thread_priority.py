"""Thread priorities by OS niceness: the event loop goes first, then workers, then candidates.

Under load the workers compute all the time. With equal priority, arrivals at twice the capacity would use up the event
loop's share: calls would wait even to be refused, and grpc's core drops calls once that line is too long.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading

WORKER = 2  # two thirds of the event loop's weight
CANDIDATE = 10  # a sixth of a worker's weight: on a saturated machine a candidate still loads in seconds


def lower_priority(niceness: int) -> None:
    """Sets the calling thread's niceness relative to the main thread, which runs the event loop.

    Does nothing outside Linux, where threads have no niceness of their own.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            of_main = os.getpriority(os.PRIO_PROCESS, os.getpid())
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), of_main + niceness)

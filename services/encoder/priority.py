"""Which of the encoder's threads go first when the processors are full: the event loop, then workers, then candidates.

Workers compute all the time under load. As equals of the event loop they leave it a share that arrivals at twice the
capacity use up: calls then wait to be *refused*, and grpc's core drops those that wait in too long a line.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading

WORKER = 2  # two thirds of the weight of the event loop
CANDIDATE = 10  # a sixth of a worker's: on a saturated machine a candidate still comes through in seconds


def lower_priority(niceness: int) -> None:
    """Sets the calling thread's niceness to this much over the main thread's, which runs the event loop.

    Only Linux has a niceness for each thread; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            of_main = os.getpriority(os.PRIO_PROCESS, os.getpid())
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), of_main + niceness)


def only_when_idle() -> None:
    """Lets the calling thread run when nobody else wants its processor, and leave it at once when somebody does.

    A niceness alone does not: the kernel lets a thread of any niceness finish its slice of some milliseconds.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # 0: this thread

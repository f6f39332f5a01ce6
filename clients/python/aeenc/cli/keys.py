"""Single keys from the terminal, without Enter. POSIX only; from a pipe, each character is a key."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from aeenc.errors import FailedPrecondition

END = ""  # nothing will come any more


class Keys:
    """Reads keys from a file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def key(self, timeout_s: float | None = None) -> str | None:
        """The next key; None when none comes in time, END when none can come."""
        ready, _, _ = select.select([self._descriptor], [], [], timeout_s)
        if not ready:
            return None
        byte = os.read(self._descriptor, 1)
        return "\n" if byte == b"\r" else byte.decode("ascii", "replace")


@contextmanager
def terminal_keys() -> Iterator[Keys]:
    """Keys from stdin while the body runs; the terminal is afterwards as it was."""
    try:
        import termios
        import tty
    except ImportError:  # Windows
        raise FailedPrecondition("this command needs a POSIX terminal; use WSL or the SDK (aeenc.people)") from None
    descriptor = sys.stdin.fileno()
    if not os.isatty(descriptor):
        yield Keys(descriptor)
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

"""Background processes: started with a log of their own, found again by pid and start time, ended in order."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.05
TAIL_LINES = 8


@dataclass(frozen=True)
class ProcessId:
    """A pid and when it was started, in clock ticks since boot: together they name one process and no later one."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The identity of a running process; None when there is none (a zombie is none)."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
        return None if fields[0] == "Z" else cls(pid, int(fields[19]))

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return ProcessId.of(self.pid) == self

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, unless the process is gone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def start(command: Sequence[str], environment: Mapping[str, str], log: Path) -> ProcessId:
    """Starts a process in a session of its own; what it prints goes to `log`, the last start's to `log`.1."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_name(f"{log.name}.1"))
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    _reap_later(process)
    identity = ProcessId.of(process.pid)
    return identity or ProcessId(process.pid, -1)  # -1: it has ended already, and no process has that identity


def end(processes: Sequence[ProcessId], timeout_s: float) -> list[ProcessId]:
    """Asks processes to end, waits, and kills those that have not. Returns the killed ones."""
    for process in processes:
        process.signal(signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while any(process.alive for process in processes) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    stubborn = [process for process in processes if process.alive]
    for process in stubborn:
        process.signal(signal.SIGKILL)
    return stubborn


def tail(log: Path) -> str:
    """The last lines of a log."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
    except FileNotFoundError:
        return "(no log)"


def _reap_later(process: subprocess.Popen[bytes]) -> None:
    """Lets the child end without leaving a zombie while we live."""
    import threading

    threading.Thread(target=process.wait, daemon=True).start()

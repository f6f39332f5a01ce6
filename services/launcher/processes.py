"""Background processes and their ports: each has its own log and is found again by pid and start time."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.kit.healthcheck import connects
from services.kit.logs import set_aside

POLL_S = 0.05
TAIL_LINES = 8
LOCALHOST = "127.0.0.1"
RELEASE_S = 2.0
_PORTS = range(20_000, 32_000)


@dataclass(frozen=True)
class ProcessId:
    """A pid and its start in clock ticks since boot; together they name one process for ever."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """Returns the identity of a running process; None without one, and for a zombie."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = stat.rpartition(")")[2].split()  # the name before it may contain anything
        return None if fields[0] == "Z" else cls(pid, int(fields[19]))

    @property
    def alive(self) -> bool:
        """Whether this process still runs."""
        return ProcessId.of(self.pid) == self

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, unless the process is gone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def start(command: Sequence[str], environment: Mapping[str, str | None], log: Path) -> ProcessId:
    """Starts a process in its own session. Its output goes to `log`; that of the last starts to `log`.1 and so on.

    `environment` is added to this process's; None takes a variable away.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    set_aside(log)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in {**os.environ, **environment}.items() if value is not None},
            start_new_session=True,
        )
    reap_later(process)
    identity = ProcessId.of(process.pid)
    return identity or ProcessId(process.pid, -1)  # -1: it has ended already; no process has this identity


def end(processes: Sequence[ProcessId], timeout_s: float) -> None:
    """Asks processes to end, waits, and kills the rest."""
    for process in processes:
        process.signal(signal.SIGTERM)
    comes_true(lambda: not any(process.alive for process in processes), timeout_s)
    for process in processes:
        process.signal(signal.SIGKILL)


def comes_true(condition: Callable[[], bool], patience_s: float) -> bool:
    """Waits until a condition is true. False when it is not in time."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def tail(log: Path) -> str:
    """Returns why a service stopped, if its log says so; else the last lines, without those that point into code."""
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip(" ^~|")]
        reasons = [line for line in lines if line.startswith("the service stopped: ")]
        return "\n".join(reasons or lines[-TAIL_LINES:])
    except FileNotFoundError:
        return "(no log)"


def free_port(chosen: set[str]) -> int:
    """Picks a free port below those that the kernel hands out, so that it is still free after a restart."""
    while True:
        port = random.choice(_PORTS)  # noqa: S311 -- spreads fleets out, protects nothing
        with contextlib.suppress(OSError), socket.create_server((LOCALHOST, port)):
            if f"{LOCALHOST}:{port}" not in chosen:
                return port


def becomes_free(target: str) -> bool:
    """Waits a moment until nobody listens at `target`: the threads of a killed process hold its port. False: taken."""
    return comes_true(lambda: not connects(target), RELEASE_S)


def reap_later(process: subprocess.Popen[bytes]) -> None:
    """Waits for the child in a thread, so that it leaves no zombie."""
    threading.Thread(target=process.wait, daemon=True).start()

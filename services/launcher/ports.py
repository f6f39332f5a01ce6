"""Ports of this machine: which are free, taken, or about to be free."""

from __future__ import annotations

import contextlib
import random
import socket
import time

LOCALHOST = "127.0.0.1"
RELEASE_S = 2.0
POLL_S = 0.05
_PORTS = range(20_000, 32_000)


def free_port(chosen: set[str]) -> int:
    """A port below those that the kernel hands out by itself, so that it is still free after a restart."""
    while True:
        port = random.choice(_PORTS)  # noqa: S311 -- spreads fleets out, protects nothing
        with contextlib.suppress(OSError), socket.create_server((LOCALHOST, port)):
            if f"{LOCALHOST}:{port}" not in chosen:
                return port


def becomes_free(target: str) -> bool:
    """Whether nobody listens there, or stops to soon: the threads of a killed process hold its port for a moment."""
    deadline = time.monotonic() + RELEASE_S
    while taken(target):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def taken(target: str) -> bool:
    """Whether something listens at `host:port`."""
    host, _, port = target.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0

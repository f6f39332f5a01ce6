"""The ports of worker processes: nobody slips by mistake into the one that they share. tests/index tests workers."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

import pytest

from aeenc import errors
from services.kit import logs
from services.kit.settings import ServiceSettings
from services.kit.workers import held_port, run_workers


def sharing() -> socket.socket:
    """A socket whose port others may share, as gRPC makes it."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return made


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with sharing() as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
        yield made


def test_the_held_port_is_for_those_who_share_it_alone() -> None:
    with held_port(ServiceSettings(port=0)) as port:
        with sharing() as worker, sharing() as other:
            for one in (worker, other):
                one.bind(("127.0.0.1", port))
                one.listen()
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))


def test_a_port_where_another_service_listens_is_refused_although_it_would_share(listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    refused = pytest.raises(errors.Unavailable, match=f"127.0.0.1:{port}: another process has the port")
    with refused, held_port(ServiceSettings(port=port)):
        pass


def test_a_port_whose_last_connections_have_just_ended_is_free(listening: socket.socket) -> None:
    with socket.create_connection(listening.getsockname()) as caller:
        accepted, _ = listening.accept()
        accepted.close()  # it ends first, so that its port waits (TIME_WAIT)
        assert caller.recv(1) == b""
    port = listening.getsockname()[1]
    listening.close()
    with held_port(ServiceSettings(port=port)) as held:
        assert held == port


class TwoProcesses(ServiceSettings):
    @property
    def worker_processes(self) -> int:
        return 2


def test_a_port_of_metrics_without_room_for_all_processes_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["service", "--metrics-port", "65535"])
    monkeypatch.setattr(logs, "configure", lambda **_: None)
    with pytest.raises(SystemExit, match=r"stopped: AEENC_METRICS_PORT=65535, .* leads to 65536; give a lower one"):
        run_workers("no.module", lambda _: pytest.fail("no server here"), TwoProcesses)

"""Refusals of `aeenc up`, and their messages."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from aeenc import errors
from services.kit import healthcheck
from services.launcher import fleet as fleet_module
from services.launcher import private_redis, processes
from services.launcher.fleet import Fleet, Options
from services.launcher.private_redis import start_private_redis
from services.launcher.processes import ProcessId, free_port

LISTENS = "import socket, sys, time; one = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(60)"


def test_a_taken_port_is_named_with_the_remedy(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(errors.FailedPrecondition, match=rf"127.0.0.1:{port} \(encoder\).*--base-port"):
            Fleet(tmp_path).up(Options(base_port=port))
    assert Fleet(tmp_path).running() == {}


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Callable[[int], ProcessId]]:
    """Starts a process that listens at a port, and ends it at last."""
    started: list[ProcessId] = []

    def start(port: int) -> ProcessId:
        started.append(processes.start([sys.executable, "-c", LISTENS, str(port)], {}, tmp_path / "listener.log"))
        while not healthcheck.connects(f"127.0.0.1:{port}"):
            assert started[-1].alive
            time.sleep(0.01)
        return started[-1]

    yield start
    processes.end(started, 5)


def test_a_taken_port_ends_nothing_of_a_fleet_that_runs_elsewhere(
    tmp_path: Path, listener: Callable[[int], ProcessId], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(processes, "RELEASE_S", 0.1)
    fleet, port = Fleet(tmp_path), free_port(set())
    running = {"encoder": listener(port)}
    fleet._write(Options(base_port=0), {"encoder": f"127.0.0.1:{port}"}, running, "")
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with pytest.raises(errors.FailedPrecondition, match=f"{taken}.*--base-port"):
            fleet.up(Options(base_port=taken))
    assert fleet.running() == running


@pytest.mark.parametrize("is_given", [False, True])
def test_the_ports_of_what_starts_again_are_not_taken(
    tmp_path: Path, listener: Callable[[int], ProcessId], is_given: bool
):
    fleet, port = Fleet(tmp_path), free_port(set())
    process = listener(port)
    options = Options(base_port=port if is_given else 0)
    fleet._write(options, {"encoder": f"127.0.0.1:{port}"}, {"encoder": process}, "")
    running, targets = fleet._make_way(replace(options, redis_url="redis://elsewhere"), lambda _: None)
    assert (running, targets["encoder"], process.alive) == ({}, f"127.0.0.1:{port}", False)


def test_a_fleet_of_the_next_minor_release_is_read_and_its_record_keeps_what_that_has_added(tmp_path: Path):
    fleet, options = Fleet(tmp_path), Options(base_port=0)
    fleet._write(options, {"encoder": "127.0.0.1:1"}, {}, "")
    path = tmp_path / "fleet.json"
    record = json.loads(path.read_bytes())
    newer = {**record, "metrics": "on", "options": {**record["options"], "replicas": 2}, "processes": {"x": [1, 2, 3]}}
    path.write_text(json.dumps(newer))
    assert (fleet.options(), fleet.targets(), fleet.running()) == (options, {"encoder": "127.0.0.1:1"}, {})
    fleet._write(replace(options, gold_split="dev"), {}, {}, "")
    kept = json.loads(path.read_bytes())
    assert (kept["metrics"], kept["options"]["replicas"], kept["options"]["gold_split"]) == ("on", 2, "dev")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"format_version": 2}', "has format_version 2"),
        ("{", "cannot be read"),
        ("[]", "cannot be"),
        ('{"format_version": 1, "options": {}, "targets": 3, "processes": {}}', "cannot be"),
        ('{"format_version": 1, "options": {}, "targets": {}, "processes": {"redis": 5}}', "cannot be"),
        (
            '{"format_version": 1, "options": {"base_port": "x"}}',
            r"cannot be read \(ValueError: 1 validation error for Options base_port .* input_type=str\]\); restore it",
        ),
        ("\xff" * 1000, r"cannot be read \(UnicodeDecodeError: .*\); restore it"),
    ],
)
def test_a_record_that_this_release_does_not_read_stops_up_and_down_by_name(tmp_path: Path, content: str, said: str):
    (tmp_path / "fleet.json").write_text(content, "latin-1")
    for call in (lambda: Fleet(tmp_path).up(Options(base_port=0)), Fleet(tmp_path).down):
        with pytest.raises(errors.FailedPrecondition, match=rf"fleet\.json {said}"):
            call()
    assert (tmp_path / "fleet.json").read_text("latin-1") == content


def test_a_record_that_the_system_does_not_let_read_is_named_with_the_reason(tmp_path: Path):
    (tmp_path / "fleet.json").mkdir()
    with pytest.raises(errors.FailedPrecondition, match=r"fleet\.json cannot be read \(Is a directory\); make it"):
        Fleet(tmp_path).running()


def is_gone(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not Path(f"/proc/{pid}").exists()


def test_a_redis_that_does_not_answer_is_ended_and_leaves_no_zombie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script, told = tmp_path / "redis-server", tmp_path / "pid"
    script.write_text(f"#!/bin/sh\necho $$ > {told}\nexec sleep 60\n")
    script.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("services.launcher.private_redis.START_TIMEOUT_S", 6.0)
    with pytest.raises(errors.Unavailable, match=r"redis-server did not start; .*redis\.log says why"):
        start_private_redis(tmp_path / "redis")
    assert is_gone(int(told.read_text()))


def test_a_redis_that_loads_for_longer_than_a_start_may_take_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    full = start_private_redis(tmp_path)
    with redis.Redis.from_url(full.url) as client, client.pipeline(transaction=False) as pipe:
        for number in range(8000):
            pipe.set(f"key-{number}", number)
        pipe.execute()
    full.stop()
    monkeypatch.setattr(private_redis, "START_TIMEOUT_S", 5.0)
    monkeypatch.setitem(private_redis.REWRITE_AT, "key-load-delay", "800")  # microseconds; it answers LOADING meanwhile
    loaded = start_private_redis(tmp_path)
    with redis.Redis.from_url(loaded.url) as client:
        assert client.dbsize() == 8000
    loaded.stop()


def test_a_redis_of_a_fleet_leaves_no_zombie_when_it_ends(tmp_path: Path):
    fleet = Fleet(tmp_path)
    _, redis = fleet._start_redis()
    fleet._end({"redis": redis})
    assert is_gone(redis.pid)


def test_a_service_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AEENC_TRAINER_BASE_MODEL", str(tmp_path / "nothing"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    fleet = Fleet(tmp_path / "home")
    try:
        with pytest.raises(errors.FailedPrecondition, match="trainer ended while starting") as caught:
            fleet.up(Options(base_port=0))
        assert "AEENC_TRAINER_BASE_MODEL" in caught.value.message
    finally:
        fleet.down()


@pytest.mark.parametrize(("name", "listens"), [("gold", False), ("encoder", False), ("encoder", True)])
def test_what_does_not_serve_in_time_is_named_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, listens: bool
):
    monkeypatch.setattr(fleet_module, "START_S", 0.1)
    monkeypatch.setattr(healthcheck, "TIMEOUT_S", 0.1)
    process, said = ProcessId.of(os.getpid()), rf"{name} does not serve after 0 s; .*{name}\.log says:"
    assert process is not None
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if listens else free_port(set())
        with pytest.raises(errors.Unavailable, match=said):
            Fleet(tmp_path)._await_serving(name, process, f"127.0.0.1:{port}")


def test_only_one_up_works_on_a_home_at_a_time(tmp_path: Path):
    fleet = Fleet(tmp_path)
    with fleet.locked(), pytest.raises(errors.FailedPrecondition, match="another `aeenc up`"):
        Fleet(tmp_path).up(Options(base_port=0))


def test_one_server_alone_has_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(private_redis, "LOCK_S", 0.1)
    first = start_private_redis(tmp_path)
    try:
        with pytest.raises(errors.FailedPrecondition, match=f"redis-server .* has the data of {tmp_path}"):
            start_private_redis(tmp_path)
        assert redis.from_url(first.url).ping(), "the socket is still the first one's"
    finally:
        first.process.kill()
        first.process.wait()
    start_private_redis(tmp_path).stop()


def test_what_could_not_be_noted_is_ended_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(path: Path, *_: object, **__: object) -> None:
        if path.name == "fleet.json":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("services.launcher.fleet.atomic_write", full)
    with pytest.raises(errors.Unavailable, match=r"fleet\.json cannot be written \(No space.*redis was not started"):
        Fleet(tmp_path).up(Options(base_port=0))
    assert Fleet(tmp_path).running() == {}
    monkeypatch.setattr(private_redis, "LOCK_S", 1.0)
    start_private_redis(tmp_path / "redis").stop()  # nobody else has it


def test_a_service_that_could_not_be_noted_is_ended_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    started: list[ProcessId] = []

    def full_at_the_encoder(path: Path, data: bytes, **options: Any) -> None:
        if path.name == "fleet.json" and "encoder" in json.loads(data)["processes"]:
            raise OSError(28, "No space left on device")
        write(path, data, **options)

    def start(*words: Any) -> ProcessId:
        started.append(begin(*words))
        return started[-1]

    write, begin = fleet_module.atomic_write, processes.start
    monkeypatch.setattr(fleet_module, "atomic_write", full_at_the_encoder)
    monkeypatch.setattr(processes, "start", start)
    fleet = Fleet(tmp_path)
    try:
        with pytest.raises(errors.Unavailable, match=r"fleet\.json cannot be written \(No space.*encoder was not st"):
            fleet.up(Options(base_port=0))
        assert not started[-1].alive
        assert "encoder" not in fleet.running()
    finally:
        processes.end(started, 5)
        fleet.down()


def test_what_runs_in_a_home_that_has_become_read_only_is_ended(
    tmp_path: Path, listener: Callable[[int], ProcessId], monkeypatch: pytest.MonkeyPatch
):
    def refuses(path: Path, mode: str = "r", *words: Any, **options: Any) -> Any:
        if path.name == "lock" and mode != "r":
            raise OSError(30, "Read-only file system")
        return opened(path, mode, *words, **options)

    opened, fleet, process = Path.open, Fleet(tmp_path), listener(free_port(set()))
    monkeypatch.setattr(Path, "open", refuses)
    with pytest.raises(
        errors.FailedPrecondition, match=r"lock cannot be opened \(Read-only file system\); correct its"
    ):
        fleet.down()
    (tmp_path / "lock").touch()
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path / "lock")
    fleet._write(Options(base_port=0), {}, {"encoder": process}, "")
    assert (fleet.down(), process.alive) == (["encoder"], False)

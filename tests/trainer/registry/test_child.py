"""How the trainer starts its child processes: beside grpc's threads, without a fork."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.kit.concurrency import EXIT_DISK_FULL, ChildProcess
from services.trainer.registry.child import SPINS, Child, describe_exit
from services.trainer.train import __main__ as entry
from support.waiting import until

# glibc calls a handler of pthread_atfork before every fork, and none before a vfork.
COUNT_FORKS = """
import ctypes, sys
import uvloop
from services.trainer.registry.child import Child
from services.trainer.jobs.files import JobFiles

forks = []
handler = ctypes.CFUNCTYPE(None)(lambda: forks.append(1))
ctypes.CDLL(None).__register_atfork(handler, None, None, None)
sys.executable = "/bin/true"

async def main():
    child = await Child.start("job")
    status = await child.wait()
    await child.end()
    print(status, len(forks))

uvloop.run(main())
"""

DEAF = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pthread_atfork is reached through glibc")
def test_a_child_is_started_without_a_fork():
    done = subprocess.run([sys.executable, "-c", COUNT_FORKS], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["0", "0"]


async def test_a_child_tells_its_status_to_everybody_who_waits():
    child = Child(sys.executable, "-c", "raise SystemExit(7)")
    impatient = asyncio.create_task(child.wait())
    await asyncio.sleep(0)
    impatient.cancel()
    assert await asyncio.gather(child.wait(), child.wait()) == [7, 7]
    await child.end()
    assert await child.wait() == 7


async def test_a_child_that_died_before_it_was_told_its_line_tells_its_status(monkeypatch: pytest.MonkeyPatch):
    class Dead(subprocess.Popen[bytes]):
        def __init__(self, *command: Any, **how: Any) -> None:
            super().__init__(*command, **how)
            self.wait()

    monkeypatch.setattr(subprocess, "Popen", Dead)
    child = ChildProcess(sys.executable, "-c", "raise SystemExit(7)", line="to nobody")
    assert await child.wait() == 7
    await child.end()


async def test_a_child_does_not_get_the_signals_of_its_parents_terminal():
    child = Child(sys.executable, "-c", "import os, sys; sys.stdin.read()")
    assert os.getsid(child._process.pid) != os.getsid(0)
    assert os.getpgid(child._process.pid) != os.getpgid(0)
    await child.end()


@pytest.mark.parametrize(
    ("kind", "ours", "wanted"),
    [
        (Child, {}, SPINS),
        (Child, {"GOMP_SPINCOUNT": "7"}, "7"),
        (Child, {"OMP_WAIT_POLICY": "PASSIVE"}, None),  # which any count would overrule
        (ChildProcess, {}, None),  # an encoder or index
    ],
)
async def test_the_threads_of_a_job_that_wait_soon_leave_the_core_to_others_unless_its_operator_has_decided(
    monkeypatch: pytest.MonkeyPatch, kind: type[ChildProcess], ours: dict[str, str], wanted: str | None
):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    child = kind(sys.executable, "-c", f"import os; raise SystemExit(os.environ.get('GOMP_SPINCOUNT') != {wanted!r})")
    assert await child.wait() == 0
    await child.end()


async def test_a_child_that_died_has_not_answered_with_the_result_of_an_earlier_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "model.result").write_text('{"version": "another"}')
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert await Child.answer("pretrained", tmp_path / "model.json", {}) == {"error": describe_exit(1)}


async def test_a_child_that_does_not_end_when_asked_is_killed(tmp_path: Path):
    ready = tmp_path / "ready"
    child = Child(sys.executable, "-c", DEAF, str(ready))
    await until(ready.exists)  # it makes the file once its handler stands
    await child.end(0.2)
    assert await child.wait() == -signal.SIGKILL


def test_a_full_disk_ends_an_export_with_its_own_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(entry, "_exporter", lambda *_: full)
    request = tmp_path / "pretrained.json"
    request.write_text(json.dumps({"artifacts_dir": str(tmp_path)}))
    with pytest.raises(SystemExit) as ended:
        entry._answer("pretrained", request)
    assert ended.value.code == EXIT_DISK_FULL
    assert "the disk is full; free some space" in describe_exit(EXIT_DISK_FULL)

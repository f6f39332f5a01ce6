"""A build on Ray, of this machine: killed workers cost what they were at, and nothing listens beyond loopback."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from aeenc.adapters.facts import read_facts
from aeenc.errors import InvalidArgument, Unavailable
from aeenc.transport.targets import Targets
from services.index.distributed.command import ON_LOOPBACK, connected
from services.index.distributed.engine import build
from services.index.distributed.stages import Encoders, Plan
from services.index.values import BuildOptions
from services.store.artifacts import ArtifactStore
from support.waiting import until

FACTS, SHARD = 600, 100
pytestmark = pytest.mark.timeout(240)


def busy() -> list[int]:
    """Ray's processes that are at a task of ours."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (directory / "cmdline").read_bytes().startswith(b"ray::_attempt"):
                found.append(int(directory.name))
    return found


def listening() -> set[str]:
    """The addresses at which Ray's own processes listen, of TCP over IPv4 and IPv6, as the kernel writes them."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":  # LISTEN
                sockets[f"socket:[{fields[9]}]"] = fields[1].partition(":")[0]
    found = set()
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"ray" in (directory / "cmdline").read_bytes().lower():
                links = {str(link.readlink()) for link in (directory / "fd").iterdir()}
                found |= {address for name, address in sockets.items() if name in links}
    return found


async def test_a_killed_worker_costs_its_shard_and_nothing_listens_beyond_loopback(
    encoder: Any, artifact_store: ArtifactStore, tmp_path: Path
):
    path = tmp_path / "facts.txt"
    path.write_text("".join(f"fact number {n} of a file\n" for n in range(FACTS)))
    plan = Plan.of("c", read_facts(path), text_bytes=1000, shard_facts=SHARD)
    encoder.servicer.pause_s = 0.2  # a batch
    encoders = Encoders(Targets(encoder=encoder.target), BuildOptions(batch=20, window=1))
    heard: list[set[str]] = []

    def run() -> Any:
        with connected(workers=2) as processes:
            heard.append(listening())
            given = (plan, str(tmp_path / "work"), processes, encoders, artifact_store)
            return build(*given)

    building = asyncio.create_task(asyncio.to_thread(run))
    kills = 0
    for served in (20, 220):
        await until(lambda served=served: len(encoder.servicer.encoded_premises) >= served and busy(), timeout_s=120)
        os.kill(busy()[0], signal.SIGKILL)
        kills += 1
    built = await building
    assert built.premises == FACTS
    often = Counter(encoder.servicer.encoded_premises)
    assert len(often) == FACTS, "no premise is lost"
    assert sum(often.values()) - FACTS <= kills * SHARD, "at most a shard a kill is encoded again"
    assert heard[0]
    assert heard[0] <= {"0100007F", "0000000000000000FFFF00000100007F"}, "127.0.0.1 alone"


async def test_an_error_of_a_task_is_the_callers(encoder: Any, artifact_store: ArtifactStore, tmp_path: Path):
    path = tmp_path / "facts.jsonl"
    path.write_text(json.dumps({"id": "a", "text": "one"}) + "\nnonsense\n")
    encoders = Encoders(Targets(encoder=encoder.target), BuildOptions())

    def run() -> None:
        plan = Plan.of("c", read_facts(path), text_bytes=1000)
        with connected(workers=1) as processes:
            given = (plan, str(tmp_path / "work"), processes, encoders, artifact_store)
            with pytest.raises(InvalidArgument, match=r"facts\.jsonl:2: not JSON"):
                build(*given)
            path.unlink()
            with pytest.raises(Unavailable, match=r"^task read 0 failed \(FileNotFoundError: .*facts\.jsonl'\); mend"):
                build(*given)

    await asyncio.to_thread(run)


@pytest.mark.parametrize("failures", [1, 2])
def test_a_start_that_ray_gives_up_is_tried_once_more(monkeypatch: pytest.MonkeyPatch, failures: int):
    for name, value in ON_LOOPBACK.items():
        monkeypatch.setenv(name, value)
    ray = pytest.importorskip("ray")
    left, folders = [failures], list[str]()

    def init(**_: Any) -> None:
        folders.append(os.environ["RAY_TMPDIR"])
        left[0] -= 1
        if left[0] >= 0:
            raise Exception("The current node timed out during startup.")  # noqa: TRY002 - as Ray does

    monkeypatch.setattr(ray, "init", init)
    if failures == 1:
        with connected(workers=1):
            assert Path(folders[1]).is_dir()
    else:
        with pytest.raises(Unavailable, match=r"this machine .*timed out"), connected(workers=1):
            raise AssertionError("it did not start")
    assert len(folders) == 2
    assert not Path(folders[1]).exists()

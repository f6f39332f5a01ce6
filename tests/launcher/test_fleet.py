"""One machine's fleet: up, down, up again; and the state after SIGKILL of sampler, trainer and Redis."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import aeenc
from aeenc import errors
from aeenc.cli.main import app
from aeenc.oracle import OracleServer
from aeenc.transport.sync import LOOP
from aeenc.transport.targets import Targets
from aeenc.v1 import types_pb2
from services.launcher.doctor import examine
from services.launcher.fleet import Fleet, Options
from services.launcher.processes import ProcessId, becomes_free, end
from services.store.files import sha256_of
from support.models.tiny_base_models import write_tiny_base
from support.worlds.trainer_world import FACTS

HYPOTHESES = [(f"h{n}", fact) for n, fact in enumerate(FACTS)]


class SlowOracle(aeenc.Oracle):
    """Accepts a premise that shares its third word with the query, and takes its time."""

    pause_s = 0.15

    def judge(self, task: aeenc.Task) -> list[str]:
        time.sleep(self.pause_s)
        return [candidate.id for candidate in task.candidates if candidate.text.split()[1] in task.query.split()]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home whose fleet has a tiny base model; everything in it is ended at the end."""
    root = tmp_path_factory.mktemp("fleet")
    write_tiny_base(root / "base")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AEENC_TRAINER_BASE_MODEL", str(root / "base"))
        patch.setenv("AEENC_TRAINER_MAX_TOKENS", "64")
        patch.setenv("AEENC_TRAINER_THREADS", "1")
        patch.setenv("AEENC_SAMPLER_LEASE_S", "1")
        patch.setenv("AEENC_TRAINER_LEASE_S", "1")
        yield root / "home"
        Fleet(root / "home").down()


@pytest.fixture(scope="module")
def oracle() -> Iterator[OracleServer]:
    """A remote oracle of the user's."""
    server = LOOP.run(SlowOracle().start("127.0.0.1:0"))
    yield server
    LOOP.run(server.stop())


@pytest.fixture(scope="module")
def client(home: Path, oracle: OracleServer) -> Iterator[aeenc.Client]:
    """The fleet, up, with a corpus of FACTS."""
    targets = Fleet(home).up(Options(base_port=0, oracles={"mine": f"127.0.0.1:{oracle.port}"}))
    connected = aeenc.connect(**{name: targets[name] for name in ("encoder", "index", "sampler", "trainer")})
    premises = [types_pb2.Premise(id=f"f{n}", text=text, splits=["facts"]) for n, text in enumerate(FACTS)]
    connected.index.build("facts", premises)
    yield connected
    connected.close()


def kill(home: Path, name: str) -> int:
    """SIGKILLs one process of the fleet; returns its pid."""
    process = Fleet(home).running()[name]
    os.kill(process.pid, signal.SIGKILL)
    while process.alive:
        time.sleep(0.01)
    return process.pid


def index_files(home: Path) -> dict[str, str]:
    """The hash of every file under the corpora."""
    root = home / "artifacts" / "generations"
    return {str(path.relative_to(root)): sha256_of(path) for path in sorted(root.rglob("*")) if path.is_file()}


def start_alone(home: Path, name: str) -> ProcessId:
    """Starts one service of the fleet with nobody else's help."""
    fleet = Fleet(home)
    options = fleet.options()
    assert options is not None
    return fleet._start(
        name, options, fleet.targets(), str(json.loads((home / "fleet.json").read_bytes())["redis_url"])
    )


def pairs_of(client: aeenc.Client, run_id: str) -> dict[int, tuple[str, str, int]]:
    return {pair.seq: (pair.query, pair.premise, pair.sign) for pair in client.sampler.list_pairs(run_id)}


def up_again(home: Path) -> None:
    fleet = Fleet(home)
    options = fleet.options()
    assert options is not None
    fleet.up(options)


@pytest.mark.slow
def test_up_again_starts_nothing_twice_and_keeps_the_addresses(home: Path, client: aeenc.Client):
    before, targets = Fleet(home).running(), Fleet(home).targets()
    up_again(home)
    assert Fleet(home).running() == before
    assert set(before) == {"redis", "trainer", "encoder", "index", "sampler"}
    assert Fleet(home).targets() == targets
    record = json.loads((home / "fleet.json").read_bytes())
    assert record["format_version"] == 1


def test_the_doctor_finds_a_running_fleet_well(home: Path, client: aeenc.Client):
    targets = Targets(**Fleet(home).targets())
    found = LOOP.run(examine(targets, Fleet(home)))
    told = {one.check: one.state for one in found}
    assert {told[name] for name in ("redis", "encoder", "index", "sampler", "trainer")} == {"ok"}, found


@pytest.mark.slow
def test_a_sampler_and_a_redis_that_are_killed_lose_no_acknowledged_pair(home: Path, client: aeenc.Client):
    run = client.sampler.start_run(HYPOTHESES, corpus="facts", oracle="mine", k=5)
    seen: dict[int, tuple[str, str, int]] = {}
    while len(seen) < 20:
        seen = pairs_of(client, run.id)
    kill(home, "sampler")
    kill(home, "redis")
    up_again(home)
    after = pairs_of(client, run.id)
    assert seen.items() <= after.items()
    ended = client.sampler.wait(run.id)
    assert ended.state == types_pb2.WORK_STATE_SUCCEEDED, ended.error
    whole = pairs_of(client, run.id)
    assert seen.items() <= whole.items()
    assert len(set(whole.values())) == len(whole), "a pair stands twice"
    assert ended.progress.trees_done == len(HYPOTHESES)
    assert len(whole) == ended.progress.positives + ended.progress.negatives


@pytest.mark.slow
def test_a_trainer_that_is_killed_shows_no_half_checkpoint_and_goes_on(home: Path, client: aeenc.Client):
    pairs = [
        types_pb2.Pair(query=f"about {fact}", premise=fact, premise_id=f"f{n}", sign=1) for n, fact in enumerate(FACTS)
    ]
    run_id = client.sampler.import_pairs("facts", pairs).run_id
    known = {checkpoint.version for checkpoint in client.trainer.list_checkpoints()}
    job = client.trainer.start_job(corpus="facts", run_ids=[run_id], epochs=24, batch_size=2)
    for _, now in client.trainer.watch(job.id):
        if now.progress.epochs_done >= 2:
            break
    kill(home, "trainer")
    assert sorted(
        path.name for path in (home / "artifacts" / "checkpoints").iterdir() if path.name[0] != "."
    ) == sorted(known)
    up_again(home)
    ended = client.trainer.wait(job.id)
    assert ended.state == types_pb2.WORK_STATE_SUCCEEDED, ended.error
    assert {checkpoint.version for checkpoint in client.trainer.list_checkpoints()} == known | {ended.version}
    files = index_files(home)
    published = client.registry.publish(ended.version, wait_s=20)
    assert published.complete
    found = client.index.retrieve("facts", ["about the sun"], k=3)
    assert found.model_version == ended.version
    assert index_files(home) == files, "publishing a query encoder leaves the index as it was"


@pytest.mark.slow
def test_searching_needs_neither_redis_nor_sampler_nor_trainer(home: Path, client: aeenc.Client):
    before = client.index.retrieve("facts", ["about the sun"], k=5)
    for name in ("redis", "sampler", "trainer"):
        kill(home, name)
    without = client.index.retrieve("facts", ["about the sun"], k=5)
    assert (without.results, without.model_version) == (before.results, before.model_version)
    vectors = client.encoder.encode(["about the sun"])
    assert client.index.search("facts", vectors.vectors, space_id=vectors.space_id, k=5).ids[0] == [
        hit.id for hit in before[0]
    ]
    # An encoder that restarts meanwhile serves its last labels from its own files.
    kill(home, "encoder")
    assert becomes_free(Fleet(home).targets()["encoder"])
    restarted = start_alone(home, "encoder")
    try:
        again = client.index.retrieve("facts", ["about the sun"], k=5)
        assert (again.results, again.model_version) == (before.results, before.model_version)
        info = client.encoder.info().service
        assert (info.state, "Redis" in info.state_reason) == (types_pb2.SERVICE_STATE_DEGRADED, True)
    finally:
        end([restarted], 10)
    up_again(home)


@pytest.mark.slow
def test_a_stranger_lists_services_and_retrieves_by_reflection_alone(home: Path, client: aeenc.Client):
    script = Path(__file__).parents[2] / "examples" / "reflection_client.py"
    target = Fleet(home).targets()["index"]
    command = [sys.executable, "-I", str(script), target, "facts", "the sun is a star"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    services, _, answer = done.stdout.partition("\n")
    assert "aeenc.v1.IndexService" in services
    (result,) = json.loads(answer)["results"]
    assert [one["premise"]["text"] in FACTS for one in result["premises"]] == [True] * 3


@pytest.mark.slow
def test_long_work_is_cancelled_resumed_and_listed_by_its_id(
    home: Path, client: aeenc.Client, monkeypatch: pytest.MonkeyPatch
):
    def command(*words: str) -> tuple[int, dict[str, Any]]:
        done = CliRunner().invoke(app, ["--json", *words], env={"AEENC_HOME": str(home)})
        return done.exit_code, json.loads(done.stdout or done.stderr.splitlines()[-1])

    with monkeypatch.context() as slower:
        slower.setattr(SlowOracle, "pause_s", 5.0)  # the run must not end before the command has begun
        run_id = client.sampler.start_run(HYPOTHESES, corpus="facts", oracle="mine", k=5).id
        assert command("cancel", run_id)[1]["state"] == "CANCELLED"
    code, run = command("resume", run_id)
    assert (code, run["state"], run["trees_done"]) == (0, "SUCCEEDED", len(HYPOTHESES))
    assert run_id in [listed["run"] for listed in command("runs")[1]["runs"]]
    job_id = next(client.trainer.list_jobs()).id
    assert job_id in [listed["job"] for listed in command("jobs")[1]["jobs"]]
    assert command("follow", job_id)[1]["state"] == "SUCCEEDED"
    code, refused = command("resume", job_id)
    assert (code, refused["error"]["status"]) == (4, "FAILED_PRECONDITION")
    code, refused = command("resume", "nothing")
    assert (code, "neither a run nor a job" in refused["error"]["message"]) == (2, True)


@pytest.mark.slow
def test_other_options_restart_all_and_with_tokens_the_services_want_them_and_know_each_others(
    home: Path, client: aeenc.Client
):
    before, options = Fleet(home).running(), Fleet(home).options()
    assert options is not None
    secured = Fleet(home, token="t", admin_token="a")
    more = {"oracles": {**options.oracles, "other": "127.0.0.1:1"}, "people": {"team": 2}}
    targets = secured.up(replace(options, credentials=secured.credentials, **more))
    peers = {name: targets[name] for name in ("encoder", "index", "sampler", "trainer")}
    with pytest.raises(errors.Unauthenticated):
        client.index.retrieve("facts", ["the sun"])
    with contextlib.closing(aeenc.connect(**peers, token="t", admin_token="a")) as known:
        assert len(known.index.retrieve("facts", ["the sun"], k=3)[0]) == 3
        ended = known.sampler.wait(known.sampler.start_run(HYPOTHESES[:2], corpus="facts", oracle="mine", k=3).id)
        assert ended.state == types_pb2.WORK_STATE_SUCCEEDED, ended.error
        assert set(known.sampler.info().oracles) == {"mine", "other", "team"}
    assert "t" not in json.loads((home / "fleet.json").read_bytes())["options"].values()
    after = Fleet(home).running()
    assert {name for name in before if before[name] != after[name]} == set(before)
    Fleet(home).up(options)


@pytest.mark.slow
def test_down_ends_everything_and_up_finds_the_state(home: Path, client: aeenc.Client):
    def labels() -> set[Any]:  # those of runs go some time after their end
        listed = client.registry.list_labels()
        return {(one.name, one.versions) for one in listed if not one.name.startswith("run-")}

    before = labels()
    fleet = Fleet(home)
    processes = fleet.running()
    assert set(fleet.down()) == set(processes)
    assert not any(process.alive for process in processes.values())
    assert fleet.running() == {}
    # What is started in the background must not keep the command's own output open.
    aeenc_script = str(Path(sys.executable).with_name("aeenc"))
    command = [aeenc_script, "--json", "up", "--home", str(home)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=50, check=True)
    assert json.loads(done.stdout)["targets"] == fleet.targets()
    assert labels() == before != set()
    assert len(client.index.retrieve("facts", ["the sun"], k=3)[0]) == 3

"""`aeenc doctor`: what it finds, with the remedy, without a fleet and with one that is half away."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

import aeenc
from aeenc import errors
from aeenc.cli.main import app
from aeenc.transport.channel import AWAY
from aeenc.transport.targets import SERVICES, Targets
from services.launcher import doctor
from services.launcher.fleet import Fleet, Options
from services.launcher.private_redis import start_private_redis
from services.launcher.processes import ProcessId, free_port
from services.store.redis import connect

GONE = errors.Unavailable("no service answers", reason=AWAY)
SERVING = {"state": "SERVING", "reason": "", "software": aeenc.__version__}


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Addresses at which nothing listens, in the environment of a machine without a fleet."""
    monkeypatch.setenv("AEENC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AEENC_TIMEOUT_S", "2")
    taken: set[str] = set()
    for name in SERVICES:
        taken.add(target := f"127.0.0.1:{free_port(taken)}")
        monkeypatch.setenv(f"AEENC_{name.upper()}", target)
    return dict(zip(SERVICES, sorted(taken), strict=True))


def checks(found: list[doctor.Finding], state: str) -> dict[str, str]:
    return {one.check: f"{one.about} | {one.remedy}" for one in found if one.state == state}


def test_a_machine_without_a_fleet_is_well(nowhere: dict[str, str], tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["doctor", "--json"])
    found = json.loads(ended.stdout)
    assert (ended.exit_code, found["wrong"]) == (0, 0), ended.stdout
    notes = {one["check"]: one["remedy"] for one in found["findings"] if one["state"] == "note"}
    assert [notes.get(name) for name in SERVICES] == ["aeenc up"] * 4
    assert not (tmp_path / "home").exists(), "to look changes nothing"


def test_a_port_that_another_program_has_taken_is_wrong(
    nowhere: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        monkeypatch.setenv("AEENC_INDEX", f"127.0.0.1:{foreign.getsockname()[1]}")
        monkeypatch.setenv("AEENC_TIMEOUT_S", "3")  # time for a handshake that never comes
        ended = CliRunner().invoke(app, ["doctor", "--json"])
    wrong = [one for one in json.loads(ended.stdout)["findings"] if one["state"] == "wrong"]
    assert ended.exit_code == 1
    assert [one["check"] for one in wrong] == ["index"]
    assert "taken" in wrong[0]["about"]
    assert "--base-port" in wrong[0]["remedy"]


def test_a_malformed_address_is_told_with_its_variable_and_the_rest_goes_on(
    nowhere: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AEENC_INDEX", "127.0.0.1")
    monkeypatch.setenv("AEENC_ADMIN_TOKEN", "secret")
    ended = CliRunner().invoke(app, ["doctor", "--json"])
    found = {one["check"]: one for one in json.loads(ended.stdout)["findings"]}
    index = found["index"]
    assert (ended.exit_code, index["state"]) == (1, "wrong")
    assert {found[name]["state"] for name in SERVICES if name != "index"} == {"note"}, "nothing says that a fleet is up"
    assert "AEENC_INDEX" in index["about"]
    assert index["remedy"] == "", "the index was never asked, so its log says nothing"


def test_a_service_that_is_away_is_wrong_where_others_answer() -> None:
    answers: dict[str, doctor.ServiceReport] = {"encoder": SERVING, "index": GONE}
    found = list(doctor._services(Targets(), answers, is_up=False))
    assert list(checks(found, "ok")) == ["encoder"]
    assert "aeenc up" in checks(found, "wrong")["index"]
    alone: dict[str, doctor.ServiceReport] = {"index": GONE}
    assert "index" in checks(list(doctor._services(Targets(index="far:1"), alone, is_up=False)), "wrong")


def test_a_wrong_token_and_a_foreign_release_are_wrong() -> None:
    answers: dict[str, doctor.ServiceReport] = {
        "encoder": errors.Unauthenticated("the token is wrong"),
        "index": {**SERVING, "software": "7.0.0"},
        "trainer": {**SERVING, "state": "DEGRADED", "reason": "Redis is away"},
    }
    found = list(doctor._services(Targets(), answers, is_up=True))
    wrong = checks(found, "wrong")
    assert "AEENC_TOKEN" in wrong["encoder"]
    assert "7.0.0" in wrong["index"]
    assert "Redis is away" in checks(found, "note")["trainer"]


@pytest.mark.parametrize(
    ("one", "other", "work"),
    [("0.1.0", "0.2.9", True), ("0.1.0", "0.3.0", False), ("1.0.0", "0.9.0", False), ("0.1.0", "", False)],
)
def test_releases_work_together_with_the_minor_version_before_and_after(one: str, other: str, work: bool) -> None:
    assert doctor.neighbours(one, other) is work


async def test_a_redis_that_may_lose_what_it_has_acknowledged_is_wrong(tmp_path: Path) -> None:
    server = start_private_redis(tmp_path / "redis")
    fleet, identity = Fleet(tmp_path), ProcessId.of(server.process.pid)
    assert identity is not None
    fleet._write(Options(), {}, {"redis": identity}, server.url)
    redis = connect(server.url)
    try:
        assert [one.state for one in await doctor._redis(fleet)] == ["ok"]
        await redis.config_set("appendfsync", "everysec")
        await redis.config_set("maxmemory", "100mb")
        await redis.config_set("maxmemory-policy", "allkeys-lru")
        said = " ".join(f"{one.about} {one.remedy}" for one in await doctor._redis(fleet) if one.state == "wrong")
        assert "appendfsync everysec" in said
        assert "maxmemory-policy noeviction" in said
    finally:
        await redis.aclose()
        server.stop()
    assert await doctor._redis(fleet) == [doctor.Finding("redis", "ok", f"{doctor.find_redis_server()}, not running")]


async def test_a_redis_that_does_not_tell_its_settings_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_private_redis(tmp_path / "redis")
    monkeypatch.setenv("AEENC_SAMPLER_REDIS_URL", server.url.replace("://", "://managed@"))
    monkeypatch.setenv("AEENC_SAMPLER_REDIS_PASSWORD", "hidden")
    redis = connect(server.url)
    try:
        await redis.execute_command("ACL", "SETUSER", "managed", "on", ">hidden", "~*", "+@all", "-config")
        found = await doctor._redis(Fleet(tmp_path))
        monkeypatch.setenv("AEENC_SAMPLER_REDIS_PASSWORD", "another")
        [refused] = await doctor._redis(Fleet(tmp_path))
    finally:
        await redis.aclose()
        server.stop()
    assert [one.state for one in found] == ["ok", "note"]
    assert "does not tell appendfsync" in found[1].about
    assert (refused.state, "REDIS_PASSWORD" in refused.about) == ("wrong", True)
    assert not [one for one in (*found, refused) if "hidden" in str(one) or "another" in str(one)]


async def test_a_redis_of_yours_that_is_away_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AEENC_SAMPLER_REDIS_URL", f"unix://{tmp_path}/none.sock")
    [found] = await doctor._redis(Fleet(tmp_path))
    assert found.state == "wrong"
    assert "none.sock" in found.about


def test_few_files_a_full_disk_and_a_gpu_that_nothing_uses_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (doctor._files(256).state, doctor._files(4096).state, doctor._files(-1).state) == ("wrong", "ok", "ok")
    assert doctor._disk(tmp_path / "not" / "yet").state == "ok"
    monkeypatch.setattr(doctor, "LEAST_FREE_BYTES", 1 << 80)
    assert "aeenc gc" in doctor._disk(tmp_path).remedy
    assert [one.state for one in doctor._gpu(None)] == ["wrong"]
    monkeypatch.setattr(doctor, "version", {"torch": "2.13.0+cpu", "onnxruntime": "1.31.1"}.__getitem__)
    assert [one.state for one in doctor._gpu(["NVIDIA H200, 570.1, 143771 MiB"])] == ["ok", "note", "note"]


def test_two_distributions_of_one_module_and_a_missing_one_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name in {"torch", "faiss-gpu", "faiss-cpu"}:
            return "1"
        raise doctor.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", version)
    found = list(doctor._packages())
    assert [one.state for one in found] == ["wrong", "wrong", "ok"]
    assert "encoder-cpu" in found[0].remedy
    assert "uninstall faiss-cpu and faiss-gpu" in found[1].remedy


def test_a_proxy_that_leads_to_a_service_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    targets = Targets(encoder="encoder.example:50051")
    [found] = doctor._proxy(targets)
    assert (found.check, found.state) == ("proxy", "note")
    assert "encoder is called by way of the proxy proxy.example:3128" in found.about

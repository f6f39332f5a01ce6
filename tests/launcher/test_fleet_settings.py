"""The settings that a fleet passes to its services."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from aeenc.cli.main import app
from aeenc.oracle import Task
from aeenc.oracles.remote import RemoteOracle
from services.kit.healthcheck import connects
from services.launcher import processes
from services.launcher.fleet import Fleet, Options
from services.launcher.private_redis import start_private_redis
from services.launcher.processes import LOCALHOST, free_port
from services.store.redis import connect
from support.command import running
from support.waiting import until

SAMPLE = Path(__file__).parents[2] / "data" / "sample"
TARGETS = dict.fromkeys(("encoder", "index", "sampler", "trainer", "workbench"), "127.0.0.1:1")


def test_curves_of_jobs_lie_in_the_home_unless_another_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("AEENC_TRAINER_TENSORBOARD_DIR", raising=False)
    fleet = Fleet(tmp_path)
    told = fleet._settings("trainer", Options(), TARGETS, "redis://127.0.0.1:1/0")
    assert told["tensorboard_dir"] == str(tmp_path.resolve() / "tensorboard")
    for named in ("/elsewhere", ""):
        monkeypatch.setenv("AEENC_TRAINER_TENSORBOARD_DIR", named)
        assert "tensorboard_dir" not in fleet._settings("trainer", Options(), TARGETS, "redis://127.0.0.1:1/0")


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs `aeenc up` with flags, which starts nothing and keeps its options as it would."""

    def keep(fleet: Fleet, options: Options, _: object) -> dict[str, str]:
        fleet._write(options, TARGETS, {}, "")
        return TARGETS

    monkeypatch.setattr(Fleet, "up", keep)
    return lambda *flags: CliRunner().invoke(app, ["up", "--home", str(tmp_path), *flags])


def test_the_token_of_an_oracle_comes_from_a_file_and_is_kept_nowhere_else(tmp_path: Path, up: Callable[..., Result]):
    file, fleet = tmp_path / "mine.token", Fleet(tmp_path)

    def oracles() -> dict[str, dict[str, str]]:
        options = fleet.options()
        assert options is not None
        told: dict[str, dict[str, str]] = json.loads(fleet._settings("sampler", options, TARGETS, "")["oracles"])
        return told

    file.write_text("secret-of-mine\n")
    first = up("--oracle", "mine=h:1", "--oracle", "open=h:2", "--oracle-token", f"mine={file}")
    assert (first.exit_code, "secret" in first.output) == (0, False)
    assert oracles()["mine"] == {"target": "h:1", "token": "secret-of-mine"}
    assert oracles()["open"] == {"target": "h:2"}
    assert "secret" not in (tmp_path / "fleet.json").read_text()
    record = (tmp_path / "fleet.json").read_bytes()
    assert up().exit_code == 0
    assert (tmp_path / "fleet.json").read_bytes() == record, "a later `up` needs no flags"
    file.write_text("secret-of-today")
    assert up().exit_code == 0
    assert (tmp_path / "fleet.json").read_bytes() != record, "another token is another option, which restarts"
    assert up("--oracle", "mine=elsewhere:1").exit_code == 0
    assert oracles()["mine"] == {"target": "elsewhere:1"}, "it goes to no other address"


def test_an_oracle_is_added_to_those_before_and_one_that_changes_is_said(tmp_path: Path, up: Callable[..., Result]):
    assert up("--oracle", "mine=h:1", "--oracle", "open=h:2").exit_code == 0
    told = up("--oracle", "other=h:3", "--oracle", "mine=h:4", "--oracle", "open=")
    assert "oracle mine: no longer at h:1" in told.stderr
    assert "oracle open: forgotten" in told.stderr
    options = Fleet(tmp_path).options()
    assert options is not None
    assert options.oracles == {"mine": "h:4", "other": "h:3"}


def test_a_first_up_and_a_down_of_nothing_say_where_another_fleet_runs(tmp_path: Path, up: Callable[..., Result]):
    other = tmp_path / "other"
    other.mkdir()
    (other / "fleet.json").write_text("{}")
    environment = {"AEENC_ENCODER_ARTIFACTS_DIR": str(other / "artifacts")}
    with running(["sleep", "60"], env=environment) as process:
        while b"ARTIFACTS_DIR" not in Path(f"/proc/{process.pid}/environ").read_bytes():
            time.sleep(0.01)  # the kernel shows it a moment after the program has begun
        told = [" ".join(up().stderr.split()), CliRunner().invoke(app, ["down", "--home", str(tmp_path)]).stdout]
    assert f"a new fleet in {tmp_path}; another one runs in " in told[0]
    assert all(str(other) in "".join(one.split()) for one in told)
    assert "a new fleet" not in up().stderr


def test_another_split_answers_from_the_trees_that_are_known(tmp_path: Path, up: Callable[..., Result]):
    for flags, split in ((["--gold", str(SAMPLE)], "train"), (["--split", "dev"], "dev"), ([], "dev")):
        assert up(*flags).exit_code == 0
        options = Fleet(tmp_path).options()
        assert options is not None
        assert (options.gold_trees, options.gold_split) == (str(SAMPLE), split)


def test_the_people_of_a_fleet_have_a_guideline(tmp_path: Path, up: Callable[..., Result]):
    assert up("--people", "team=2", "--guideline", str(tmp_path / "guideline.md")).exit_code == 0
    assert up().exit_code == 0, "a later `up` needs no flags"
    options = Fleet(tmp_path).options()
    assert options is not None
    queues = json.loads(Fleet(tmp_path)._settings("sampler", options, TARGETS, "")["queues"])
    assert queues == {"team": {"overlap": 2, "guideline": str((tmp_path / "guideline.md").resolve())}}


def test_the_workbench_is_an_option_that_needs_its_distribution(
    tmp_path: Path, up: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
):
    fleet, missing = Fleet(tmp_path), "services.launcher.commands.find_spec"
    monkeypatch.setattr(missing, lambda _: "found")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "aeenc_workbench.py").write_text("raise SystemExit('AEENC_WORKBENCH_URL: wrong')")
    assert up("--workbench").stderr.endswith("makes no link to sign in by: AEENC_WORKBENCH_URL: wrong\n")
    assert up("--no-workbench").exit_code == 0
    monkeypatch.setattr(Fleet, "sign_in_link", lambda _: "http://127.0.0.1:1/sign-in?link=" + 100 * "x")
    assert "sign-in" not in up("--people", "team").output
    assert f"link={100 * 'x'}\n" in up("--workbench").output, "an address in one line"
    asked = fleet.options()
    assert asked is not None
    assert (asked.workbench, asked.people) == (True, {"team": 1})
    assert "sign-in" in up().output, "a later `up` needs no flags"
    monkeypatch.setattr(missing, lambda _: None)
    refused = up()
    assert refused.exit_code == 2
    assert "pip install ./clients/workbench" in refused.output
    assert up("--no-workbench").exit_code == 0
    assert fleet.options() == replace(asked, workbench=False)


def test_the_workbench_measures_with_the_dev_split_of_the_fleets_gold_trees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    commands: list[list[str]] = []
    monkeypatch.setattr(processes, "start", lambda command, *_: commands.append(command))
    only_train = tmp_path / "train"
    shutil.copytree(SAMPLE, only_train, ignore=shutil.ignore_patterns("dev.jsonl"))
    for folder in (SAMPLE, only_train, ""):
        Fleet(tmp_path)._start("workbench", Options(gold_trees=str(folder)), TARGETS, "")
    assert commands[0][-2:] == ["--gold", str(SAMPLE.resolve())]
    assert ["--gold" in command for command in commands] == [True, False, False]


def test_the_workbench_speaks_no_tls_whatever_the_user_has_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    given: dict[str, str] = {}
    monkeypatch.setattr(processes, "start", lambda _command, environment, _log: given.update(environment))
    Fleet(tmp_path)._start("workbench", Options(), TARGETS, "")
    assert [given[f"AEENC_{name}"] for name in ("CA", "CERT", "KEY")] == ["", "", ""]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--oracle-token", "secret"], "--oracle-token is not NAME=FILE"),
        (["--oracle-token", "other=x"], "of no oracle of yours (mine)"),
        (["--oracle-token", "mine=nothing"], "nothing cannot be read (No such file or directory)"),
        (["--oracle-token", "mine=empty"], "is empty; write the token"),
        (["--oracle-token", "mine=blank"], "not visible ASCII"),
        (["--split", "dev"], "name its trees, too, with --gold DIR"),
        (["--gold", str(SAMPLE), "--split", "nowhere"], "nowhere"),
        (["--people", "=2"], "--people '=2' is not NAME"),
        (["--oracle", "mine=", "--oracle", "mine"], "--oracle 'mine' is neither"),
    ],
)
def test_what_cannot_be_had_stops_up_before_anything_is_noted_and_no_token_is_shown(
    tmp_path: Path, up: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, flags: list[str], said: str
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()
    (tmp_path / "blank").write_text("two secret words")
    refused = up("--oracle", "mine=h:1", *flags)
    assert refused.exit_code == 2
    assert said in " ".join(refused.output.replace("│", "").split())
    assert "secret" not in refused.output
    assert "a new fleet" not in refused.output
    assert not (tmp_path / "fleet.json").exists()


def test_named_credentials_go_to_every_service_beside_the_tokens_and_are_kept(tmp_path: Path):
    fleet = Fleet(tmp_path, token="common", admin_token="admin")
    for service in ("encoder", "index", "sampler", "trainer"):
        told = fleet._settings(service, Options(tokens_file="/run/tokens.toml"), TARGETS, "redis://127.0.0.1:1/0")
        assert (told["tokens_file"], told["peer_token"]) == ("/run/tokens.toml", "common")
        assert "tokens_file" not in fleet._settings(service, Options(), TARGETS, "redis://127.0.0.1:1/0")
    fleet._write(Options(tokens_file="/run/tokens.toml"), TARGETS, {}, "")
    assert fleet.options() == Options(tokens_file="/run/tokens.toml")


def test_an_admin_token_alone_goes_to_every_service_and_another_one_restarts_them(tmp_path: Path):
    fleet = Fleet(tmp_path, admin_token="admin")
    for service in ("encoder", "index", "sampler", "trainer"):
        told = fleet._settings(service, Options(), TARGETS, "redis://127.0.0.1:1/0")
        assert (told["admin_token"], told["peer_admin_token"]) == ("admin", "admin")
        assert not {"token", "peer_token"} & set(told)
    fleets = [Fleet(tmp_path), fleet, Fleet(tmp_path, admin_token="other"), Fleet(tmp_path, token="admin")]
    assert len({one.credentials for one in fleets}) == len(fleets)


@pytest.mark.parametrize("token", [None, "common"])
async def test_the_gold_oracle_wants_the_token_of_the_fleet_and_never_that_of_an_oracle_of_yours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str | None
):
    monkeypatch.setenv("AEENC_ORACLE_TOKEN", "of-yours")
    fleet, options = Fleet(tmp_path, token=token), Options(gold_trees=str(SAMPLE))
    targets = {**TARGETS, "gold": f"{LOCALHOST}:{free_port(set())}"}
    gold = fleet._start("gold", options, targets, "")
    try:
        await until(lambda: connects(targets["gold"]))
        oracle = RemoteOracle(**fleet._oracles(options, targets)["gold"])  # as the sampler is told
        assert (await oracle.judge(Task("t", "r", "no query of these trees", (), (), ()))).verdicts == {}
        await oracle.close()
    finally:
        processes.end([gold], 5)


async def test_a_secret_that_is_not_set_is_not_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AEENC_WORKBENCH_TOKEN", "of-another-deployment")
    command = ["sh", "-c", "echo ${AEENC_WORKBENCH_TOKEN-unset}"]
    processes.start(command, {"AEENC_WORKBENCH_TOKEN": None}, tmp_path / "log")
    await until(lambda: processes.tail(tmp_path / "log") == "unset")


def test_the_workbench_sends_no_tokens_but_the_fleets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    given: list[tuple[str, str]] = []
    names = ("AEENC_WORKBENCH_TOKEN", "AEENC_ADMIN_TOKEN")
    monkeypatch.setattr(processes, "start", lambda _, told, __: given.append((told[names[0]], told[names[1]])))
    for name in names:
        monkeypatch.setenv(name, "of-another-deployment")
    for tokens in ({}, {"token": "common"}, {"token": "common", "admin_token": "admin"}):
        Fleet(tmp_path, **tokens)._start("workbench", Options(), TARGETS, "")
    assert given == [(None, None), ("common", "common"), ("common", "admin")]


def test_only_its_owner_reads_the_record_of_a_fleet_which_may_have_a_password(tmp_path: Path):
    record = tmp_path / "fleet.json"
    for _ in range(2):
        Fleet(tmp_path)._write(Options(redis_url="redis://:secret@db:6379/0"), TARGETS, {}, "")
        assert stat.S_IMODE(record.stat().st_mode) == 0o600
        record.chmod(0o644)  # as an earlier release has made it


async def test_the_log_of_a_private_redis_stays_bounded_by_its_data(tmp_path: Path) -> None:
    def logged_bytes() -> int:
        total = 0
        for path in tmp_path.rglob("*.aof"):
            with suppress(FileNotFoundError):  # a rewrite has just replaced it
                total += path.stat().st_size
        return total

    server = start_private_redis(tmp_path)
    redis = connect(server.url)
    try:
        for _ in range(12):  # a little more than is kept; what comes during the rewriting would stay until the next
            await redis.set("again", "x" * 100_000)
        await until(lambda: 0 < logged_bytes() < 500_000)
    finally:
        await redis.aclose()
        server.stop()
    assert (tmp_path / "redis.log").stat().st_size < 1000, "every rewrite is told"


def test_every_service_bounds_its_own_log(tmp_path: Path):
    fleet = Fleet(tmp_path)
    for service in TARGETS:
        told = fleet._settings(service, Options(), TARGETS, "redis://127.0.0.1:1/0")
        assert told["log_file"] == str(tmp_path.resolve() / "logs" / f"{service}.log")


def test_the_end_of_a_log_has_no_lines_that_only_point(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("Traceback:\n    raise x\n    ^^^^^^^\n      ~~^~~\nOSError: read-only\n")
    assert processes.tail(tmp_path / "log") == "Traceback:\n    raise x\nOSError: read-only"


def test_the_end_of_a_log_is_the_reason_alone_where_the_service_has_told_one(tmp_path: Path) -> None:
    reason = "the service stopped: the disk is full; free some space"
    (tmp_path / "log").write_text(f"Traceback:\n    raise x\nOSError: read-only\n{reason}\n")
    assert processes.tail(tmp_path / "log") == reason

"""The command line: results for people and programs, exit codes for scripts, targets, downloads, the oracle."""

from __future__ import annotations

import http.server
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hashed_encoder import RunningEncoder
from typer.testing import CliRunner

import aeenc
from aeenc import errors
from aeenc.cli.data import blob_id, fetch_entailmentbank
from aeenc.cli.main import app, exit_code_of
from aeenc.cli.output import EndedBadly
from aeenc.cli.sample import hypotheses_of
from aeenc.oracles.client import OracleClient
from aeenc.sync import LOOP
from aeenc.trees import Dataset
from services.index.__main__ import build
from services.index.settings import IndexSettings

SAMPLE = Path(__file__).parents[2] / "data" / "sample"
FACTS = ["a magnet attracts iron", "a nail is made of iron", "the sun is a star"]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running index whose encoder is a hashed one."""
    store = tmp_path_factory.mktemp("cli") / "artifacts"

    async def start() -> tuple[RunningEncoder, Any]:
        encoder = RunningEncoder()
        await encoder.server.start()
        server = build(IndexSettings(port=0, artifacts_dir=store, encoder_target=encoder.target))
        await server.start()
        return encoder, server

    encoder, server = LOOP.run(start())
    yield f"127.0.0.1:{server.port}"
    LOOP.run(server.stop(0.2))
    LOOP.run(encoder.stop())


def run(*words: str, index: str = "127.0.0.1:1") -> Any:
    """Runs `aeenc` in this process."""
    return CliRunner().invoke(app, ["--index", index, "--timeout", "3", *words])


def of_json(result: Any) -> dict[str, Any]:
    """The one JSON object on stdout."""
    assert result.exit_code == 0, result.stderr
    values: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])  # the index of this process logs there, too
    return values


def test_a_corpus_of_facts_is_built_and_retrieved_from(index: str, tmp_path: Path):
    facts = tmp_path / "facts.txt"
    facts.write_text("\n".join([*FACTS, "", FACTS[0]]))
    built = of_json(run("--json", "corpus", "build", "facts", "--facts", str(facts), index=index))
    assert (built["corpus"], built["premises"], built["active"]) == ("facts", 3, True)
    found = of_json(run("retrieve", "facts", FACTS[0], "-k", "2", "--json", index=index))
    (result,) = found["results"]
    assert len(result["premises"]) == 2
    assert FACTS[0] not in [premise["text"] for premise in result["premises"]], "a premise does not explain itself"


def test_a_corpus_of_trees_is_built_with_a_table_for_people(index: str):
    result = run("corpus", "build", "sample", "--data", str(SAMPLE), index=index)
    assert result.exit_code == 0, result.stderr
    assert "1176" in result.stdout
    shown = run("retrieve", "sample", "a magnet attracts an iron nail", "-k", "3", index=index)
    assert "premise" in shown.stdout
    assert "magnet" in shown.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["retrieve", "nothing", "x"], 2, "unknown"),
        (["retrieve", "facts", ""], 2, "give a sentence"),
        (["retrieve", "facts", "x", "-k", "5000"], 2, "1 to 1,000"),
        (["corpus", "build", "x", "--facts", "no-such-file"], 2, "no-such-file"),
        (["corpus", "build", "x"], 2, "--data DIR or --facts FILE"),
        (["corpus", "build", "../x", "--data", str(SAMPLE)], 2, "no corpus name"),
        (["sample", "facts", "--data", "no-such-folder"], 2, "no-such-folder"),
        (["oracle", "gold", "--trees", str(SAMPLE), "--split", "nothing"], 2, "it has train, dev, test"),
    ],
)
def test_wrong_input_ends_with_status_2_and_names_the_value(index: str, words: list[str], code: int, said: str):
    result = run(*words, index=index)
    assert result.exit_code == code, result.stderr
    assert said in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.stderr
    problem = json.loads(run("--json", *words, index=index).stderr.splitlines()[-1])
    assert problem["error"]["status"] in {"INVALID_ARGUMENT", "NOT_FOUND"}


def test_a_malformed_tree_file_is_named_with_its_line(index: str, tmp_path: Path):
    broken = tmp_path / "broken"
    shutil.copytree(SAMPLE, broken)
    trees = broken / "dataset" / "task_1" / "dev.jsonl"
    lines = trees.read_text().splitlines()
    trees.write_text("\n".join([lines[0], lines[1][:-20], *lines[2:]]))
    result = run("corpus", "build", "broken", "--data", str(broken), index=index)
    assert result.exit_code == 2
    assert "dev.jsonl:2" in result.stderr.replace("\n", "")


def test_a_service_that_is_away_ends_with_status_3_and_its_address():
    result = run("retrieve", "facts", "x")
    assert (result.exit_code, "127.0.0.1:1" in result.stderr) == (3, True)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.FailedPrecondition("x"), 4),
        (errors.Aborted("x"), 4),
        (errors.AlreadyExists("x"), 4),
        (errors.VersionNotLoaded("x"), 4),
        (errors.Unauthenticated("x"), 2),
        (errors.TooLarge("x"), 2),
        (errors.Overloaded("x"), 3),
        (errors.DeadlineExceeded("x"), 3),
        (EndedBadly("x"), 5),
        (errors.DataLoss("x"), 1),
    ],
)
def test_every_kind_of_error_has_its_exit_code(error: errors.AeencError, code: int):
    assert exit_code_of(error) == code


def test_targets_come_from_options_then_the_environment_then_the_fleet(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".aeenc").mkdir()
    fleet = tmp_path / ".aeenc" / "fleet.json"
    fleet.write_text(json.dumps({"format_version": 1, "targets": {"index": index, "gold": "127.0.0.1:2"}}))

    def ask(*options: str) -> Any:
        return CliRunner().invoke(app, ["--timeout", "2", *options, "retrieve", "nothing", "x"])

    assert "is unknown" in ask().stderr, "the fleet's index answers"
    monkeypatch.setenv("AEENC_INDEX", "127.0.0.1:1")
    assert "127.0.0.1:1" in ask().stderr
    assert "is unknown" in ask("--index", index).stderr
    monkeypatch.delenv("AEENC_INDEX")
    fleet.write_text("{")
    assert "fleet.json:1" in ask().stderr.replace("\n", "")


def test_hypotheses_have_ids_that_are_unique_in_a_run():
    for split in ("train", "dev", "test"):
        named = hypotheses_of(Dataset.load(SAMPLE), split)
        assert len({name for name, _ in named}) == len({text for _, text in named}) == len(named)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A loopback site with two files, and their blob ids."""
    contents = {"dataset/a.jsonl": b"one\n", "facts.json": b"{}"}
    for name, content in contents.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_bytes(content)
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(tmp_path / "site")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", {name: blob_id(content) for name, content in contents.items()}
    server.shutdown()


def test_a_blob_id_is_the_one_that_git_gives():
    assert blob_id(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"


def test_data_is_fetched_whole_and_found_there_the_second_time(site: tuple[str, dict[str, str]], tmp_path: Path):
    url, files = site
    assert fetch_entailmentbank(tmp_path / "to", url=url, files=files)
    assert (tmp_path / "to" / "dataset" / "a.jsonl").read_text() == "one\n"
    assert not fetch_entailmentbank(tmp_path / "to", url=url, files=files)


def test_a_file_that_is_not_the_expected_one_leaves_nothing(site: tuple[str, dict[str, str]], tmp_path: Path):
    url, files = site
    with pytest.raises(errors.DataLoss, match="nothing was kept"):
        fetch_entailmentbank(tmp_path / "to", url=url, files={**files, "facts.json": "0" * 40})
    with pytest.raises(errors.Unavailable, match="cannot be fetched"):
        fetch_entailmentbank(tmp_path / "to", url=url, files={**files, "missing.json": "0" * 40})
    assert [entry.name for entry in tmp_path.iterdir()] == ["site"]


def test_the_gold_oracle_serves_until_sigterm_and_ends_with_status_0():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "aeenc.cli.main", "--json", "oracle", "gold", "--trees", str(SAMPLE)]
    process = subprocess.Popen([*command, "--address", f"127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["address"] == f"127.0.0.1:{port}"
    query = Dataset.load(SAMPLE).queries("train")[0]
    texts = [*query.gold, "no such fact"]

    async def ask() -> list[bool]:
        client = OracleClient(aeenc.Channel(f"127.0.0.1:{port}", timeout_s=5))
        shown = tuple(aeenc.Candidate(str(n), text, n, 0.0) for n, text in enumerate(texts))
        (answer,) = await client.judge("r", [aeenc.Task("t", "r", query.text, (), (), shown)])
        await client.channel.close()
        return [verdict.judgement == aeenc.oracle.EXPLAINS for _, verdict in answer.verdicts]

    assert LOOP.run(ask()) == [True] * len(query.gold) + [False]
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=5) == 0

"""The command line: results for people and programs, exit codes for scripts, targets, downloads, the oracle."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from aeenc.cli.learning.runs import hypotheses_of
from aeenc.cli.main import _app, app, summaries
from aeenc.transport.sync import LOOP
from aeenc.trees import Dataset
from services.index.__main__ import build
from services.index.settings import IndexSettings
from support.worlds.index_world import RunningEncoder

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
        (["corpus", "build", "../x", "--data", str(SAMPLE)], 2, "not a corpus name"),
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


def test_hypotheses_have_ids_that_are_unique_in_a_run():
    for split in ("train", "dev", "test"):
        named = hypotheses_of(Dataset.load(SAMPLE), split)
        assert len({name for name, _ in named}) == len({text for _, text in named}) == len(named)


def test_without_the_services_their_commands_say_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ())
    sdk_alone = _app()
    of_the_services = set(get_command(app).commands) - set(get_command(sdk_alone).commands)
    assert {"up", "token"} < of_the_services
    for name in of_the_services:
        refused = CliRunner().invoke(sdk_alone, [name])
        assert refused.exit_code == 2
        told = f"`aeenc {name}` is not installed here; it comes with "
        shown = " ".join(refused.stderr.replace("│", " ").split())
        assert told in shown
        assert "pip install ./clients/python '.[one-machine]'" in shown


_HEAVY = {"numpy", "scipy", "faiss", "onnxruntime", "structlog", "torch"}


@pytest.mark.parametrize(
    ("words", "spared"),
    [
        (["--version"], {"rich", "pydantic", "grpc"}),
        (["--help"], {"rich", "pydantic", "grpc"}),
        (["retrieve", "corpus", "half \ud800"], {"rich", "pydantic"}),
        (["--timeout", "0.1", "status"], set()),
    ],
)
def test_a_command_imports_only_what_it_needs(words: list[str], spared: set[str]):
    nobody = [word for name in ("encoder", "index", "sampler", "trainer") for word in (f"--{name}", "127.0.0.1:1")]
    argv = ["aeenc", *nobody, *words]
    script = f"import atexit, sys; sys.argv = {argv!r}; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    script += "from aeenc.cli.entry import main; main()"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    imported = {name.partition(".")[0] for name in ended.stderr.splitlines()[-1].split()}
    assert "typer" in imported
    assert not imported & (_HEAVY | spared)


def test_the_list_of_commands_has_the_help_of_each_in_a_section_of_its_kind():
    everything: Any = get_command(app)
    told, missing = summaries()
    assert told == {
        name: " ".join((one.help or "").partition("\n\n")[0].split()) for name, one in everything.commands.items()
    }
    assert not missing
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")] == [
        *("Options:", "Start:", "Search:", "Learn:", "People:", "Operate:")
    ]


@pytest.mark.parametrize("words", [[], ["corpus"], ["corpus", "build"], ["runs"], ["retrieve"]], ids=" ".join)
def test_help_is_plain_text(words: list[str]):
    shown = CliRunner().invoke(app, [*words, "--help"])
    assert (shown.exit_code, "Options:" in shown.stdout, "\N{BOX DRAWINGS LIGHT VERTICAL}" in shown.stdout) == (
        *(0, True, False),
    )


def test_a_command_runs_after_help_was_shown_in_the_same_process():
    assert CliRunner().invoke(app, ["--help"]).exit_code == 0
    refused = CliRunner().invoke(app, ["retrieve", "science", "a text", "-k", "no"])
    assert (refused.exit_code, "no such option" in refused.output.lower()) == (2, False)
    assert "Invalid value" in refused.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script_of_completion(shell: str) -> None:
    printed = CliRunner().invoke(app, ["completion", shell])
    assert (printed.exit_code, f"complete_{shell}" in printed.stdout) == (0, True)
    environment = {
        "bash": {"COMP_WORDS": "aeenc corpus re", "COMP_CWORD": "2"},
        "zsh": {"_TYPER_COMPLETE_ARGS": "aeenc corpus re"},
        "fish": {"_TYPER_COMPLETE_ARGS": "aeenc corpus re", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    completed = CliRunner().invoke(
        app, [], prog_name="aeenc", env={"_AEENC_COMPLETE": f"complete_{shell}", **environment}
    )
    assert "repair" in completed.stdout
    assert "build" not in completed.stdout

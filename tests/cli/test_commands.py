"""The command line as a whole: what it imports, its help, and its completion."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from aeenc.cli.main import _app, app, summaries


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
        of_it = "./clients/workbench" if name == "workbench" else "'.[one-machine]'"
        assert f"pip install ./clients/python {of_it}" in shown


_HEAVY = {"numpy", "scipy", "faiss", "onnxruntime", "structlog", "torch"}


@pytest.mark.parametrize(
    ("words", "spared"),
    [
        (["--version"], {"rich", "pydantic", "grpc"}),
        (["--help"], {"rich", "pydantic", "grpc"}),
        (["retrieve", "corpus", "half \ud800"], {"rich", "pydantic", "aeenc.trees", "aeenc.values.types"}),
        (["--timeout", "0.1", "status"], set()),
    ],
)
def test_a_command_imports_only_what_it_needs(words: list[str], spared: set[str]):
    nobody = [word for name in ("encoder", "index", "sampler", "trainer") for word in (f"--{name}", "127.0.0.1:1")]
    argv = ["aeenc", *nobody, *words]
    script = f"import atexit, sys; sys.argv = {argv!r}; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    script += "from aeenc.cli.entry import main; main()"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    modules = set(ended.stderr.splitlines()[-1].split())
    imported = modules | {name.partition(".")[0] for name in modules}
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


def test_the_help_of_a_group_has_the_first_sentence_of_each_command_whole():
    groups = {name: one.commands for name, one in get_command(app).commands.items() if hasattr(one, "commands")}
    assert {"corpus", "data", "export"} <= set(groups)
    for group, commands in groups.items():
        shown = " ".join(CliRunner().invoke(app, [group, "--help"]).stdout.split())
        for name, one in commands.items():
            first = re.split(r"(?<=\.)\s", one.help.partition("\n\n")[0])[0]
            assert f"{name} {' '.join(first.split())}" in shown


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
    printed = CliRunner().invoke(app, [], prog_name="aeenc", env={"_AEENC_COMPLETE": f"source_{shell}"})
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

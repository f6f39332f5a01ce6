"""What reaches a terminal: texts of facts are shown, never obeyed, in whatever encoding."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.text import Text

from aeenc import errors, values
from aeenc.cli.output import Output, fields_of, table

FACT = "ice \x1b[31mred \x1b]0;owned\x07 \x9b2J \u202egnorw\u202c \x00 \x7f end"
OBEYED = ("\x1b", "\x07", "\x9b", "\u202e", "\x00", "\x7f")


@pytest.mark.parametrize(
    "write",
    [
        lambda out: out.result({}, table(["premise"], [(FACT,)], title=FACT)),
        lambda out: out.result({"premise": FACT}),
        lambda out: out.result({}, FACT, Text(FACT)),
        lambda out: out.note(FACT),
        lambda out: out.error(errors.NotFound(FACT)),
    ],
)
def test_what_a_terminal_would_obey_is_shown_as_a_sign(capsys: pytest.CaptureFixture[str], write) -> None:
    write(Output())
    told = "".join(capsys.readouterr())
    assert not [code for code in OBEYED if code in told]
    assert "ice" in told
    assert "\ufffd" in told


def test_a_line_of_a_result_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    line = "in [bold]corpus[/] :smile: [a] and [/b]"
    Output().result({}, line)
    assert capsys.readouterr().out == f"{line}\n"


def test_a_letter_that_the_terminals_encoding_lacks_ends_no_command(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text("")
    script = "import sys; from aeenc.cli import main; sys.argv[1:] = ['--help']\ntry:\n    main.main()\n"
    script += "except SystemExit:\n    print('caf\u00e9 \u6c34')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith(rb"caf\xe9 \u6c34")


@pytest.mark.parametrize(
    ("reports", "shown"), [([(9, 9)], r" 9/9 [\d,]+ facts/s "), ([(0, 9)], " 0/9 +$"), ([], r"\A\s*\Z")]
)
def test_a_rate_is_shown_also_where_all_came_at_once_and_none_of_nothing(
    capsys: pytest.CaptureFixture[str], reports: list[tuple[int, int]], shown: str
) -> None:
    with Output().progress("building", "facts") as report:
        for done, total in reports:
            report(done, total, "")
    told = capsys.readouterr().err
    assert re.search(shown, told), told


@pytest.mark.parametrize("named", ["00000000-0000-0000-0000-000000000001", "鉄磁石金属鉄磁石金属鉄磁石"])
@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_however_narrow_the_terminal_ids_are_whole_and_nothing_else_vanishes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, named: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    names, row = (
        ("id", "premise", "score"),
        (named, "ice is frozen water " * 3, "0.471"),
    )
    Output().result({}, table(names, [row], right=1, whole=("id",)))
    told = capsys.readouterr().out
    assert row[0] in told
    assert "0.471" in told
    cells = [line.split("\u2502")[2].strip() for line in told.splitlines() if "\u2502" in line]
    assert " ".join(cells).split() == row[1].split()
    assert all(len(line) <= max(width, 66) for line in told.splitlines())


def test_a_field_is_printed_as_what_json_has():
    at = datetime(2026, 3, 1, 12, 0, 0, 250, tzinfo=UTC)
    one = SimpleNamespace(
        kappa=float("nan"),
        loss=float("inf"),
        share=0.5,
        ids=("a", "b"),
        at=at,
        work=SimpleNamespace(state=values.WorkState.FAILED),
    )
    assert fields_of(one, "kappa", "loss", "share", "ids", "at", "end=work.state") == {
        "kappa": None,
        "loss": None,
        "share": 0.5,
        "ids": ["a", "b"],
        "at": "2026-03-01T12:00:00+00:00",
        "end": "failed",
    }

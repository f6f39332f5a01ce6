"""`make bench NAME=against` on a small repository of two revisions and one benchmark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from benchmarks.harness import rows
from benchmarks.house import against

# Writes a row of its turn's speed, one that is a text, and one whose name the revision decides.
BENCHMARK = """
import json, sys, time
from pathlib import Path

SPEEDS, KIND, STATUS, OK = {speeds}, "{kind}", {status}, {ok}
root = Path(__file__).resolve().parents[2]
turn = len((root / "turns").read_text()) if (root / "turns").exists() else 0
(root / "turns").write_text("." * (turn + 1))
with (Path("{log}")).open("a") as log:
    log.write(f"{kind} {{sys.executable}} {{' '.join(sys.argv[1:])}}\\n")
if "--hang" in sys.argv:
    try:
        Path("{log}").with_name("hangs").touch()
        time.sleep(60)
    finally:
        with (Path("{log}")).open("a") as log:
            log.write("ended its services\\n")
results = root / "benchmarks" / "results"
results.mkdir(exist_ok=True)
found = [
    dict(row="speed", value=SPEEDS[turn % len(SPEEDS)], unit="1/s", bar="none", ok=OK, baseline=None),
    dict(row="kind", value=KIND, unit="", bar="none", ok=True, baseline=None),
    dict(row="only " + KIND, value=1, unit="", bar="none", ok=True, baseline=None),
]
if "--silent" not in sys.argv:
    (results / "tiny-part.json").write_text(json.dumps(found))
if __name__ == "__main__":
    sys.exit(STATUS)
"""


class Repository:
    """Two revisions: the tag `old` and the working tree."""

    def __init__(self, root: Path) -> None:
        self.root, self.log = root, root.parent / "log"
        (root / "benchmarks" / "tables").mkdir(parents=True)
        (root / "benchmarks" / "tables" / "__init__.py").touch()
        (root / "benchmarks" / "__init__.py").touch()
        (root / "pyproject.toml").write_text("[project]\n")
        (root / ".gitignore").write_text("turns\n__pycache__\nresults\n")
        (root / "benchmarks" / "results").mkdir()
        (root / "benchmarks" / "results" / "tiny.json").write_text('[{"row": "of yesterday", "ok": true}]')

    def write(self, kind: str, speeds: list[float], *, status: int = 0, ok: bool = True) -> None:
        """Writes the benchmark."""
        text = BENCHMARK.format(kind=kind, speeds=speeds, status=status, ok=ok, log=self.log)
        (self.root / "benchmarks" / "tables" / "tiny.py").write_text(text)

    def commit(self) -> None:
        """Commits all, as `old`."""
        identity = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "Old"], ["tag", "old"]):
            subprocess.run(["git", "-C", str(self.root), *identity, *words], check=True)

    def worktrees(self) -> list[str]:
        """The worktrees that git knows."""
        command = ["git", "-C", str(self.root), "worktree", "list", "--porcelain"]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return [line for line in listed.splitlines() if line.startswith("worktree ")]

    @property
    def turns(self) -> list[str]:
        """The kinds in the order in which they ran."""
        return [line.split()[0] for line in self.log.read_text().splitlines()]


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """The working tree is twice as fast as `old`, and a run of each is an outlier."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(rows, "RESULTS", tmp_path / "results")
    made = Repository(tmp_path / "repository")
    made.write("old", [10.0, 11.0, 500.0])
    made.commit()
    made.write("new", [22.0, 1.0, 24.0])
    yield made
    assert len(made.worktrees()) == 1, "whatever happens"
    assert not [*scratch.iterdir()]


def compared(repository: Repository, *words: str, times: int = 3) -> dict[str, dict[str, object]]:
    against.compare(rows.Rows("against-tiny"), "old", "tiny", words, times=times, root=repository.root)
    return {row["row"]: row for row in json.loads((rows.RESULTS / "against-tiny.json").read_bytes())}


def test_both_run_in_turns_with_the_same_arguments_and_medians_are_divided(repository):
    found = compared(repository, "--only", "part")
    assert repository.turns == ["old", "new"] * 3
    assert {line.split(maxsplit=2)[2] for line in repository.log.read_text().splitlines()} == {"--only part"}
    assert (found["speed"]["value"], found["speed"]["unit"]) == (2.0, "x")
    assert found["speed"]["baseline"] == "22 (1 to 24) over 11 (10 to 500) 1/s"
    assert (found["kind"]["value"], found["kind"]["baseline"]) == ("new", "old"), "a text is shown as it is"
    assert found["only new"]["baseline"] == "in 3 of 3 runs now, 0 then"
    assert found["only old"]["baseline"] == "in 0 of 3 runs now, 3 then"
    assert all(row["ok"] for row in found.values())
    assert "of yesterday" not in found


def test_a_revision_that_lacks_the_benchmark_borrows_that_of_now(repository):
    path = repository.root / "benchmarks" / "tables" / "tiny.py"
    path.rename(path.with_name("later.py"))
    against.compare(rows.Rows("against-later"), "old", "later", [], times=2, root=repository.root)
    assert repository.turns == ["new"] * 4
    [speed, *_] = json.loads((rows.RESULTS / "against-later.json").read_bytes())
    assert (speed["row"], speed["value"]) == ("speed", 1.0)


def test_a_row_that_some_runs_of_one_checkout_lack_does_not_hold(repository):
    path = repository.root / "benchmarks" / "tables" / "tiny.py"
    path.write_text(path.read_text().replace('row="speed"', 'row=["speed", "other"][turn % 2]'))
    found = compared(repository)
    assert (found["speed"]["ok"], found["speed"]["baseline"]) == (False, "in 2 of 3 runs now, 3 then")


def test_a_missed_bar_is_compared_all_the_same(repository):
    repository.write("new", [22.0], status=1, ok=False)
    assert compared(repository, times=1)["speed"]["value"] == 2.2


@pytest.mark.parametrize(
    ("status", "ok", "words", "said"),
    [
        (1, True, [], "tiny at now has failed with exit status 1"),
        (2, False, [], "tiny at now has failed with exit status 2"),
        (0, True, ["--silent"], "tiny at old has written no rows"),
    ],
)
def test_a_benchmark_that_fails_is_named_and_ends_it(repository, status, ok, words, said):
    repository.write("new", [22.0], status=status, ok=ok)
    with pytest.raises(SystemExit, match=said):
        compared(repository, *words)
    assert repository.turns == (["old", "new"] if not words else ["old"])


def test_what_is_missing_is_named_before_anything_runs(repository):
    for revision, benchmark, said in (
        ("older", "tiny", "'older' is no revision of "),
        ("old", "huge", "old has no benchmark 'huge', but tiny"),
    ):
        with pytest.raises(SystemExit, match=said):
            against.compare(rows.Rows("n"), revision, benchmark, [], times=1, root=repository.root)
    assert not repository.log.exists()


def test_a_revision_with_another_lock_runs_in_an_environment_of_its_own(repository):
    setup = f"setup:\n\tmkdir -p $(VENV)/bin\n\tln -s {sys.executable} $(VENV)/bin/python\n"
    (repository.root / "Makefile").write_text(setup)
    subprocess.run(["git", "-C", str(repository.root), "tag", "-d", "old"], check=True, capture_output=True)
    repository.write("old", [11.0])
    repository.commit()
    repository.write("new", [22.0])
    (repository.root / "pyproject.toml").write_text("[project]\ndependencies = ['numpy']\n")
    assert compared(repository, times=1)["speed"]["value"] == 2.0
    old, new = (line.split()[1] for line in repository.log.read_text().splitlines())
    assert (old != sys.executable, new) == (True, sys.executable)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_reaches_the_benchmark_and_leaves_no_worktree(repository, number):
    code = "import sys; from benchmarks.house import against; against.main(against.Path(sys.argv.pop(1)))"
    command = [sys.executable, "-c", code, str(repository.root), "old", "tiny", "--hang"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(command, env=environment, cwd=rows.ROOT) as process:
        while not repository.log.with_name("hangs").exists() and process.poll() is None:
            time.sleep(0.02)
        assert len(repository.worktrees()) == 2
        process.send_signal(number)
        time.sleep(0.1)
        process.send_signal(number)  # an impatient one breaks off no clean-up
        assert process.wait(30) == 128 + number
    assert repository.log.read_text().splitlines()[-1] == "ended its services"

"""What benchmarks stand on: a table that names each, mutants that are drawn alike, what counts as hand-written."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness import rows
from benchmarks.harness.rows import ROOT
from benchmarks.house.mutants import TESTS_RUN, WENT, drawn, equivalent, mutants_of, went
from benchmarks.house.tests_run import NOTES
from benchmarks.house.weight import ROOMS, STOOD, is_generated, is_in, weight

OTHER_COMMANDS = {"table1", "figure3", "own_text", "textgraphs", "nli", "analogy"}  # of make
PART = {"scan_commands", "tests_run"}  # of a benchmark, in a process of its own


def test_the_table_of_benchmarks_names_each_script():
    scripts = {path.stem for path in ROOT.glob("benchmarks/*/*.py") if '"__main__":' in path.read_text()}
    named = re.findall(r"^\| `([a-z0-9-]+)`", (ROOT / "benchmarks" / "README.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(scripts - OTHER_COMMANDS - PART)


@pytest.mark.parametrize(("changed", "dirty"), [("docs/results/seeds.md", False), ("code.py", True)])
def test_what_a_run_writes_does_not_make_the_commit_dirty_that_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str, dirty: bool
):
    (tmp_path / "docs" / "results").mkdir(parents=True)
    for name in ("docs/results/seeds.md", "code.py"):
        (tmp_path / name).write_text("before")
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "one"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    (tmp_path / changed).write_text("after")
    monkeypatch.setattr(rows, "ROOT", tmp_path)
    assert rows.surroundings()["commit"].endswith("-dirty") is dirty


SOURCE = '''"""Not mutated < > 1."""

def nearest(é: int, k: int = 3) -> int:
    """Nor this."""
    if é < k and not é == 2:
        raise ValueError(f"{é} + 1")
    print(é)
    return é + k
'''


def test_each_mutant_is_another_program_and_docstrings_and_messages_are_let_be():
    made = [SOURCE.encode()[: one.start] + one.after.encode() + SOURCE.encode()[one.end :]
            for one in mutants_of("m.py", SOURCE)]  # fmt: skip
    trees = {ast.dump(ast.parse(one)) for one in made}
    assert len(trees) == len(made) == 12
    assert ast.dump(ast.parse(SOURCE)) not in trees
    assert all('f"{é} + 1"'.encode() in one or b"pass" in one for one in made)


def test_a_seed_draws_the_same_mutants():
    modules = ["benchmarks/house/*.py"]
    assert drawn(modules, 20, 1) == drawn(modules, 20, 1) != drawn(modules, 20, 2)


def test_each_mutant_that_is_not_counted_can_be_made_today_and_has_a_reason():
    told = equivalent()
    paths = {change.partition(": ")[0] for change in told}
    made = {one.change for path in paths for one in mutants_of(path, (ROOT / path).read_text())}
    assert not told.keys() - made, "take these off mutants-equivalent.txt, or write them anew"
    assert all(told.values())


def test_each_test_that_went_has_a_change_that_can_be_made_today_and_a_test_or_says_where_it_went(tmp_path: Path):
    found = went(WENT.read_text().splitlines())
    assert len({old for old, _, _ in found}) == len(found)
    for _, mutant, today in found:
        path, _, name = today.partition("::")
        assert today if mutant is None else f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(), today
    (tmp_path / "m.py").write_text(SOURCE)
    [(_, mutant, _)] = went([f"old\t{tmp_path}/m.py\tprint(é)\\n    return\té\ttoday"])
    assert mutant is not None
    assert SOURCE.encode()[mutant.start : mutant.end] == b"print(\xc3\xa9)\n    return"
    for text, times in (("nobody", 0), ("é", 6)):
        with pytest.raises(SystemExit, match=f"m.py has {times} times '{text}', the text for old"):
            went([f"old\t{tmp_path}/m.py\t{text}\t\ttoday"])


TESTS = """import resource, subprocess, sys, m

def test_a_limit_of_files():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    m.one()
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)

def test_here():
    m.one()

def test_there():
    subprocess.run([sys.executable, "-c", "import m; m.one()"], check=True)
"""


def test_the_lines_of_functions_are_noted_that_a_test_runs_here_and_in_processes_that_it_starts(tmp_path: Path):
    (tmp_path / "m.py").write_text("def one():\n    return 1\n")
    (tmp_path / "test_m.py").write_text(TESTS)
    (tmp_path / "modules").write_text(f"{tmp_path}/m.py")
    (tmp_path / "sitecustomize.py").write_bytes(TESTS_RUN.read_bytes())
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), NOTES: str(tmp_path)}
    subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, env=environment, check=True)
    noted = sorted(line for file in tmp_path.glob("*.lines") for line in file.read_text().splitlines())
    assert noted == [f"{tmp_path}/m.py 2 test_m.py::test_{where} (call)" for where in ("here", "there")]


def test_lines_and_statements_are_those_of_a_rooms_hand_written_files():
    files = {"a/b.py": "x = 1\nif x:\n    x = 2\n", "a/c.proto": "x\n", "ab/c.py": "y = 1\n"}
    assert weight(files, ["a"]) == (3, 3)
    assert weight(files, ["a/b.py", "ab"]) == (4, 4)
    assert is_generated("clients/python/aeenc/v1/types_pb2.py", "")
    assert is_generated("x.py", '"""Values.\n\nGenerated by `python -m tools.values generate`."""')
    assert all((ROOT / folder).is_dir() for room in ROOMS.values() for folder in room.folders)


def test_what_is_weighed_apart_lies_in_its_room_and_is_new():
    apart = {place: room for room in ROOMS.values() for place in room.apart}
    assert all((ROOT / place).exists() and is_in(place, room.folders) for place, room in apart.items())
    git = ["git", "-C", str(ROOT), "ls-tree", "-r", "--name-only", STOOD]
    stood = subprocess.run(git, capture_output=True, text=True, check=False)
    if stood.returncode:
        pytest.skip("a clone without history")
    assert not [path for path in stood.stdout.splitlines() if is_in(path, apart)]

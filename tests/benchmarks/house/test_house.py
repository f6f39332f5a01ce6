"""`make bench NAME=house`: which files it counts, and what it takes for repeated code."""

import json
import subprocess

import pytest

from benchmarks.harness import rows
from benchmarks.house import house

SIX = """
def first(items):
    total = empty()
    for item in items:  # each
        if item > 3:
            total += item
            print(item)
    return total
"""
RENAMED = SIX.replace("first", "second").replace("items", "rows").replace("item", "row").replace("3", "40")


def runs(*texts: str, by_shape: bool = False) -> list[tuple[str, int, str, int, int]]:
    found = house.repeated_runs({f"{n}.py": text for n, text in enumerate(texts)}, by_shape=by_shape)
    return [(run.one.path, run.one.number, run.other.path, run.other.number, run.length) for run in found]


def test_the_longest_run_in_two_places_is_counted_once_whatever_its_length():
    longer = SIX.replace("    return total", "    print(total)\n    return total")
    assert runs(SIX, SIX) == [("0.py", 2, "1.py", 2, 7)]
    assert runs(longer, longer) == [("0.py", 2, "1.py", 2, 8)]
    assert runs(SIX, "x = 1\n" + SIX + "y = 2\n") == [("0.py", 2, "1.py", 3, 7)]


def test_three_places_make_three_runs_and_one_file_may_have_two_of_them():
    assert len(runs(SIX, SIX, SIX)) == 3
    assert runs(SIX + SIX) == [("0.py", 2, "0.py", 10, 7)]


def test_blank_lines_comments_docstrings_imports_and_spaces_make_no_difference():
    noisy = SIX.replace("(items):\n", '(items):\n    """Adds."""\n\n').replace(
        "    total = 0", "    # from nothing\n    total  =  0"
    )
    assert [
        run[-1] for run in runs(SIX, noisy.replace("  # each", ""))
    ] == []  # a comment behind code is a part of its line
    assert [run[-1] for run in runs(SIX, noisy)] == [7]
    block = "from a import (\n    b,\n    c,\n    d,\n    e,\n    f,\n    g,\n)\n"
    assert runs(block, block) == []


def test_other_names_and_numbers_are_one_shape_and_other_code_is_not():
    assert runs(SIX, RENAMED) == []
    assert [run[-1] for run in runs(SIX, RENAMED, by_shape=True)] == [6]
    assert runs(SIX, RENAMED.replace("+=", "-="), by_shape=True) == []
    assert runs(SIX, RENAMED.replace("for row in rows", "while rows"), by_shape=True) == []


def test_a_table_is_no_repeated_code():
    table = "\n".join(f"add({n}, name{n})" for n in range(20))
    assert runs(table, by_shape=True) == []


DECLARATIONS = """
@frozen
class One:
    a: int
    b: str = ''
    c: int

    def do(
        self,
        d: int,
    ) -> None:
        go()
"""


def test_declarations_that_look_alike_are_no_repeated_shape():
    assert runs(DECLARATIONS, DECLARATIONS.replace("One", "Two"), by_shape=True) == []


def test_an_init_with_a_docstring_alone_is_not_a_module():
    files = {
        "a/__init__.py": '"""A."""\n',
        "b/__init__.py": "",
        "c/__init__.py": '"""C."""\nx = 1\n',
        "d.py": '"""D."""\n',
    }
    assert set(house.modules(files)) == {"c/__init__.py", "d.py"}


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Measures a small repository; the rows by name."""
    monkeypatch.setattr(rows, "RESULTS", tmp_path / "results")
    root = tmp_path / "repository"
    for folder in ("services", "clients/python/aeenc/v1", "tests", "benchmarks"):
        (root / folder).mkdir(parents=True)
    for name in ("one", "two", "three", "four"):
        (root / "services" / f"{name}.py").write_text(SIX)
    for n in range(13):
        (root / "clients/python/aeenc/v1" / f"generated_{n}.py").write_text(SIX)
    git = ["git", "-C", str(root), "-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "Before"]):
        subprocess.run([*git, *words], check=True)

    def measure(before):
        monkeypatch.setattr(house, "BEFORE", before)
        house.measure(rows.Rows("house"), root)
        return {one["row"]: one for one in json.loads((tmp_path / "results" / "house.json").read_bytes())}

    return root, measure


def test_now_is_compared_with_the_commit(measured):
    root, measure = measured
    (root / "services" / "four.py").unlink()
    (root / "services" / "three.py").write_text("x = 1\n" * 501)
    found = {name: (row["value"], row["baseline"], row["ok"]) for name, row in measure("HEAD").items()}
    assert found == {
        "hand-written modules in services and clients": (3, 4, True),
        "their lines": (517, 32, False),
        "runs of 6 or more identical lines": (1, 6, True),
        "runs of 6 or more lines of one shape": (1, 6, True),
        "most Python files in a folder": (3, "services", True),
        "files over 500 lines": (1, "services/three.py", False),
    }


def test_without_the_commit_its_bars_are_skipped_and_the_reason_is_told(measured, capsys):
    _, measure = measured
    found = measure("0123456")
    assert "the history lacks commit 0123456; run `git fetch --unshallow`" in capsys.readouterr().out
    assert found["their lines"]["baseline"] == "skipped"
    assert found["most Python files in a folder"]["ok"]

"""Do the tests notice broken code? Mutants of a room, drawn by a seed. `make bench NAME=mutants ARGS='--room ranking'`.

    modules ─▶ every place that can be mutated ─▶ `--count` of them, by `--seed` ─▶ a copy of the repository a worker
            ─▶ those of the room's tests that run the line, `-x` ─▶ killed (a test fails, or time is up) or survived

A first run of all tests, without a mutant, notes the lines that each runs (`tests_run`); what no test runs, or runs as
its module is read, has the tests that run any line of its module. What a mutant came to is kept below .aeenc for as
long as its module's text stays the same: a run that is broken off goes on, and tries those again that survived.
Survivors are listed with file, line and change. Those that change nothing that a caller could see are not counted:
`mutants-equivalent.txt` beside this file has a line `PATH: BEFORE -> AFTER in LINE | reason` for each.

`--went` tries those of `tests-that-went.tsv` instead: of tests of commit 5cf945c4 that went, drawn by a seed, each
with a change that it would have caught and the test of today that is to fail on it. A line has tabs between: old
test, path, text, its replacement, test; where nothing is left to change, old test, `-`, two empty ones, where it went.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from benchmarks.harness.rows import ROOT, Rows
from services.store.life_cycles import digest

KEPT = ROOT / ".aeenc" / "bench" / "mutants"
EQUIVALENT = Path(__file__).with_name("mutants-equivalent.txt")
WENT = Path(__file__).with_name("tests-that-went.tsv")
TESTS_RUN = Path(__file__).with_name("tests_run.py")
LEAST = 0.9
WENT_S = 400.0  # for the test of one that went
ANY = ("--timeout=300", "-m", "")  # tests, whatever their markers and however busy the machine
SET_UP = {"tests/browser/": "clients/workbench/page/node_modules", "tests/chart/": ".venv-chart"}  # by make test-…
SLOWER, SPARE_S = 4.0, 20.0  # a mutant's tests may take so many times as long as without it, and so much longer
MOST_S = 30.0  # of tests that a mutant has, without it, those in the file of its module's name aside
EXIT_PASSED = 0  # of pytest
_SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Room:
    """Globs of modules, and the tests that are to notice."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


ROOMS = {
    "ranking": Room(("services/index/ranking/*.py", "services/index/dense/exact.py"),
                    ("tests/index/ranking", "tests/index/test_query_encoder.py", "tests/index/lexical",
                     "tests/index/dense")),
    "learning": Room(
        ("services/trainer/train/*.py", "services/trainer/evaluation/*.py", "services/trainer/registry/*.py",
         "services/encoder/batching/admission.py", "services/encoder/batching/queues.py"),
        ("tests/trainer/train", "tests/trainer/evaluation", "tests/trainer/registry", "tests/encoder/batching"),
    ),
    "sdk": Room(  # the tests of adapters/http.py are the gateway's
        ("clients/python/aeenc/transport/*.py", "clients/python/aeenc/files/*.py", "clients/python/aeenc/exports/*.py",
         "clients/python/aeenc/adapters/[!h]*.py", "clients/python/aeenc/values/reading.py"),
        ("tests/aeenc", "tests/cli/test_targets.py", "tests/cli/test_status.py", "tests/kit/test_tracing.py",
         "tests/kit/test_server.py"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A change of one piece of a module, between two offsets of its bytes; it begins in the line with this text."""

    path: str
    line: int
    text: str
    start: int
    end: int
    before: str
    after: str

    @property
    def change(self) -> str:
        """The change and the text of its line, whose number moves."""
        return f"{self.path}: {' '.join(self.before.split())[:80]} -> {self.after[:80]} in {self.text}"

    def __str__(self) -> str:
        return self.change.replace(":", f":{self.line}:", 1)


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """All mutants of a module, in the order of its text. Annotations, docstrings and messages of errors are let be."""
    starts = [0]
    for line in source.encode().split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)

    def mutant(node: Any, after: str) -> Mutant:
        start, end = (starts[row - 1] + column for row, column in (
            (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)))  # fmt: skip
        text = source.splitlines()[node.lineno - 1].strip()
        return Mutant(path, node.lineno, text, start, end, source.encode()[start:end].decode(), after)

    def walk(node: ast.AST) -> Iterator[Mutant]:
        for after in _changes(node):
            yield mutant(node, f"({after})" if isinstance(node, ast.expr) else after)
        for name, value in ast.iter_fields(node):
            if name in {"annotation", "returns", "decorator_list"} or isinstance(node, ast.Raise | ast.JoinedStr):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from walk(child)

    found = [one for one in walk(ast.parse(source)) if one.after != f"({one.before})"]
    yield from sorted(found, key=lambda one: (one.start, one.end, one.after))


def _changes(node: ast.AST) -> Iterator[str]:
    """Yields the replacements of a node."""
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
    if is_call or isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break):
        yield "pass"
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield "return None"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        yield repr(not node.value if isinstance(node.value, bool) else node.value + 1)
    elif isinstance(node, ast.expr):
        yield from map(ast.unparse, _expressions(node))


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare):
        for at, operator in enumerate(node.ops):
            ops = [*node.ops[:at], _SWAPS[type(operator)](), *node.ops[at + 1 :]]
            yield ast.Compare(node.left, ops, node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(_SWAPS[type(node.op)](), node.values)
        yield from node.values
    elif isinstance(node, ast.BinOp) and type(node.op) in _SWAPS:
        yield ast.BinOp(node.left, _SWAPS[type(node.op)](), node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def equivalent() -> dict[str, str]:
    """The changes that no caller could see, each with the reason."""
    lines = EQUIVALENT.read_text().splitlines()
    return {change: reason for change, _, reason in (line.rpartition(" | ") for line in lines)}


def drawn(modules: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """So many mutants of all modules that globs name, but for equivalent ones."""
    paths = sorted({path for pattern in modules for path in ROOT.glob(pattern)})
    if not paths:
        raise SystemExit(f"no module is named by {' '.join(modules)}; give --modules")
    every = [one for path in paths for one in mutants_of(path.relative_to(ROOT).as_posix(), path.read_text())]
    same, draw = equivalent(), random.Random(seed).sample(every, len(every))
    return [one for one in draw if one.change not in same][:count]


class Copy:
    """A copy of the files that git knows, as they are now, in which one mutant at a time is tried."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed = 0  # so that no compiled file is taken for that of another text
        listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z"],
                                capture_output=True, check=True, text=True)  # fmt: skip
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes((ROOT / name).read_bytes())
        paths = os.pathsep.join(str(folder / part) for part in (".", "clients/python", "tests"))
        self._runner = subprocess.Popen(
            [sys.executable, str(TESTS_RUN)], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def survives(self, mutant: Mutant, tests: Sequence[str], limit_s: float) -> bool:
        """Whether all tests pass within the time with the mutant; prints it."""
        sound = (ROOT / mutant.path).read_bytes()
        self._write(mutant.path, sound[: mutant.start] + mutant.after.encode() + sound[mutant.end :])
        try:
            is_left = not tests or self.run(tests, limit_s) == EXIT_PASSED
        finally:
            self._write(mutant.path, sound)
        print(f"  {'survived' if is_left else 'killed'}  {mutant}", flush=True)
        return is_left

    def _write(self, path: str, content: bytes) -> None:
        self._changed += 2
        (self._folder / path).write_bytes(content)
        at = time.time() - 1_000_000 + self._changed
        os.utime(self._folder / path, (at, at))

    def run(self, given: Sequence[str], limit_s: float, notes: str = "") -> int:
        """Runs tests up to the first that fails, and gives back pytest's status. Notes of lines go to a folder."""
        options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not (slow or crash or soak or reference or sdk)"]
        print(json.dumps([[*options, *given], limit_s, notes]), file=self._runner.stdin, flush=True)
        assert self._runner.stdout is not None
        return int(self._runner.stdout.readline())

    @property
    def log(self) -> str:
        """The end of what the last run wrote."""
        return (self._folder / "tests.log").read_text(errors="replace")[-5000:]

    def close(self) -> None:
        """Ends the process that runs tests."""
        self._runner.communicate()


class LinesRun:
    """Which tests run a line, and how long they take; noted by a run of them all that must pass.

    What is run while a test is prepared may serve the others of its file too, so that they all run it.
    """

    def __init__(self, copy: Copy, modules: Sequence[str], tests: Sequence[str]) -> None:
        self._of: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._seconds: Counter[str] = Counter()
        with tempfile.TemporaryDirectory(prefix="aeenc-lines-") as folder:
            Path(folder, "sitecustomize.py").write_bytes(TESTS_RUN.read_bytes())
            Path(folder, "modules").write_text("\n".join(modules))
            if copy.run(["--timeout=900", f"--junitxml={folder}/seconds.xml", *tests], 3600.0, folder) != EXIT_PASSED:
                raise SystemExit(f"{copy.log}\nwithout a mutant, {' '.join(tests)} do not pass; mend them first")
            for notes in Path(folder).glob("*.lines"):
                for note in notes.read_text().splitlines():
                    if not note.endswith(")"):  # a test that limits the size of files cut it off
                        continue
                    path, line, test = note.split(" ", 2)
                    name, _, phase = test.rpartition(" ")
                    self._of[path, int(line)].add(name if phase == "(call)" else _file(name))
            for case in ET.parse(f"{folder}/seconds.xml").iter("testcase"):
                file, seconds = f"{case.attrib['classname'].replace('.', '/')}.py", float(case.attrib["time"])
                self._seconds.update({file: seconds, f"{file}::{case.attrib['name']}": seconds})
        every = sorted(set().union(*self._of.values()))
        self.noted = len({one for one in every if "::" in one}) / max(sum("::" in one for one in self._seconds), 1)
        if every and copy.run(["--collect-only", *every], 3600.0) != EXIT_PASSED:
            raise SystemExit(f"{copy.log}\npytest does not find each test by its name; give names that stay the same")

    def tests(self, mutant: Mutant) -> tuple[list[str], float]:
        """Those that run one of its lines, the file of its module's name first, then the fast ones; and a limit.

        None only where no test runs its module.
        """
        lines = range(mutant.line, mutant.line + mutant.before.count("\n") + 1)
        found = set().union(*(self._of.get((mutant.path, line), set()) for line in lines))
        found = found or set().union(*(tests for (path, _), tests in self._of.items() if path == mutant.path))
        own = f"test_{Path(mutant.path).name}"
        order = sorted((Path(_file(one)).name != own, self._seconds[one], one) for one in found)
        ends = accumulate(seconds if is_other else 0.0 for is_other, seconds, _ in order)
        chosen = [test for (is_other, _, test), end in zip(order, ends, strict=True) if not is_other or end < MOST_S]
        chosen = chosen or [test for _, _, test in order[:1]]
        return chosen, SLOWER * sum(self._seconds[one] for one in chosen) + SPARE_S


def _file(test: str) -> str:
    return test.partition("::")[0]


def try_all(rows: Rows, name: str, mutants: Sequence[Mutant], tests: Sequence[str], workers: int) -> None:
    """Tries what was not tried before, and adds the rows."""
    KEPT.mkdir(parents=True, exist_ok=True)
    kept = KEPT / f"{name}.json"
    told: dict[str, bool] = json.loads(kept.read_bytes()) if kept.is_file() else {}
    key_of = {one: digest(f"{one}{one.start}{(ROOT / one.path).read_text()}{' '.join(tests)}") for one in mutants}
    left = [one for one in mutants if told.get(key_of[one], True)]
    begun = time.monotonic()
    with ExitStack() as stack:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for _ in range(workers if left else 0):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="aeenc-mutants-"))
            copies.put(stack.enter_context(closing(Copy(Path(folder)))))
        if left:
            copy = copies.get()
            lines_run = LinesRun(copy, sorted({one.path for one in mutants}), tests)
            copies.put(copy)
            rows.note(f"{name}: seconds of all tests, with their lines noted", time.monotonic() - begun, "s")
            rows.note(f"{name}: tests of which lines are noted", lines_run.noted, "share")
            begun = time.monotonic()

        def survives(mutant: Mutant) -> None:
            copy = copies.get()
            told[key_of[mutant]] = copy.survives(mutant, *lines_run.tests(mutant))
            copies.put(copy)
            kept.write_text(json.dumps(told))

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(survives, left))
    survivors = [str(one) for one in mutants if told[key_of[one]]]
    if left:
        rows.note(f"{name}: seconds a mutant, {workers} at a time", (time.monotonic() - begun) / len(left), "s")
    share = 1 - len(survivors) / len(mutants)
    rows.at_least(f"{name}: {len(mutants)} mutants, killed", share, "share", LEAST, survivors or None)
    print("\n".join(["survivors:", *survivors]))


def went(lines: Sequence[str]) -> list[tuple[str, Mutant | None, str]]:
    """The name of each test that went, its mutant if there is one, and the test that kills it, or where it went.

    Raises SystemExit for a text that its file does not have exactly once.
    """
    found = list[tuple[str, Mutant | None, str]]()
    for old, path, *texts, today in (one.split("\t") for one in lines):
        mutant = None
        if path != "-":
            before, after = (one.replace("\\n", "\n").replace("\\t", "\t") for one in texts)
            source = (ROOT / path).read_text()
            if (times := source.count(before)) != 1:
                raise SystemExit(f"{path} has {times} times {before!r}, the text for {old}; give it anew")
            ahead = source.partition(before)[0]
            line, start = ahead.count("\n") + 1, len(ahead.encode())
            text = source.splitlines()[line - 1].strip()
            mutant = Mutant(path, line, text, start, start + len(before.encode()), before, after)
        found.append((old, mutant, today))
    return found


def try_went(rows: Rows) -> None:
    """Tries the mutants of the tests that went, each by its one test, and adds the rows."""
    every = went(WENT.read_text().splitlines())
    found = [(old, mutant, test) for old, mutant, test in every if mutant]
    lacking = tuple(tests for tests, made in SET_UP.items() if not (ROOT / made).exists())
    tried = [one for one in found if not one[2].startswith(lacking)]
    with tempfile.TemporaryDirectory(prefix="aeenc-mutants-") as folder, closing(Copy(Path(folder))) as copy:
        for made in SET_UP.values():
            if (ROOT / made).exists():
                (Path(folder) / made).symlink_to(ROOT / made)
        if copy.run([*ANY, *sorted({test for _, _, test in tried})], 3600.0) != EXIT_PASSED:
            raise SystemExit(f"{copy.log}\nwithout a mutant, these tests do not pass; mend them first")
        survivors = [f"{old}: {mutant}" for old, mutant, test in tried if copy.survives(mutant, [*ANY, test], WENT_S)]
    rows.note("tests that went, with nothing left to change", len(every) - len(found), "tests")
    rows.note("tests that went, found in a browser or a chart not set up here", len(found) - len(tried), "tests")
    share = 1 - len(survivors) / len(tried)
    rows.at_least(f"tests that went: {len(tried)} mutants, killed", share, "share", 1.0, survivors or None)
    print("\n".join(["survivors:", *survivors]))


def main() -> None:
    """Draws and tries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--room", choices=ROOMS, default="ranking")
    parser.add_argument("--modules", nargs="+", help="globs, instead of the room's")
    parser.add_argument("--tests", nargs="+", help="files and folders, instead of the room's")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--went", action="store_true", help="what the tests that went had caught, instead")
    given = parser.parse_args()
    if given.went:
        rows = Rows("mutants-went")
        try_went(rows)
        rows.finish()
    room = ROOMS[given.room]
    mutants = drawn(given.modules or room.modules, given.count, given.seed)
    rows = Rows("mutants" if given.modules else f"mutants-{given.room}")
    try_all(rows, given.room, mutants, given.tests or room.tests, given.workers)
    rows.finish()


if __name__ == "__main__":
    main()

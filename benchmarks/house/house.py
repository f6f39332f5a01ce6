"""The size and order of the code now, against the commit before it was rearranged. `make bench NAME=house`.

Modules and lines are those of hand-written Python files in `services` and `clients`: generated ones and an
`__init__.py` with a docstring alone are left out. A repeated run is a longest sequence of six or more lines that stands
in two places; three places make three runs. Blank lines, comments, docstrings and imports do not count, and spaces are
folded. Six lines of which fewer than three differ are a table and begin no run. Lines have one shape when they are
equal once names, strings and numbers are replaced; declarations (signatures, fields, constants) look alike and are left
out there. Seconds; needs git and the whole history. `--runs` lists the runs that are left. `--at COMMIT` measures that
commit: features add lines, so the rearrangement itself is measured where it ended.
"""

from __future__ import annotations

import argparse
import ast
import io
import keyword
import subprocess
import tarfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path, PurePosixPath

from benchmarks.harness.rows import ROOT, Rows

BEFORE = "03bd31b"
CODE = ("services", "clients")
FOLDERS = ("tests", "benchmarks", *CODE)
GENERATED = ("clients/python/aeenc/v1/", "clients/python/aeenc/blocking.py", "clients/python/aeenc/values/")
SKIPPED = {"__pycache__", "build", "node_modules"}
RUN_LINES = 6
LEAST_DIFFERENT = 3
MOST_FILES = 12
MOST_LINES = 500

Sources = Mapping[str, str]  # text by path in the repository


@dataclass(frozen=True)
class Line:
    """One line of code: where it stands, its text with folded spaces, its shape (empty for a declaration)."""

    path: str
    number: int
    text: str
    shape: str


@dataclass(frozen=True)
class Run:
    """The same lines in two places, by their first lines."""

    one: Line
    other: Line
    length: int


def sources(root: Path, folders: tuple[str, ...]) -> Sources:
    """The Python files below folders of a checkout, generated ones left out."""
    files = [file for folder in folders for file in sorted((root / folder).rglob("*.py"))]
    texts = {file.relative_to(root).as_posix(): file for file in files}
    return {path: file.read_text() for path, file in texts.items() if _is_ours(path)}


def sources_at(commit: str, root: Path = ROOT) -> Sources | None:
    """The Python files in `services` and `clients` at a commit; None where the history lacks it."""
    command = ["git", "-C", str(root), "archive", "--format=tar", commit, *CODE]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        files = {member.name: tar.extractfile(member) for member in tar if member.name.endswith(".py")}
        return {path: file.read().decode() for path, file in files.items() if file is not None and _is_ours(path)}


def _is_ours(path: str) -> bool:
    return not path.startswith(GENERATED) and not SKIPPED & set(PurePosixPath(path).parts)


def modules(files: Sources) -> Sources:
    """The files but each `__init__.py` that has nothing or a docstring alone."""
    return {path: text for path, text in files.items() if not path.endswith("/__init__.py") or _has_code(text)}


def _has_code(text: str) -> bool:
    body = ast.parse(text).body
    return bool(body[1:] if body and _is_text(body[0]) else body)


def code_lines(path: str, text: str) -> list[Line]:
    """The lines of a file that count for repetition, in order."""
    nodes = list(ast.walk(ast.parse(text)))
    left_out = {number for node in nodes for number in _without_code(node)}
    declared = {number for node in nodes for number in _declaration(node)}
    shapes: dict[int, list[str]] = defaultdict(list)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if kind := _shape_of(token):
            shapes[token.start[0]].append(kind)
    return [
        Line(
            path,
            number,
            " ".join(line.split()),
            "" if number in declared else " ".join(shapes[number]) or line.strip(),
        )
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip() and not line.lstrip().startswith("#") and number not in left_out
    ]


def _without_code(node: ast.AST) -> range:
    """The lines of an import or a docstring."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        first = node.body[0] if node.body else None
        if first is not None and _is_text(first):
            return range(first.lineno, (first.end_lineno or first.lineno) + 1)
    return range(0)


def _declaration(node: ast.AST) -> range:
    """The lines of a signature, of a class's head, of an annotated name, of a constant."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return range(min([node.lineno, *(one.lineno for one in node.decorator_list)]), node.body[0].lineno)
    if isinstance(node, ast.AnnAssign) or (isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)):
        return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return range(0)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _shape_of(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NAME:
        return token.string if keyword.iskeyword(token.string) else "name"
    if token.type in {tokenize.STRING, tokenize.NUMBER}:
        return tokenize.tok_name[token.type]
    return token.string if token.type == tokenize.OP else ""


def repeated_runs(files: Sources, *, by_shape: bool) -> list[Run]:
    """The longest runs of RUN_LINES or more lines that stand in two places, each pair of places once."""
    lines = [line for path, text in sorted(files.items()) for line in code_lines(path, text)]
    if by_shape:
        lines = [line for line in lines if line.shape]
    keys = [line.shape if by_shape else line.text for line in lines]
    windows: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for start in range(len(lines) - RUN_LINES + 1):
        if lines[start].path == lines[start + RUN_LINES - 1].path:
            windows[tuple(keys[start : start + RUN_LINES])].append(start)
    code = [at for window, at in windows.items() if len(set(window)) >= LEAST_DIFFERENT]
    pairs = {pair for at in code for pair in combinations(at, 2)}
    return [run for pair in sorted(pairs) if (run := _run_from(*pair, pairs, lines)) is not None]


def _run_from(one: int, other: int, pairs: set[tuple[int, int]], lines: list[Line]) -> Run | None:
    """The run that begins with a pair of equal windows; None in the middle of one, or where the places overlap."""
    if (one - 1, other - 1) in pairs or (lines[one].path == lines[other].path and other - one < RUN_LINES):
        return None
    length = RUN_LINES
    while (one + length - RUN_LINES + 1, other + length - RUN_LINES + 1) in pairs:
        length += 1
    return Run(lines[one], lines[other], length)


def files_by_folder(files: Sources) -> Counter[str]:
    """The number of Python files in each folder itself."""
    return Counter(PurePosixPath(path).parent.as_posix() for path in files)


def measure(rows: Rows, root: Path = ROOT, at: str = "") -> None:
    """Adds all rows; with `at` those of a commit, compared with the one before, else those of the working tree."""
    now, before = sources_at(at, root) if at else sources(root, CODE), sources_at(BEFORE, root)
    if now is None:
        raise SystemExit(f"the history lacks commit {at}; run `git fetch --unshallow`, or name another")
    if before is None:
        print(
            f"no baseline: the history lacks commit {BEFORE}; run `git fetch --unshallow`. Bars against it are skipped."
        )
    for row, unit, share, count in (
        ("hand-written modules in services and clients", "modules", 0.75, _count_modules),
        ("their lines", "lines", 1.0, _count_lines),
        (f"runs of {RUN_LINES} or more identical lines", "runs", 0.5, _count_identical),
        (f"runs of {RUN_LINES} or more lines of one shape", "runs", 0.5, _count_of_one_shape),
    ):
        if before is None:
            rows.note(row, count(now), unit, "skipped")
        else:
            then = count(before)
            rows.at_most(row, count(now), unit, int(share * then), then)
    everything = sources(root, FOLDERS)
    [(folder, most)] = files_by_folder(everything).most_common(1)
    rows.at_most("most Python files in a folder", most, "files", MOST_FILES, folder)
    long = [path for path, text in everything.items() if len(text.splitlines()) > MOST_LINES]
    rows.at_most(f"files over {MOST_LINES} lines", len(long), "files", 0, ", ".join(long[:3]) or None)


def _count_modules(files: Sources) -> int:
    return len(modules(files))


def _count_lines(files: Sources) -> int:
    return sum(len(text.splitlines()) for text in modules(files).values())


def _count_identical(files: Sources) -> int:
    return len(repeated_runs(files, by_shape=False))


def _count_of_one_shape(files: Sources) -> int:
    return len(repeated_runs(files, by_shape=True))


def main() -> None:
    """Prints the rows, or with `--runs` the repeated runs of now."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", action="store_true", help="list the runs of one shape instead of the rows")
    parser.add_argument("--at", default="", metavar="COMMIT", help="count services and clients at a commit")
    chosen = parser.parse_args()
    if chosen.runs:
        for run in sorted(repeated_runs(sources(ROOT, CODE), by_shape=True), key=lambda one: -one.length):
            one, other = run.one, run.other
            print(f"{run.length:>4} lines  {one.path}:{one.number}  {other.path}:{other.number}")
        return
    rows = Rows("house")
    measure(rows, at=chosen.at)
    rows.finish()


if __name__ == "__main__":
    main()

"""A benchmark at another revision and now, in turns. `make bench NAME=against ARGS='REV BENCHMARK [ARGS …]'`.

    worktree of REV, in a temporary folder ─► its own script ─┐
                                                               ├─► rows of N runs each ─► medians ─► now over REV
    this checkout, as it is ────────────────► its own script ─┘

    make bench NAME=against ARGS='HEAD~5 encoder'
    make bench NAME=against ARGS='--times 5 main index --only search'

A revision that lacks the benchmark borrows this checkout's script. Both use this environment, but for a revision with
another lock or pyproject: its `make setup` makes one (minutes). Each checkout uses the results in its `.aeenc`; remove
this checkout's before you compare what is trained. A row that misses its bar does not fail the command. Options of this
command stand before REV.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.harness.entailmentbank import directory
from benchmarks.harness.rows import ROOT, Rows

ENVIRONMENT = ("requirements/cpu.lock", "pyproject.toml", "clients/python/pyproject.toml")
RESULTS = Path("benchmarks") / "results"
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
END_S = 60.0  # a benchmark that is interrupted ends its own services
NOW = "now"

Measured = Mapping[str, Any]  # a row as it was written


@dataclass(frozen=True)
class Checkout:
    """A tree of files with its interpreter; `name` is the revision as the user wrote it, or "now"."""

    name: str
    root: Path
    python: Path

    @property
    def _scripts(self) -> dict[str, Path]:
        return {path.stem: path for path in self.root.glob("benchmarks/**/*.py") if "__main__" in path.read_text()}

    def borrow(self, benchmark: str, other: Checkout) -> None:
        """Takes over another checkout's script of a benchmark that this one lacks."""
        script = other._scripts.get(benchmark)
        if benchmark not in self._scripts and script is not None:
            shutil.copy(script, self.root / script.relative_to(other.root))

    def module(self, benchmark: str) -> str:
        """The module of a benchmark, found as `make bench` finds it. Ends the process where there is none."""
        scripts = self._scripts
        if benchmark not in scripts:
            raise SystemExit(f"{self.name} has no benchmark {benchmark!r}, but {', '.join(sorted(scripts)) or 'none'}")
        return ".".join(scripts[benchmark].relative_to(self.root).with_suffix("").parts)

    def run(self, benchmark: str, arguments: Sequence[str]) -> dict[str, Measured]:
        """The rows of one run. Ends the process for a run that fails, or writes none."""
        before = self._results()
        command = [str(self.python), "-m", self.module(benchmark), *arguments]
        paths = os.pathsep.join(str(self.root / part) for part in (".", "clients/python", "tests"))
        status = _finished(command, self.root, {**os.environ, "PYTHONPATH": paths})
        after = self._results()
        written = [path for path, changed_ns in after.items() if before.get(path) != changed_ns]
        rows = {row["row"]: row for path in written for row in json.loads(path.read_bytes())}
        has_missed = any(not row["ok"] for row in rows.values())
        if status and not (status == 1 and has_missed):
            raise SystemExit(f"{benchmark} at {self.name} has failed with exit status {status}")
        if not rows:
            raise SystemExit(f"{benchmark} at {self.name} has written no rows to {RESULTS}")
        return rows

    def _results(self) -> dict[Path, int]:
        """When each file of results was written, in nanoseconds."""
        return {path: path.stat().st_mtime_ns for path in (self.root / RESULTS).glob("*.json")}


def _finished(command: Sequence[str], root: Path, environment: Mapping[str, str]) -> int:
    """The exit status of a command. When this process is interrupted, so is the command, once, and is waited for."""
    process = subprocess.Popen(command, cwd=root, env=environment, start_new_session=True)
    try:
        return process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        raise


@contextmanager
def worktree(root: Path, revision: str) -> Iterator[Checkout]:
    """A checkout of a revision, and its environment where that is another; both are gone after the block."""
    git = ["git", "-C", str(root)]
    wanted = [*git, "rev-parse", "-q", "--verify", f"{revision}^{{commit}}"]
    if subprocess.run(wanted, check=False, capture_output=True).returncode:
        raise SystemExit(f"{revision!r} is no revision of {root}; `git log --oneline` lists them")
    with tempfile.TemporaryDirectory(prefix="aeenc-against-") as scratch:
        tree, venv = Path(scratch) / "tree", Path(scratch) / "venv"
        try:
            if status := _finished([*git, "worktree", "add", "-q", "--detach", str(tree), revision], root, os.environ):
                raise SystemExit(f"git worktree add has failed with exit status {status}")
            python = Path(sys.executable)
            if any(_content(tree / name) != _content(root / name) for name in ENVIRONMENT):
                print(f"{revision} has another environment, which is made now", flush=True)
                if status := _finished(["make", "setup", f"VENV={venv}"], tree, os.environ):
                    raise SystemExit(f"make setup at {revision} has failed with exit status {status}")
                python = venv / "bin" / "python"
            yield Checkout(revision, tree, python)
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=False, capture_output=True)


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def compare(rows: Rows, revision: str, benchmark: str, arguments: Sequence[str], *, times: int, root: Path) -> None:
    """Adds a row for each that both have: the median now over that at the revision, with both and their spread."""
    with worktree(root, revision) as then:
        now = Checkout(NOW, root, Path(sys.executable))
        then.borrow(benchmark, now)
        runs: dict[Checkout, list[dict[str, Measured]]] = {then: [], now: []}
        for checkout in runs:
            checkout.module(benchmark)  # before minutes are spent
        for number in range(1, times + 1):
            for checkout, done in runs.items():
                print(f"\n{benchmark} at {checkout.name}, {number} of {times}", flush=True)
                done.append(checkout.run(benchmark, arguments))
    print(f"\n{benchmark}: now over {revision}, medians of {times} (least to most)", flush=True)
    for name in dict.fromkeys(name for done in (runs[now], runs[then]) for run in done for name in run):
        found = {checkout: [run[name] for run in done if name in run] for checkout, done in runs.items()}
        _add(rows, name, found[now], found[then], times)


def _add(rows: Rows, name: str, now: Sequence[Measured], then: Sequence[Measured], times: int) -> None:
    """Adds one row; one that some runs of a checkout lack does not hold."""
    unit = (now or then)[0]["unit"]
    values = [[row["value"] for row in found] for found in (now, then)]
    counts = [len(found) for found in values]
    if counts != [times, times]:
        ok = set(counts) <= {0, times}
        rows.add(name, None, unit, "in all runs", ok, f"in {counts[0]} of {times} runs now, {counts[1]} then")
        return
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in values[0] + values[1]):
        rows.note(name, values[0][-1], unit, values[1][-1])
        return
    after, before = map(statistics.median, values)
    told = " over ".join(f"{statistics.median(one):.6g} ({min(one):.6g} to {max(one):.6g})" for one in values)
    rows.note(name, after / before if before else None, "x", f"{told} {unit}".rstrip())


def _interrupted(number: int, _frame: object) -> NoReturn:
    for ending in ENDINGS:
        signal.signal(ending, signal.SIG_IGN)  # nothing breaks off what is cleaned up now
    raise SystemExit(128 + number)


def main(root: Path = ROOT) -> None:
    """Compares, and prints and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, help="runs of each (default: 3)")
    parser.add_argument("revision", metavar="REV", help="a commit, branch or tag")
    parser.add_argument("benchmark", metavar="BENCHMARK", help="as in `make bench NAME=…`")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="of the benchmark")
    given = parser.parse_args()
    if given.times < 1:
        parser.error(f"--times is {given.times}; give at least 1")
    for ending in ENDINGS:
        if (ending, signal.getsignal(ending)) != (signal.SIGHUP, signal.SIG_IGN):  # not under nohup
            signal.signal(ending, _interrupted)
    os.environ["AEENC_BENCH_DATA"] = str(directory(root).resolve())  # for both
    rows = Rows(f"against-{given.benchmark}")
    compare(rows, given.revision, given.benchmark, given.arguments, times=given.times, root=root)
    rows.finish()


if __name__ == "__main__":
    main()

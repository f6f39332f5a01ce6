"""The rows of a benchmark: a table for people, a JSON file for programs, an exit status for both."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
KEPT = Path(os.environ.get("AEENC_BENCH_RESULTS") or ROOT / "docs" / "results")  # of measurements that pages cite


@dataclass(frozen=True)
class Row:
    """One claim: what was measured, what it must be, whether it is, and the baseline of the same run."""

    row: str
    value: Any
    unit: str
    bar: str
    ok: bool
    baseline: Any = None


class Rows:
    """Collects rows, printing each as it comes and writing `results/<name>.json`; `finish` ends the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.rows: list[Row] = []

    @classmethod
    def of(cls, name: str, chosen: Collection[str], parts: Iterable[str]) -> Rows:
        """The rows of the chosen parts, which replace no results of other parts."""
        named = [part for part in parts if part in chosen]
        return cls(name if set(named) == set(parts) else "-".join([name, *named]))

    def add(self, row: str, value: Any, unit: str, bar: str, ok: bool, baseline: Any = None) -> None:
        """Adds a claim."""
        added = Row(row, value, unit, bar, bool(ok), baseline)
        self.rows.append(added)
        print(f"{'ok  ' if ok else 'FAIL'}  {row:<58} {_short(value):>12} {unit:<8} {bar:<22} {_short(baseline)}")
        sys.stdout.flush()
        RESULTS.mkdir(exist_ok=True)  # after each row: a long run that ends early has told what it knew
        content = json.dumps([asdict(one) for one in self.rows], indent=1, ensure_ascii=False)
        (RESULTS / f"{self._name}.json").write_text(content)

    def at_least(self, row: str, value: float, unit: str, least: float, baseline: Any = None) -> None:
        """Adds a claim that a value is not below a bar."""
        self.add(row, value, unit, f"≥ {least:g}", value >= least, baseline)

    def at_most(self, row: str, value: float, unit: str, most: float, baseline: Any = None) -> None:
        """Adds a claim that a value is not above a bar."""
        self.add(row, value, unit, f"≤ {most:g}", value <= most, baseline)

    def note(self, row: str, value: Any, unit: str, baseline: Any = None) -> None:
        """Adds a figure without a bar."""
        self.add(row, value, unit, "none", True, baseline)

    def finish(self) -> None:
        """Ends the process; exit status 1 when a claim does not hold."""
        sys.exit(0 if all(row.ok for row in self.rows) else 1)


def surroundings() -> dict[str, str]:
    """When and with what a result is measured: day, commit, the versions of Python and torch, processor.

    A commit is dirty where files differ from it, but for those in docs/results, which a run writes itself.
    """
    commit = _git("rev-parse", "--short=8", "HEAD")
    if _git("diff", "HEAD", "--name-only", "--", ".", ":!docs/results"):
        commit += "-dirty"
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "day": datetime.now(UTC).date().isoformat(),
        "commit": commit or "unknown",
        "python": platform.python_version(),
        "torch": version("torch"),
        "processor": names[0] if names else platform.processor(),
    }


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def run(coroutine: Any) -> Any:
    """Runs a benchmark's coroutine on uvloop, as the services do."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


def run_parts(
    name: str,
    doc: str | None,
    parts: Mapping[str, Callable[[Rows, Any], Any]],
    options: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> None:
    """The command of a benchmark: runs all parts, or those that `--only` names, and ends the process.

    A part takes the rows and the options, and may be a coroutine. `options` are what argparse's `add_argument` takes.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    told = "some parts; their results get a name of their own"
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts), help=told)
    for option, how in options.items():
        parser.add_argument(option, **how)
    given = parser.parse_args()
    rows = Rows.of(name, given.only, parts)
    for part in filter(given.only.__contains__, parts):
        done = parts[part](rows, given)
        if asyncio.iscoroutine(done):
            run(done)
    rows.finish()


def _short(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)

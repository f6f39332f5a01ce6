"""Part `start`: from `aeenc up` to all services SERVING, in an empty home and again in the same one.

The first start compiles nothing (a start before it did) and reads files that the system has in memory. Processor
seconds are those of all processes together: what a quiet machine with two cores cannot undercut is half of them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.rows import ROOT, Rows
from services.launcher.fleet import Fleet
from services.trainer.models.base_model import DEFAULT_NAME, find_base_model

BAR_S = 15.0
TICKS = os.sysconf("SC_CLK_TCK")
CORES = 2


@dataclass(frozen=True)
class Start:
    """Seconds of a start: on the clock, and of all processors."""

    wall_s: float
    cpu_s: float


def start(rows: Rows, scratch: Path, rounds: int) -> None:
    """Starts all services in an empty home and once more, `rounds` times after one that warms the disk's cache."""
    first, second = [], []
    for number in range(rounds + 1):
        home = scratch / f"start-{number}"
        first.append(_up(home))
        second.append(_up(home))
    traced = _up(scratch / "traced", {"AEENC_TRAINER_BASE_MODEL": str(find_base_model(DEFAULT_NAME))})
    median = statistics.median(one.wall_s for one in first[1:])
    told = " ".join(f"{one.wall_s:.1f}" for one in first[1:])
    rows.at_most("aeenc up to SERVING in an empty home, two cores", median, "s", BAR_S, told)
    for what, starts in (("", first[1:]), (", second start", second[1:]), (", model to be traced", [traced])):
        wall_s, cpu_s = (statistics.median(getattr(one, name) for one in starts) for name in ("wall_s", "cpu_s"))
        rows.note(f"processor seconds of all processes{what}", cpu_s, "s", f"{wall_s:.1f} s on the clock")


def _up(home: Path, settings: Mapping[str, str] | None = None) -> Start:
    """One start and its end."""
    command = [sys.executable, "-m", "aeenc.cli.main", "up", "--home", str(home), "--base-port", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment.update(settings or {})
    own = os.times()
    cores = os.sched_getaffinity(0)
    begun = time.perf_counter()
    try:
        os.sched_setaffinity(0, sorted(cores)[:CORES])  # what it starts inherits them
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
        wall_s = time.perf_counter() - begun
        if done.returncode:
            sys.exit(done.stderr)
        launcher = os.times()
        cpu_s = launcher.children_user + launcher.children_system - own.children_user - own.children_system
        fleet = Fleet(home)
        return Start(wall_s, cpu_s + sum(_cpu_s(process.pid) for process in fleet.running().values()))
    finally:
        os.sched_setaffinity(0, cores)
        Fleet(home).down()


def _cpu_s(pid: int) -> float:
    """The processor seconds of a process and of the children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS

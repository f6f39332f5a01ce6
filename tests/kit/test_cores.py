"""The cores that a process may use, read from a file system as Linux shows it, on a node of 64."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from services.encoder.__main__ import _options
from services.encoder.settings import EncoderSettings
from services.index.settings import IndexSettings
from services.kit.settings import usable_cores, usable_memory_bytes
from services.trainer.settings import TrainerSettings

PAGES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
CGROUP, ROOT = "proc/self/cgroup", "sys/fs/cgroup"


def v1(quota: int, group: str = "") -> dict[str, str]:
    """The files of version 1; a container sees its own group at the root of what is mounted."""
    place = f"{ROOT}/cpu,cpuacct{group}"
    limit = {f"{place}/cpu.cfs_quota_us": f"{quota}\n", f"{place}/cpu.cfs_period_us": "50000\n"}
    return {CGROUP: "5:memory:/docker/a\n4:cpu,cpuacct:/docker/a\n", **limit}


def v2(limit: str, group: str = "/") -> dict[str, str]:
    """The files of version 2."""
    return {CGROUP: f"0::{group}\n", f"{ROOT}/cpu.max": f"{limit} 100000\n"}


def memory(place: str, limit: int, group: str = "5:memory:/docker/a\n") -> dict[str, str]:
    return {CGROUP: group, f"{ROOT}/{place}": f"{limit}\n"}


CASES = {
    "version 2 in a container": (usable_cores, v2("200000"), 2),
    "version 2, a pod above": (usable_cores, {**v2("max", "/pod/a"), f"{ROOT}/pod/cpu.max": "200000 100000\n"}, 2),
    "version 2, outside of what is mounted": (usable_cores, v2("200000", "/../b"), 2),
    "version 2, two and a half": (usable_cores, v2("250000"), 2),
    "version 2, half a core": (usable_cores, v2("50000"), 1),
    "version 2 without a limit": (usable_cores, v2("max"), 64),
    "version 1": (usable_cores, v1(100_000, "/docker/a"), 2),
    "version 1 in a container": (usable_cores, v1(100_000), 2),
    "version 1 without a limit": (usable_cores, v1(-1), 64),
    "no cgroups": (usable_cores, {}, 64),
    "memory": (usable_memory_bytes, memory("memory.max", 2**20, "0::/\n"), 2**20),
    "memory, version 1": (usable_memory_bytes, memory("memory/docker/a/memory.limit_in_bytes", 2**20), 2**20),
    "memory, version 1 in a container": (usable_memory_bytes, memory("memory/memory.limit_in_bytes", 2**20), 2**20),
    "memory without a limit": (usable_memory_bytes, memory("memory/memory.limit_in_bytes", 2**63 - 4096), PAGES),
    "memory without cgroups": (usable_memory_bytes, {}, PAGES),
}


@pytest.mark.parametrize(("measure", "files", "expected"), CASES.values(), ids=CASES)
def test_the_limits_of_a_cgroup_bound_cores_and_memory(
    measure: Callable[[Path], int],
    files: dict[str, str],
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert measure(tmp_path) == expected


def test_the_affinity_of_the_process_bounds_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 7, 8})
    assert usable_cores(tmp_path) == 3


def test_workers_and_threads_are_the_usable_cores_unless_set():
    _, workers, _ = _options(EncoderSettings(device="cpu"))
    defaults = (workers, IndexSettings().build_threads, TrainerSettings().threads)
    assert defaults == (usable_cores(),) * 3

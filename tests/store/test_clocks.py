"""A host whose clock is wrong removes nothing that others are writing: the clock of the store counts as well."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from services.index.building import journal
from services.index.distributed import work
from services.store import files, objects
from services.store.objects import Bucket, CachedStore


class AheadClock(datetime):
    """The clock of a host that is days ahead."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return datetime.now(tz) + timedelta(days=9)


@pytest.mark.parametrize(
    "name",
    [
        f"remote/checkpoints/{'0' * 16}/a",
        "one/generations/science/.builds/r/premises.jsonl",
        "remote/generations/science/.builds/r/progress.json",
        f"remote/builds/science-{'0' * 16}/read/000000.facts",
    ],
    ids=["an upload", "a journal", "a journal's copy", "a distributed build"],
)
def test_a_host_whose_clock_is_days_ahead_sweeps_nothing_that_is_new_by_the_clock_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    one, new = CachedStore(tmp_path / "one", Bucket(f"file://{tmp_path / 'remote'}")), tmp_path / name
    new.parent.mkdir(parents=True)
    new.write_bytes(b"{}")
    for module in (files, objects, journal, work):
        monkeypatch.setattr(module, "datetime", AheadClock, raising=False)

    def sweep() -> None:
        one.sweep("checkpoints")
        journal.sweep_journals(one, ["science"], 3600, 3600)
        work.sweep(f"{one.bucket.url}/builds", "science", "", 3600)

    sweep()
    assert new.exists()
    for path in tmp_path.rglob("*"):
        os.utime(path, (0, 0))
    sweep()
    assert not new.exists(), "swept when it is old by both"

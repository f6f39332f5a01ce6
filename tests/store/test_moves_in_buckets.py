"""Which generation is active, as records in a bucket say it: one winner, known while it is away, none undone."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from store.test_objects import FOLDER, age, commit, cut_off, host, pushed, remote

from aeenc import errors
from services.corpus import moves
from services.corpus.active import latest_move, note_change, read_active, write_active
from services.corpus.moves import Move, MoveRequest
from services.store.artifacts import ArtifactStore

__all__ = ["host", "remote"]


def test_moves_in_a_bucket_have_one_winner_and_are_known_while_it_is_away(host: Any):
    stores = [host(name) for name in ("one", "two")]

    def expect_none(active: str) -> None:
        if active:
            raise errors.Aborted(f"{active!r} is active")

    def move(number: int) -> str:
        with suppress(errors.Aborted):
            return write_active(stores[number % 2], "science", f"g{number}", expect_none).generation
        return ""

    with ThreadPoolExecutor(8) as threads:
        [winner] = filter(None, threads.map(move, range(8)))
    assert [read_active(store, "science") for store in stores] == [winner, winner]
    write_active(stores[0], "science", "g9")
    assert latest_move(stores[1], "science").generation == "g9"
    cut_off(stores[1])
    assert latest_move(stores[1], "science").generation == "g9"
    with pytest.raises(errors.Unavailable):
        write_active(stores[1], "science", "g10")
    shutil.rmtree(stores[0].root)
    assert read_active(host("new"), "science") == "g9"


def test_a_directory_that_was_a_store_itself_has_no_say_in_a_bucket(host: Any, tmp_path: Path):
    for number in range(3):
        write_active(ArtifactStore(tmp_path / "one"), "science", f"old{number}")
    one, two = host("one"), host("two")
    assert read_active(one, "science") is None
    write_active(two, "science", "new")
    assert read_active(one, "science") == read_active(two, "science") == "new"


def test_a_directory_that_is_copied_into_a_bucket_is_all_that_the_bucket_needs(host: Any, tmp_path: Path, remote: Path):
    before = ArtifactStore(tmp_path / "before")
    written = commit(before, a="some")
    write_active(before, "science", "g1")
    shutil.copytree(before.root, remote)
    one = host("one")
    assert one.open(FOLDER, written.id, expected_manifest_sha256=written.manifest_sha256)
    assert read_active(one, "science") == "g1"
    assert write_active(one, "science", "g2").previous == "g1"


def test_records_that_are_gone_from_the_bucket_go_from_the_copies(host: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(moves, "KEPT", 4)
    one, two = host("one"), host("two")
    for number in range(10):
        write_active(one, "science", f"g{number}")
        assert read_active(two, "science") == f"g{number}"
    assert len(list(two.root.rglob(".moves-*/*.json"))) <= 5


def test_an_activation_that_a_deletion_overtakes_finds_nothing_to_activate(host: Any):
    """Locks of files do not reach from host to host: the records alone decide."""
    one, two = host("one"), host("two")
    target = pushed(one, a="some").id
    looked = []

    def check(_: str) -> None:
        two.check_exists(FOLDER, target)
        if not looked:  # it is still there, and gone a moment later
            looked.append(True)
            with one.deleting(FOLDER, target):
                note_change(one, "science", MoveRequest("delete"))

    with pytest.raises(errors.NotFound, match=target):
        write_active(two, "science", target, check)
    assert looked
    assert read_active(one, "science") is None


def test_a_deletion_that_an_activation_overtakes_changes_nothing_whoever_sweeps(host: Any, remote: Path):
    one, two = host("one"), host("two")
    target = pushed(one, a="some").id
    age(remote)
    there = sorted((remote / FOLDER / target).iterdir())
    write_active(two, "science", target)

    def check(last: Move) -> Move:
        if last.generation == target:
            raise errors.FailedPrecondition("active")
        return last

    def delete() -> None:
        with one.deleting(FOLDER, target):
            with pytest.raises(errors.NotFound):
                two.check_exists(FOLDER, target)
            two.sweep(FOLDER)
            note_change(one, "science", MoveRequest("delete"), check)

    with pytest.raises(errors.FailedPrecondition):
        delete()
    assert sorted((remote / FOLDER / target).iterdir()) == there
    assert host("three").open(FOLDER, target).id == target

"""The moves of a corpus: one winner for each state."""

import errno
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from aeenc import errors
from services.corpus import moves
from services.corpus.active import MOVES, CopiedRecords, latest_move, note_change, read_active, write_active
from services.corpus.generation import folder_of
from services.corpus.moves import Move, MoveRequest, make_move, read_move
from services.store.artifacts import ArtifactStore


class MemoryRecords:
    """Records in memory, as an object store keeps them. `before_create` runs before each creation."""

    prefix = "memory"

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        self.before_create: Callable[[], None] = lambda: None
        self.loses_answers = False

    def numbers(self) -> list[int]:
        return list(self.records)

    def read(self, number: int) -> bytes | None:
        return self.records.get(number)

    def create(self, number: int, data: bytes) -> bool:
        hook, self.before_create = self.before_create, lambda: None
        hook()
        is_new = number not in self.records
        self.records.setdefault(number, data)
        return is_new and not self.loses_answers

    def remove(self, number: int) -> None:
        self.records.pop(number, None)


GENERATIONS = st.sampled_from(["g1", "g2", "g3"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("move"), GENERATIONS),
        st.tuples(st.just("move, another is faster"), GENERATIONS),
    ),
    max_size=12,
)


@given(STEPS)
def test_the_last_move_is_active_whoever_made_it(steps: list[tuple[str, str]]) -> None:
    records, active = MemoryRecords(), ""
    for number, (step, name) in enumerate(steps):
        expected, generation = active, f"{name} of step {number}"

        def decide(last: Move, expected: str = expected, generation: str = generation) -> Move:
            if last.generation != expected:
                raise errors.Aborted(f"{last.generation}, not {expected}")
            return replace(last, generation=generation)

        if step == "move, another is faster":
            records.before_create = lambda faster=generation: make_move(
                records, lambda last: replace(last, generation=faster)
            )
            with pytest.raises(errors.Aborted):
                make_move(records, decide)
        else:
            assert make_move(records, decide).previous == active
        active = generation
        assert read_move(records).generation == active


@settings(max_examples=30)
@given(st.integers(2, 5), st.booleans())
def test_of_those_who_decide_upon_the_same_state_one_wins(callers: int, loses_answers: bool) -> None:
    records, winners = MemoryRecords(), []
    records.loses_answers = loses_answers

    def race(caller: int) -> None:
        def decide(last: Move) -> Move:
            if last.generation:
                raise errors.Aborted("somebody was faster")
            if caller + 1 < callers:  # all decide, then create in the opposite order
                records.before_create = lambda: race(caller + 1)
            return replace(last, generation=f"g{caller}")

        try:
            make_move(records, decide)
            winners.append(caller)
        except errors.Aborted:
            pass

    race(0)
    assert winners == [callers - 1]
    assert read_move(records).generation == f"g{callers - 1}"


def test_old_records_are_removed_and_whoever_slept_so_long_has_not_won(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "KEPT", 4)
    records = MemoryRecords()

    def others_move() -> None:
        for number in range(9):
            make_move(records, lambda last, number=number: replace(last, generation=f"g{number}"))

    def decide(last: Move) -> Move:
        if last.generation:
            raise errors.Aborted(last.generation)
        return replace(last, generation="late")

    records.before_create = others_move
    with pytest.raises(errors.Aborted, match="g8"):
        make_move(records, decide)
    assert read_move(records).generation == "g8"
    make_move(records, lambda last: replace(last, generation="g9"))
    assert sorted(records.records) == [7, 8, 9, 10]


def race_in_a_process(store: ArtifactStore, me: str, rounds: int, barrier: threading.Barrier, won: object) -> None:
    wins = []
    for number in range(rounds):
        expected = read_active(store, "science") or ""

        def check(active: str, expected: str = expected) -> None:
            if active != expected:
                raise errors.Aborted(active)

        barrier.wait(60)
        try:
            write_active(store, "science", f"g{number}{me}", check)
            wins.append(number)
        except errors.Aborted:
            pass
        barrier.wait(60)
    won.put(wins)  # type: ignore[attr-defined]


def test_two_processes_that_race_have_one_winner_each_time(artifact_store: ArtifactStore) -> None:
    spawn, rounds = multiprocessing.get_context("spawn"), 40
    barrier, won = spawn.Barrier(2), spawn.Queue()
    racers = [
        spawn.Process(target=race_in_a_process, args=(artifact_store, me, rounds, barrier, won)) for me in ("a", "b")
    ]
    for racer in racers:
        racer.start()
    wins = won.get(timeout=60) + won.get(timeout=60)
    for racer in racers:
        racer.join(60)
    assert sorted(wins) == list(range(rounds))


def test_nothing_is_active_until_it_is_written_and_then_the_last_one(artifact_store: ArtifactStore) -> None:
    assert read_active(artifact_store, "science") is None
    write_active(artifact_store, "science", "g1")
    assert write_active(artifact_store, "science", "g2").previous == "g1"
    assert read_active(artifact_store, "science") == "g2"
    assert note_change(artifact_store, "science", MoveRequest("delete")).number == 3
    assert read_active(artifact_store, "science") == "g2"
    assert artifact_store.list(folder_of("science")) == []


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", "null"])
def test_a_record_that_cannot_be_read_is_data_loss_until_another_one_is_written(
    artifact_store: ArtifactStore, content: str
) -> None:
    write_active(artifact_store, "science", "g1")
    [record] = (artifact_store.root / folder_of("science") / MOVES).iterdir()
    record.write_text(content)
    for call in (read_active, lambda *_: note_change(artifact_store, "science", MoveRequest("delete"))):
        with pytest.raises(errors.DataLoss, match="activate a generation again"):
            call(artifact_store, "science")
    write_active(artifact_store, "science", "g2")
    assert latest_move(artifact_store, "science").generation == "g2"


def test_explanations_outlive_activations_also_over_a_damaged_record(artifact_store: ArtifactStore) -> None:
    write_active(artifact_store, "science", "g1")
    note_change(artifact_store, "science", MoveRequest("explain"), lambda last: replace(last, explanations="e"))
    damaged = write_active(artifact_store, "science", "g2")
    (artifact_store.root / folder_of("science") / MOVES / f"{damaged.number:012}.json").write_text("{")
    assert write_active(artifact_store, "science", "g1").explanations == "e"
    assert latest_move(artifact_store, "science").explanations == "e"


def test_what_killed_processes_left_of_their_records_goes_and_what_is_just_being_written_stays(
    artifact_store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = time.time() + 10 * 86_400
    monkeypatch.setattr("time.time", lambda: ahead)  # of a host whose clock is wrong
    write_active(artifact_store, "science", "g1")
    records = artifact_store.root / folder_of("science") / MOVES
    old, new = records / ".new-old", records / ".new-new"
    for left in (old, new):
        left.write_bytes(b"{")
    os.utime(old, (0, 0))
    assert write_active(artifact_store, "science", "g2").number == 2
    assert sorted(path.name for path in records.iterdir()) == [".new-new", f"{1:012}.json", f"{2:012}.json"]


@pytest.mark.parametrize(("code", "is_full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)])
def test_a_full_disk_keeps_no_record_from_the_bucket_and_is_logged_once_and_another_failure_is_told(code, is_full):
    def fails() -> None:
        raise OSError(code, os.strerror(code))

    bucket, copies, without = MemoryRecords(), MemoryRecords(), set[str]()
    copies.before_create = fails
    with structlog.testing.capture_logs() as logged:
        if is_full:
            assert CopiedRecords(bucket, copies, without).create(1, b"one")
        else:
            with pytest.raises(OSError, match=os.strerror(code)):
                CopiedRecords(bucket, copies, without).create(1, b"one")
        for has_room in [False, True, False] * is_full:
            copies.records.clear()
            copies.before_create = (lambda: None) if has_room else fails
            assert CopiedRecords(bucket, copies, without).read(1) == b"one"
    assert [(one["record"], os.strerror(code) in one["reason"]) for one in logged] == [(1, True)] * 2 * is_full
    assert bucket.records == {1: b"one"}

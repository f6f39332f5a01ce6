"""The benchmarks' fleet: jobs that fail, and a home that another run works in."""

import fcntl
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import pytest

from aeenc.trees import Dataset
from aeenc.v1 import trainer_pb2, types_pb2
from benchmarks.harness import kept_fleet as kept
from benchmarks.tables import research as module
from benchmarks.tables.research import Research, Unfinished, research
from benchmarks.tables.table_rows import BY_NAME

FAILED, CANCELLED, SUCCEEDED = (
    types_pb2.WORK_STATE_FAILED,
    types_pb2.WORK_STATE_CANCELLED,
    types_pb2.WORK_STATE_SUCCEEDED,
)


@dataclass
class Trainer:
    """A job that ends so, one time after the other; notes what it was asked."""

    ends: list[int]
    known: int = types_pb2.WORK_STATE_PENDING
    asked: list[str] = field(default_factory=list)

    def info(self):
        return SimpleNamespace(default_space_id="s0")

    def start_job(self, **_):
        return trainer_pb2.Job(id="j1", state=self.known)

    def wait(self, _, on_progress):
        self.asked.append("wait")
        return trainer_pb2.Job(id="j1", state=self.ends.pop(0), version="q1", error="no memory")

    def resume(self, _):
        self.asked.append("resume")


def running(trainer, trees, tmp_path):
    corpora = [SimpleNamespace(corpus="c", active=SimpleNamespace(id="g0", space_id="s0"))]
    index = SimpleNamespace(list_corpora=lambda: corpora)
    return Research(SimpleNamespace(trainer=trainer, index=index), Dataset.load(trees), "c", tmp_path)


def test_a_job_that_fails_is_resumed_once_and_watched_to_its_end(trees, tmp_path):
    trainer = Trainer([FAILED, SUCCEEDED])
    assert running(trainer, trees, tmp_path).train("row-0", {}).version == "q1"
    assert trainer.asked == ["wait", "resume", "wait"]


def test_a_job_that_fails_again_is_left_as_it_is(trees, tmp_path):
    trainer = Trainer([FAILED, FAILED])
    with pytest.raises(Unfinished, match=r"job j1 has failed, and once more .*no memory"):
        running(trainer, trees, tmp_path).train("row-0", {})
    assert trainer.asked == ["wait", "resume", "wait"]


def test_a_job_that_somebody_cancels_goes_on_only_when_it_is_asked_for_again(trees, tmp_path):
    trainer = Trainer([CANCELLED])
    with pytest.raises(Unfinished, match="job j1 was cancelled; run this again"):
        running(trainer, trees, tmp_path).train("row-0", {})
    assert trainer.asked == ["wait"]
    again = Trainer([SUCCEEDED], known=CANCELLED)
    assert running(again, trees, tmp_path).train("row-0", {}).version == "q1"
    assert again.asked == ["resume", "wait"]


def test_the_mode_of_a_rows_job_is_that_of_its_loop(trees, tmp_path, monkeypatch):
    plans = []
    monkeypatch.setattr(module, "Loop", lambda _, plan, *__: SimpleNamespace(go=lambda: plans.append(plan)))
    monkeypatch.setattr(Research, "serve", lambda *_: None)
    monkeypatch.setattr(Research, "pretrained", lambda _: "q0")
    for row in ("ae-enc", "ae-enc-dual", "ae-enc-siamese-no-reg"):
        with pytest.raises(IndexError):  # there are no rounds
            BY_NAME[row].measure(SimpleNamespace(loop=partial(_looped, running(None, trees, tmp_path))), "dev", 0)
    assert [plan.mode for plan in plans] == ["single", "dual", "siamese"]
    assert [plan.job["regularization"] for plan in plans] == [0.1, 0.1, 0.0]
    assert not any("mode" in plan.job for plan in plans)


def _looped(research, *args, **fields):
    research.loop(*args, **fields)
    raise IndexError


def test_a_home_in_which_another_run_works_is_refused_before_its_services_are_touched(trees, tmp_path, monkeypatch):
    touched = []
    monkeypatch.setattr(kept.Fleet, "down", lambda self: touched.append(self.home))
    monkeypatch.setattr(kept.Fleet, "up", lambda *_: pytest.fail("it starts services"))
    monkeypatch.setattr(kept, "inputs_digest", lambda *_: "digest")
    held = tmp_path / "base-digest"
    held.mkdir()
    with (held / "bench.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SystemExit, match=r"bench\.lock is held by another .*once that has ended"):
            research("base", directory=trees, home=tmp_path).__enter__()
    assert not touched


def test_other_gold_among_the_same_premises_and_other_settings_have_a_home_of_their_own(trees, tmp_path, monkeypatch):
    homes = []
    monkeypatch.setattr(kept.Fleet, "down", lambda _: None)
    monkeypatch.setattr(kept.Fleet, "up", lambda self, *_: homes.append(self.home) or pytest.fail("it starts"))

    def start(**settings):
        with pytest.raises(pytest.fail.Exception):
            research("base", directory=trees, home=tmp_path / "homes", **settings).__enter__()
        return homes.pop()

    first = start()
    assert start() == first
    assert start(pooling="cls") != first
    train = trees / "dataset" / "task_1" / "train.jsonl"
    train.write_text(train.read_text().replace("the nail moves", "the nail stays"))
    assert start() != first

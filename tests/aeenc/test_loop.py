"""The loop against services that keep count: what it asks for, when it ends, and that it goes on from any step."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import aeenc
from aeenc import errors
from aeenc.cli.learning.reports import report_dict
from aeenc.loop import Journal, Loop, LoopPlan
from aeenc.trees import Accessible
from aeenc.v1 import sampler_pb2
from support.worlds.loop_world import CountingServices, all_three
from support.worlds.sampler_world import serving


class Killed(BaseException):
    """The process ends here."""


@dataclass
class World:
    services: CountingServices
    target: str
    journal: Path

    async def go(self, *, rounds: int = 4, **fields: Any) -> Journal:
        """One invocation of the loop, as a command would do it."""
        job = fields.pop("job", {"seed": 5})
        plan = LoopPlan("science", [("t", "ice floats")], [("q", ["p"])], rounds=rounds, job=job, **fields)

        def work() -> Journal:
            with (
                Journal.open(self.journal, plan) as journal,
                aeenc.connect(sampler=self.target, trainer=self.target, timeout_s=10) as client,
            ):
                Loop(client, plan, journal, report_dict).go()
            return journal

        return await asyncio.to_thread(work)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    services = CountingServices()
    async with serving(all_three, services) as port:
        yield World(services, f"127.0.0.1:{port}", tmp_path / "loop.json")


async def test_each_round_samples_with_the_encoder_of_the_last_and_learns_from_all_pairs_so_far(world: World):
    journal = await world.go(run={"k": 30})
    services = world.services
    assert [one.version for one in journal.rounds] == ["q0", "q1", "q2", "q3", "q4"]
    assert [list(job.run_ids) for job in services.jobs.values()] == [[f"r{n}" for n in range(1 + m)] for m in range(4)]
    assert {(run.k, run.model.label, run.oracle) for run in services.runs.values()} == {(30, "stable", "gold")}
    assert {(job.base_version, job.seed, job.corpus) for job in services.jobs.values()} == {("", 5, "science")}
    assert services.published == [(f"q{n}", False) for n in (1, 2, 3, 4)]
    assert (journal.ended, services.labels["stable"]) == ("all 4 rounds are done", "q4")
    assert journal.rounds[2].report["strict"]["MAP"] == 0.6
    assert (await world.go(rounds=4, run={"k": 30})).rounds == journal.rounds
    assert len(services.published) == 4, "a loop that has ended does nothing"


async def test_later_rounds_may_sample_otherwise_than_the_first_and_train_on_from_the_round_before(world: World):
    both, positives = sampler_pb2.COLLECT_BOTH, sampler_pb2.COLLECT_POSITIVES_ONLY
    await world.go(rounds=3, run={"k": 30, "collect": both}, later_run={"collect": positives}, restart=False)
    assert [(run.k, run.collect) for run in world.services.runs.values()] == [
        (30, both),
        (30, positives),
        (30, positives),
    ]
    assert [job.base_version for job in world.services.jobs.values()] == ["q0", "q1", "q2"]


@dataclass(frozen=True)
class LaterAccessible(Accessible):
    until_id: str = ""


@dataclass(frozen=True)
class LaterPlan(LoopPlan):
    seeds: int = 1
    notes: list[str] = field(default_factory=list)


def test_a_release_whose_plans_have_further_fields_goes_on_with_the_journal_of_this_one(tmp_path: Path):
    held = {"ice floats": {"before_id": "f7"}, "ice melts": {"only_ids": ["f1", "f2"]}}

    def plan(kind: type[LoopPlan], of: type[Accessible], **fields: Any) -> LoopPlan:
        accessible = {text: of(**one) for text, one in held.items()}
        run = {"accessible": accessible, "k": 20}
        return kind("c", [("t", "ice floats")], [("q", ["p"])], run=run, accessible=accessible, **fields)

    with Journal.open(tmp_path / "loop.json", plan(LoopPlan, Accessible)) as begun:
        pass
    with Journal.open(tmp_path / "loop.json", plan(LaterPlan, LaterAccessible, rounds=9)) as found:
        assert found.identity == begun.identity
    others = [plan(LaterPlan, LaterAccessible, **one) for one in ({"seeds": 2}, {"notes": ["x"]}, {"restart": False})]
    held["ice floats"] = {"only_ids": ["f7"]}
    for other in (*others, plan(LoopPlan, Accessible)):
        with (
            pytest.raises(errors.AlreadyExists, match="other settings"),
            Journal.open(tmp_path / "loop.json", other),
        ):
            pass


async def test_a_second_loop_on_the_journal_of_one_that_runs_is_refused_and_changes_nothing(world: World):
    link = world.journal.with_name("link.json")
    link.symlink_to(world.journal)
    plan = LoopPlan("science", [("t", "ice floats")], [("q", ["p"])], rounds=1, job={"seed": 5})
    with Journal.open(world.journal, plan):
        with pytest.raises(errors.FailedPrecondition, match="of a loop that runs now; wait for its end"):
            await replace(world, journal=link).go(rounds=1)
        assert not world.services.runs
        await replace(world, journal=link.with_name("other.json")).go(rounds=1)
    assert len((await world.go(rounds=1)).rounds) == 2


async def test_a_journal_of_a_newer_release_is_refused_by_name_and_stays(world: World):
    await world.go(rounds=1)
    newer = json.dumps({**json.loads(world.journal.read_text()), "format_version": 2, "rounds": "in another file"})
    world.journal.write_text(newer)
    with pytest.raises(errors.FailedPrecondition, match="has format_version 2, this release reads up to 1"):
        await world.go(rounds=2)
    assert world.journal.read_text() == newer


async def test_a_round_that_lifts_nothing_ends_the_loop_with_the_best_version_served(world: World):
    world.services.maps = [0.4, 0.5, 0.45, 0.9]
    journal = await world.go()
    assert len(world.services.jobs) == 2
    assert world.services.published == [("q1", False)], "what is worse is measured, and the label stays"
    assert (world.services.tried, world.services.labels) == (["q1", "q2"], {"stable": "q1"})
    assert (journal.rounds[2].report["strict"]["MAP"], journal.rounds[2].published) == (0.45, False)
    assert "did not lift" in journal.ended
    assert (await world.go()).ended == journal.ended
    assert (world.services.published, len(world.services.tried)) == ([("q1", False)], 2)


async def test_patience_bears_with_rounds_that_lift_nothing(world: World):
    world.services.maps = [0.4, 0.5, 0.45, 0.9, 0.8]
    journal = await world.go(patience=2)
    assert len(journal.rounds) == 5
    assert world.services.published == [("q1", False), ("q2", True), ("q3", False)], "round 3 samples with q2"
    assert world.services.labels == {"stable": "q3"}
    world.journal.unlink()
    world.services.maps = [0.9, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1]
    world.services.labels = {"stable": "q0"}
    assert len((await world.go(patience=0)).rounds) == 5


async def test_a_loop_that_goes_on_tells_why_it_has_ended_by_now(world: World):
    world.services.maps = [0.5, 0.4, 0.6, 0.3, 0.2]
    assert (await world.go(rounds=1)).ended == "all 1 rounds are done"
    moved = list(world.services.published)
    assert "1 round(s) in a row did not lift" in (await world.go(rounds=6)).ended
    assert (len(world.services.jobs), world.services.published) == (1, moved)
    lifted = await world.go(rounds=6, patience=2)
    assert [one.version for one in lifted.rounds] == ["q0", "q1", "q2", "q3", "q4"]
    assert "2 round(s) in a row" in lifted.ended
    assert world.services.published == [("q1", True), ("q2", False), ("q3", True), ("q2", True)]


async def test_a_trial_that_was_left_behind_is_cleared_away(world: World):
    await world.go(rounds=1)
    identity = json.loads(world.journal.read_text())["id"]
    world.services.labels[f"loop-{identity}"] = "q1"  # killed while it measured
    await world.go(rounds=2)
    assert world.services.labels == {"stable": "q2"}


async def test_a_trial_that_not_every_encoder_serves_leaves_no_label(world: World):
    world.services.behind = True
    with pytest.raises(errors.Aborted, match="not every encoder serves q1"):
        await world.go()
    assert (world.services.tried, world.services.labels) == (["q1"], {"stable": "q0"})


def test_the_name_of_a_new_journal_is_on_disk_before_anything_is_asked_for(tmp_path: Path, monkeypatch):
    done: list[str] = []
    fsync, rename = os.fsync, Path.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: (done.append(str(Path(f"/proc/self/fd/{fd}").readlink())), fsync(fd))[1]
    )
    monkeypatch.setattr(Path, "replace", lambda path, to: (done.append("rename"), rename(path, to))[1])
    with Journal.open(tmp_path / "loops" / "new" / "c.json", LoopPlan("c", [], [])):
        pass
    folders = [str(tmp_path / "loops" / "new"), str(tmp_path / "loops"), str(tmp_path)]
    assert done[0].startswith(str(tmp_path / "loops" / "new" / "."))
    assert done[1:] == ["rename", *folders]


@pytest.mark.parametrize("written", [True, False], ids=["after-the-journal", "before-the-journal"])
async def test_a_loop_goes_on_from_any_step(world: World, tmp_path: Path, monkeypatch, written: bool):
    whole = (await world.go(rounds=2)).rounds
    save: Callable[[Journal], None] = Journal.save
    steps = 0
    while True:
        steps += 1
        fresh = World(CountingServices(), world.target, tmp_path / f"loop-{steps}.json")
        for name, value in vars(fresh.services).items():
            setattr(world.services, name, value)
        left = steps

        def broken(journal: Journal) -> None:
            nonlocal left
            left -= 1
            if left:
                save(journal)
            elif written:
                save(journal)
                raise Killed
            else:
                raise Killed

        monkeypatch.setattr(Journal, "save", broken)
        try:
            await fresh.go(rounds=2)
        except Killed:
            monkeypatch.setattr(Journal, "save", save)
            journal = await fresh.go(rounds=2)
            assert [one.version for one in journal.rounds] == [one.version for one in whole]
            assert [one.report for one in journal.rounds] == [one.report for one in whole]
            if steps > 1 or written:  # before the journal's first word nothing had been asked for
                assert (len(world.services.runs), len(world.services.jobs)) == (2, 2), f"step {steps}"
            assert world.services.labels == {"stable": "q2"}
            assert world.services.published == [("q1", False), ("q2", False)]
        else:
            break
    assert steps > 12


async def test_work_that_failed_is_resumed_once_and_then_named(world: World):
    world.services.failures = 1
    assert (await world.go(rounds=1)).rounds[1].version == "q1"
    assert world.services.resumed == 1
    world.journal.unlink()
    world.services.failures = 5
    with pytest.raises(errors.Aborted, match=r"run r1 of round 1 has not succeeded: no oracle"):
        await world.go(rounds=1)
    world.services.failures = 0
    assert (await world.go(rounds=1)).ended


@pytest.mark.parametrize("work", ["r0", "j1"])
async def test_work_that_somebody_cancelled_is_resumed_only_by_starting_the_loop_again(world: World, work: str):
    world.services.cancelled = {work}
    kind = "run" if work == "r0" else "job"
    with pytest.raises(errors.Aborted, match=f"{kind} {work} of round 1 was cancelled; start the loop again"):
        await world.go(rounds=1)
    assert world.services.resumed == 0
    assert (await world.go(rounds=1)).ended == "all 1 rounds are done"
    assert (world.services.resumed, len(world.services.runs), len(world.services.jobs)) == (1, 1, 1)


async def test_a_run_that_found_nothing_ends_the_loop_with_a_remedy(world: World):
    world.services.positives = 0
    with pytest.raises(errors.FailedPrecondition, match="look at the oracle 'gold'"):
        await world.go()


async def test_a_journal_of_another_loop_is_not_gone_on_with(world: World):
    await world.go(rounds=1)
    with pytest.raises(errors.AlreadyExists, match="other settings"):
        await world.go(rounds=1, job={"seed": 6})
    for content in ("[]", "[" * 100_000, "{", '{"format_version": Infinity}', '{"format_version": 1e999}'):
        world.journal.write_text(content)
        with pytest.raises(errors.InvalidArgument, match="not the journal of a loop"):
            await world.go(rounds=1)

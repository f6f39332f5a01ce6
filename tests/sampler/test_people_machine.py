"""Random walks over people's calls against a model in memory: tasks, trees, counts, pairs and exports say the same."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import aeenc
from aeenc import errors, trees, values
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, UNSEEN, Verdict
from support.waiting import eventually
from support.worlds.sampler_world import NEVER, QUEUE, SamplerWorld, ready

PEOPLE, LEAD, OVERLAP, TREES = ("ann", "bob", "cem"), "lead", 2, 3
ADDED = "p39"
State = values.TaskState
people_st, tasks_st = st.sampled_from(PEOPLE), st.integers(0, TREES - 1)
verdicts_st = st.sampled_from([EXPLAINS, REFUSES, ABSTAINS, UNSEEN])


@dataclass
class TaskModel:
    """What people have said of a task, and what follows."""

    id: str
    asked: list[str]
    overlap: int = OVERLAP
    answers: dict[str, dict[str, int]] = field(default_factory=dict)  # by person
    ids: dict[str, str] = field(default_factory=dict)  # of the answers that hold
    amended_by_others: set[str] = field(default_factory=set)
    leases: dict[str, values.Lease] = field(default_factory=dict)
    adjudicated: dict[str, int] = field(default_factory=dict)
    disputed: set[str] = field(default_factory=set)
    reopens: int = 0
    settled: bool = False

    def votes(self) -> dict[str, Counter[int]]:
        """The verdicts on each candidate and addition."""
        asked = dict.fromkeys([*self.asked, *(key for given in self.answers.values() for key in given)])
        return {key: Counter(given.get(key, UNSEEN) for given in self.answers.values()) for key in asked}

    def decision(self) -> dict[str, int | None]:
        """The verdict on each, None where people disagree; empty while answers are missing."""
        if len(self.answers) < self.overlap:
            return {}
        decided: dict[str, int | None] = {}
        for key, votes in self.votes().items():
            yes, no = votes[EXPLAINS], votes[REFUSES]
            given = ABSTAINS if votes[ABSTAINS] else UNSEEN
            decided[key] = given if not yes and not no else None if yes == no else EXPLAINS if yes > no else REFUSES
        return {**decided, **{key: one for key, one in self.adjudicated.items() if key in decided}}

    @property
    def state(self) -> State:
        """Its state."""
        decision = self.decision()
        if None in decision.values():
            return State.CONFLICT
        waits = not decision and len(self.answers) < self.overlap
        return State.SETTLED if self.settled else State.WAITING if waits else State.DECIDED

    def open_to(self, person: str) -> bool:
        """Whether the person may lease it."""
        room = self.overlap - len(self.answers) - len(self.leases) > 0
        return self.state is State.WAITING and room and person not in self.answers and person not in self.leases


@dataclass
class Bench:
    """A sampler that can be restarted, over one world."""

    world: SamplerWorld
    loop: asyncio.AbstractEventLoop
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        """Starts a sampler, after the one before has ended."""
        await self.stack.aclose()
        queues = {"team": {**QUEUE, "overlap": OVERLAP, "undo_s": NEVER}}
        self.sampler = await self.stack.enter_async_context(self.world.sampler(queues=queues))
        await ready(self.sampler)
        self.people = aeenc.PeopleClient(self.sampler.channel)

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        """The result of a call, made in the sampler's loop."""
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(30)


class PeopleMachine(RuleBasedStateMachine):
    """What anybody does, in any order. A call that the model refuses must be refused."""

    bench: Bench

    @initialize()
    def begin(self) -> None:
        self.looked = 0
        self.order: dict[str, list[TaskModel]] = {name: [] for name in PEOPLE}
        self.tasks = self.bench.run(self._begin())

    async def _begin(self) -> list[TaskModel]:
        bench, roots = self.bench, [(f"tree-{n}", f"hypothesis {n}") for n in range(TREES)]
        run = await bench.sampler.start_run(roots, corpus="science", oracle="team", k=3, max_depth=0)
        self.run_id, found = run.id, list[values.JudgedTask]()

        async def queued() -> bool:
            found[:] = [task async for task in bench.people.list_tasks(run.id)]
            return len(found) == TREES

        await eventually(queued)
        return [TaskModel(one.task.task_id, [c.premise.id for c in one.task.candidates]) for one in found]

    def call(self, refused: bool, call: Coroutine[Any, Any, Any]) -> Any:
        """Makes a call, which must succeed unless it is to be refused."""
        if not refused:
            return self.bench.run(call)
        with pytest.raises((errors.FailedPrecondition, errors.NotFound)):
            self.bench.run(call)
        return None

    @rule(person=people_st, said=st.lists(verdicts_st, min_size=3, max_size=3))
    def answer(self, person: str, said: list[int]) -> None:
        self.lease(person)
        self.submit(person, said, adds=False)

    @rule(person=people_st)
    def lease(self, person: str) -> None:
        leases = self.bench.run(self.bench.people.lease(person, run_id=self.run_id))
        assert bool(leases) == any(task.open_to(person) for task in self.tasks)
        for lease in leases:
            [task] = [task for task in self.tasks if task.id == lease.task.task_id]
            assert task.open_to(person)
            task.leases[person] = lease

    @precondition(lambda self: any(task.leases for task in self.tasks))
    @rule(person=people_st, said=st.lists(verdicts_st, min_size=3, max_size=3), adds=st.booleans())
    def submit(self, person: str, said: list[int], adds: bool) -> None:
        for task in self.tasks:
            if (lease := task.leases.pop(person, None)) is None:
                continue
            if {*said} == {UNSEEN} and not adds:
                said = [ABSTAINS, *said[1:]]
            given = dict(zip(task.asked, said, strict=True)) | ({ADDED: EXPLAINS} if adds else {})
            verdicts = {key: Verdict(one) for key, one in given.items() if key != ADDED}
            refused = len(task.answers) >= task.overlap
            call = self.bench.people.submit(lease, verdicts, additions=[ADDED] if adds else [])
            if done := self.call(refused, call):
                task.answers[person], task.ids[person] = given, done.answer_id
                self.order[person].append(task)
            return

    @precondition(lambda self: any(task.leases for task in self.tasks))
    @rule(person=people_st)
    def release(self, person: str) -> None:
        for task in self.tasks:
            if lease := task.leases.pop(person, None):
                self.bench.run(self.bench.people.release(lease.lease_id))

    @rule(person=people_st)
    def undo(self, person: str) -> None:
        person = person if self.order[person] else max(PEOPLE, key=lambda name: len(self.order[name]))
        task = self.order[person][-1] if self.order[person] else None
        decided = task is not None and (
            task.settled or task.adjudicated.keys() - task.disputed or person in task.amended_by_others
        )
        self.call(task is None or bool(decided), self.bench.people.undo(person, self.run_id))
        if task is None or decided:
            return
        self.order[person].pop()
        del task.answers[person], task.ids[person]
        if task.reopens:
            task.overlap, task.reopens, task.adjudicated, task.disputed = task.reopens, 0, {}, set()

    @precondition(lambda self: any(self.order.values()))
    @rule(person=people_st, place=tasks_st, candidate=st.integers(0, 2), verdict=verdicts_st, others=st.booleans())
    def amend(self, person: str, place: int, candidate: int, verdict: int, others: bool) -> None:
        task = self._chosen(place, lambda one: bool(one.answers))
        person = person if person in task.answers else min(task.answers)
        key = task.asked[candidate]
        call = self.bench.people.amend(task.ids[person], {key: Verdict(verdict)}, LEAD if others else person)
        if made := self.call(key in task.adjudicated, call):
            task.ids[person], task.answers[person] = made, {**task.answers[person], key: verdict}
            task.amended_by_others |= {person} if others else set()

    @precondition(lambda self: any(task.state is State.CONFLICT for task in self.tasks))
    @rule(place=tasks_st, verdict=verdicts_st)
    def adjudicate(self, place: int, verdict: int) -> None:
        task = self._chosen(place, lambda one: one.state is State.CONFLICT)
        decides = {key: verdict for key, one in task.decision().items() if one is None}
        said = {key: Verdict(one) for key, one in decides.items()}
        self.bench.run(self.bench.people.adjudicate(self.run_id, task.id, said, LEAD))
        task.adjudicated |= decides

    def _chosen(self, place: int, fits: Callable[[TaskModel], bool]) -> TaskModel:
        """The first fitting task from a place on."""
        return next(task for task in (*self.tasks[place:], *self.tasks[:place]) if fits(task))

    @rule(place=tasks_st)
    def close(self, place: int) -> None:
        task, state = self.tasks[place], self.tasks[place].state
        self.call(task.settled, self.bench.people.close(self.run_id, task.id, LEAD))
        if not task.settled and state is not State.DECIDED:
            task.leases, task.reopens, task.overlap = {}, task.overlap, len(task.answers)
            task.disputed = {key for key, one in task.decision().items() if one is None}
            task.adjudicated |= dict.fromkeys(task.disputed, ABSTAINS)

    @rule(place=tasks_st, person=people_st)
    def settle(self, place: int, person: str) -> None:
        task = self.tasks[place]
        done = task.settled and task.state is State.SETTLED
        if task.settled:
            return
        refused = not done and (task.state is not State.DECIDED or person not in task.answers)
        if self.call(refused, self.bench.people.settle(self.run_id, task.id, person)):
            task.settled = True
            self.bench.run(eventually(lambda: self._judged(place)))

    async def _judged(self, place: int) -> bool:
        [root] = (await self.bench.people.get_tree(self.run_id, f"tree-{place}")).nodes
        return root.state is State.SETTLED

    @rule(again=st.sampled_from(["restart", "cancel"]))
    def interrupt(self, again: str) -> None:
        if again == "restart":
            self.bench.run(self.bench.start())
        elif not all(task.settled for task in self.tasks):
            self.bench.run(self.bench.sampler.cancel(self.run_id))
            self.bench.run(self.bench.sampler.resume(self.run_id))

    @invariant()
    def all_say_the_same(self) -> None:
        if hasattr(self, "tasks"):
            self.bench.run(self._compare())

    async def _compare(self) -> None:
        people, models = self.bench.people, {task.id: task for task in self.tasks}
        async for found in people.list_tasks(self.run_id):
            task, decision = models[found.task.task_id], models[found.task.task_id].decision()
            assert found.state is task.state
            assert {
                one.annotator: {v.premise_id: v.judgement for v in (*one.verdicts, *one.additions)}
                for one in found.answers
            } == task.answers
            assert {one.premise_id: one.judgement for one in found.decision.verdicts} == {
                key: one for key, one in decision.items() if one is not None
            }
            assert {*found.conflicts} == {key for key, one in decision.items() if one is None}
        place = self.looked % TREES
        [root] = (await people.get_tree(self.run_id, f"tree-{place}")).nodes
        if self.tasks[place].state in (State.DECIDED, State.SETTLED):
            accepted = {key for key, one in self.tasks[place].decision().items() if one == EXPLAINS}
            assert {one.premise_id for one in root.accepted} == accepted
        states = Counter(task.state for task in self.tasks)
        self.looked += 1
        for person in [PEOPLE[self.looked % len(PEOPLE)]]:
            [queue] = await people.list_queues(person)
            for found in (one for one in queue.runs if one.run_id == self.run_id):
                assert (found.tasks, found.waiting, found.decided, found.conflicts, found.settled) == (
                    TREES,
                    *(states[state] for state in (State.WAITING, State.DECIDED, State.CONFLICT, State.SETTLED)),
                )
                assert found.free == sum(task.open_to(person) for task in self.tasks)
                assert found.mine == found.mine_hour == len(self.order[person])
                assert found.answers_hour == sum(map(len, self.order.values()))
                assert found.leased == sum(bool(task.leases) for task in self.tasks)

    def teardown(self) -> None:
        if hasattr(self, "tasks"):
            self.bench.run(self._compare_results())

    async def _compare_results(self) -> None:
        sampler, signs = self.bench.sampler, {EXPLAINS: "POSITIVE", REFUSES: "NEGATIVE"}
        latest, texts = dict[tuple[str, str], str](), dict[str, str]()
        async for pair in sampler.list_pairs(self.run_id):
            latest[pair.query, pair.premise_id], texts[pair.premise_id] = pair.sign.name, pair.premise
        expected = {
            (f"hypothesis {place}", key): signs.get(one or ABSTAINS, "SKIPPED")
            for place, task in enumerate(self.tasks)
            for key, one in task.decision().items()
            if task.settled and (key != ADDED or (f"hypothesis {place}", key) in latest)
        }
        assert latest == expected
        exported = {
            name: trees.tree_from_record(json.loads(one)) async for name, one in sampler.export_trees(self.run_id)
        }
        leaves = {name: {one.texts[label] for label in one.leaves} for name, one in exported.items()}
        accepted = {
            f"tree-{place}": {texts[key] for key, one in task.decision().items() if one == EXPLAINS}
            for place, task in enumerate(self.tasks)
            if task.settled
        }
        assert leaves == {name: found for name, found in accepted.items() if found}
        if not all(task.settled for task in self.tasks):
            await sampler.cancel(self.run_id)


@pytest.mark.parametrize("walks", [9, pytest.param(int(os.environ.get("WALKS", "250")), marks=pytest.mark.soak)])
@pytest.mark.timeout(3600)
async def test_whatever_people_do_tasks_trees_counts_pairs_and_exports_say_the_same(world: SamplerWorld, walks: int):
    bench = Bench(world, asyncio.get_running_loop())
    await bench.start()
    PeopleMachine.bench = bench
    given = settings(
        max_examples=walks,
        stateful_step_count=40,
        deadline=None,
        derandomize=walks < 100,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    try:
        await asyncio.to_thread(run_state_machine_as_test, PeopleMachine, settings=given)
    finally:
        await bench.stack.aclose()

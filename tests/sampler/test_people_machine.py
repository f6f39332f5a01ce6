"""Random walks over people's calls against a model in memory: tasks, trees, counts, pairs and exports say the same.

Two samplers share the run, whose trees grow by one level; one of them ends, or dies, and is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import AsyncMock, patch

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
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, UNSEEN, Answer, Verdict
from services.sampler.execution import run_worker
from services.store.redis import WorkLease
from support.waiting import eventually
from support.worlds.sampler_world import NEVER, QUEUE, SamplerWorld, ready

PEOPLE, LEAD, OVERLAP, TREES = ("ann", "bob", "cem"), "lead", 2, 3
ADDED = "p39"
State = values.TaskState
people_st, tasks_st = st.sampled_from(PEOPLE), st.integers(0, 11)
verdicts_st = st.sampled_from([EXPLAINS, REFUSES, ABSTAINS, UNSEEN])


@dataclass
class TaskModel:
    """What people have said of a task, and what follows."""

    id: str
    query: str
    asked: list[str]
    wanted: bool = True  # some tree needs it: it is a root, or a settled root accepts it
    grown: set[str] = field(default_factory=set)  # of a settled root, what it accepted when nobody disagreed last
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
        if waits and not self.settled and not (self.wanted or self.answers or self.leases):
            return State.WITHDRAWN
        return State.SETTLED if self.settled else State.WAITING if waits else State.DECIDED

    def accepted(self) -> set[str]:
        """The ids of what explains it."""
        return {key for key, one in self.decision().items() if one == EXPLAINS}

    def open_to(self, person: str) -> bool:
        """Whether the person may lease it."""
        room = self.overlap - len(self.answers) - len(self.leases) > 0
        return self.state is State.WAITING and room and person not in self.answers and person not in self.leases


@dataclass
class Bench:
    """Two samplers that can be restarted, over one world; calls go to them by turns."""

    world: SamplerWorld
    loop: asyncio.AbstractEventLoop
    stacks: list[AsyncExitStack] = field(default_factory=lambda: [AsyncExitStack(), AsyncExitStack()])
    samplers: dict[int, aeenc.SamplerClient] = field(default_factory=dict)
    turn: int = 0

    async def start(self, place: int, *, dies: bool = False) -> None:
        """Starts a sampler, after the one before has ended, or died with its lease in its hands."""
        with patch.object(WorkLease, "release", AsyncMock()) if dies else contextlib.nullcontext():
            await self.stacks[place].aclose()
        leases = {"first_lease_s": NEVER, "min_lease_s": NEVER}  # none ends, however slow the machine is
        queues = {"team": {**QUEUE, **leases, "overlap": OVERLAP, "undo_s": NEVER}}
        sampler = await self.stacks[place].enter_async_context(self.world.sampler(queues=queues, lease_s=1.0))
        await ready(sampler)
        self.samplers[place] = sampler

    @property
    def sampler(self) -> aeenc.SamplerClient:
        """The one whose turn it is."""
        self.turn += 1
        return self.samplers[self.turn % len(self.samplers)]

    @property
    def people(self) -> aeenc.PeopleClient:
        """The people's calls of the one whose turn it is."""
        return aeenc.PeopleClient(self.sampler.channel)

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        """The result of a call, made in the sampler's loop."""
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(30)


class PeopleMachine(RuleBasedStateMachine):
    """What anybody does, in any order. A call that the model refuses must be refused."""

    bench: Bench

    @initialize()
    def begin(self) -> None:
        self.looked, self.differing = 0, set[tuple[str, str]]()
        self.order: dict[str, list[TaskModel]] = {name: [] for name in PEOPLE}
        self.tasks = self.bench.run(self._begin())
        self.agree([EXPLAINS, EXPLAINS, REFUSES], LEAD)

    async def _begin(self) -> list[TaskModel]:
        bench, roots = self.bench, [(f"tree-{n}", f"hypothesis {n}") for n in range(TREES)]
        run = await bench.sampler.start_run(roots, corpus="science", oracle="team", k=3, max_depth=1)
        self.run_id, found = run.id, list[values.JudgedTask]()

        async def queued() -> bool:
            found[:] = [task async for task in bench.people.list_tasks(run.id)]
            return len(found) == TREES

        await eventually(queued)
        return sorted(map(_model, found), key=lambda task: task.query)

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

    @rule(said=st.lists(verdicts_st, min_size=3, max_size=3), skipped=people_st)
    def agree(self, said: list[int], skipped: str) -> None:
        for person in PEOPLE:
            if person != skipped:
                self.answer(person, said)
        for place, task in enumerate(self.tasks):
            if task.state is State.DECIDED and task.answers:
                self.settle(place, min(task.answers))

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
            adds = adds and ADDED not in task.asked and task.query != text_of(ADDED)
            if {*said} == {UNSEEN} and not adds:
                said = [ABSTAINS, *said[1:]]
            given = dict(zip(task.asked, said, strict=True)) | ({ADDED: EXPLAINS} if adds else {})
            verdicts = {key: Verdict(one) for key, one in given.items() if key != ADDED}
            refused = len(task.answers) >= task.overlap
            call = self.bench.people.submit(lease, Answer(verdicts, additions=[ADDED] if adds else []))
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
        place %= len(self.tasks)
        return next(task for task in (*self.tasks[place:], *self.tasks[:place]) if fits(task))

    @rule(place=tasks_st)
    def close(self, place: int) -> None:
        task = self._chosen(place, lambda _: True)
        state = task.state
        self.call(task.settled, self.bench.people.close(self.run_id, task.id, LEAD))
        if not task.settled and state not in (State.DECIDED, State.WITHDRAWN):
            task.leases, task.reopens, task.overlap = {}, task.overlap, len(task.answers)
            task.disputed = {key for key, one in task.decision().items() if one is None}
            task.adjudicated |= dict.fromkeys(task.disputed, ABSTAINS)

    @rule(place=tasks_st, person=people_st)
    def settle(self, place: int, person: str) -> None:
        task = self._chosen(place, lambda _: True)
        if task.settled or [one for one in self.tasks[:TREES] if not one.settled] == [task]:  # else the run would end
            return
        refused = task.state is not State.DECIDED or person not in task.answers
        if self.call(refused, self.bench.people.settle(self.run_id, task.id, person)):
            task.settled = True
            self.bench.run(eventually(lambda: self._recorded(task.query)))

    async def _recorded(self, query: str) -> bool:
        return any([pair.query == query async for pair in self.bench.sampler.list_pairs(self.run_id)])

    @rule(place=st.integers(0, 1), again=st.sampled_from(["restart", "kill", "cancel"]))
    def interrupt(self, place: int, again: str) -> None:
        if again != "cancel":
            self.bench.run(self.bench.start(place, dies=again == "kill"))
        else:
            self.bench.run(self.bench.sampler.cancel(self.run_id))
            self.bench.run(self.bench.sampler.resume(self.run_id))

    async def _grown(self) -> bool:
        """Whether the tasks are those that the trees need now, in the states of the model."""
        found = {one.task.query: one async for one in self.bench.people.list_tasks(self.run_id)}
        for root in self.tasks[:TREES]:
            if root.settled and root.state is not State.CONFLICT:
                root.grown = root.accepted()
        wanted = {text_of(key) for root in self.tasks[:TREES] for key in root.grown}
        self.tasks += [_model(found[query]) for query in sorted(wanted & found.keys() - {t.query for t in self.tasks})]
        self.tasks[TREES:] = sorted(self.tasks[TREES:], key=lambda task: task.query)
        for child in self.tasks[TREES:]:
            child.wanted = child.query in wanted
        there = {query: one.state.name for query, one in found.items()}
        expected = dict.fromkeys(wanted, "to be asked") | {one.query: one.state.name for one in self.tasks}
        self.differing = {*there.items()} ^ {*expected.items()}  # queries and states, found or expected
        return not self.differing

    @invariant()
    def all_say_the_same(self) -> None:
        if hasattr(self, "tasks"):
            self.bench.run(self._compare())

    async def _compare(self) -> None:
        with contextlib.suppress(AssertionError):
            await eventually(self._grown)
        assert self.differing == set()
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
        await eventually(lambda: self._tree_says_the_same(place))  # the tree grows, or is cut, a moment later
        states = Counter(task.state for task in self.tasks)
        self.looked += 1
        for person in [PEOPLE[self.looked % len(PEOPLE)]]:
            [queue] = await people.list_queues(person)
            for found in (one for one in queue.runs if one.run_id == self.run_id):
                assert (found.tasks, found.waiting, found.decided, found.conflicts, found.settled) == (
                    len(self.tasks) - states[State.WITHDRAWN],
                    *(states[state] for state in (State.WAITING, State.DECIDED, State.CONFLICT, State.SETTLED)),
                )
                assert found.free == sum(task.open_to(person) for task in self.tasks)
                assert found.mine == found.mine_hour == len(self.order[person])
                assert found.answers_hour == sum(map(len, self.order.values()))
                assert found.leased == sum(bool(task.leases) for task in self.tasks)

    async def _tree_says_the_same(self, place: int) -> bool:
        task = self.tasks[place]
        root, *below = (await self.bench.people.get_tree(self.run_id, f"tree-{place}")).nodes
        shown, grown = {node.text: node for node in below}, {*map(text_of, task.grown)}
        is_decided = task.state in (State.DECIDED, State.SETTLED)
        return (
            (not is_decided or {one.premise_id for one in root.accepted} == task.accepted())
            and shown.keys() >= grown
            and all(shown[text].state is State.SETTLED for text in shown.keys() - grown)
        )

    def teardown(self) -> None:
        if hasattr(self, "tasks"):
            self.bench.run(self._compare_results())

    async def _compare_results(self) -> None:
        sampler, signs = self.bench.sampler, {EXPLAINS: "POSITIVE", REFUSES: "NEGATIVE"}
        latest = dict[tuple[str, str], str]()
        async for pair in sampler.list_pairs(self.run_id):
            latest[pair.query, pair.premise_id] = pair.sign.name
        assert latest == {
            (task.query, key): signs.get(one or ABSTAINS, "SKIPPED")
            for task in self.tasks
            for key, one in task.decision().items()
            if task.settled and (key != ADDED or (task.query, key) in latest)
        }
        by_query = {task.query: task for task in self.tasks}

        async def all_exported() -> bool:
            records = {name: json.loads(one) async for name, one in sampler.export_trees(self.run_id)}
            found = {name: trees.tree_from_record(one) for name, one in records.items()}
            leaves = {name: {one.texts[label] for label in one.leaves} for name, one in found.items()}
            expected = {
                f"tree-{place}": {leaf for key in root.accepted() for leaf in self._leaves(text_of(key), by_query)}
                for place, root in enumerate(self.tasks[:TREES])
                if root.settled
            }
            return leaves == {name: some for name, some in expected.items() if some}

        if not any(root.state is State.CONFLICT for root in self.tasks[:TREES]):  # else trees wait for a decision
            await eventually(all_exported)
        await sampler.cancel(self.run_id)

    def _leaves(self, text: str, by_query: dict[str, TaskModel]) -> set[str]:
        """What explains an accepted premise in a tree, or itself."""
        child = by_query.get(text)
        return ({*map(text_of, child.accepted())} - {text} if child and child.settled else set()) or {text}


def text_of(premise_id: str) -> str:
    """The text of a premise of the fake index."""
    return f"fact {premise_id.removeprefix('p')}"


def _model(found: values.JudgedTask) -> TaskModel:
    return TaskModel(found.task.task_id, found.task.query, [one.premise.id for one in found.task.candidates])


@pytest.mark.parametrize("walks", [6, pytest.param(int(os.environ.get("WALKS", "250")), marks=pytest.mark.soak)])
@pytest.mark.timeout(3600)
async def test_whatever_people_do_tasks_trees_counts_pairs_and_exports_say_the_same(
    world: SamplerWorld, walks: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_worker, "LOOK_S", 0.02)
    bench = Bench(world, asyncio.get_running_loop())
    for place in range(2):
        await bench.start(place)
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
        for stack in bench.stacks:
            await stack.aclose()

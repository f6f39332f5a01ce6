"""What people accept of a judged node later: the tree grows below it, whatever has happened to the run meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import pytest

import aeenc
from aeenc import trees, values
from aeenc.oracle import EXPLAINS, REFUSES, Answer, Verdict, Verdicts
from services.sampler.people.gateway import PeopleGateway
from services.sampler.people.task_store import TaskStore
from services.sampler.people.tasks import TaskRecord
from support.waiting import eventually
from support.worlds.sampler_world import NEVER, SamplerWorld, at_work, nearest, pairs, staffed, take, tasks


async def tree_of(people: aeenc.PeopleClient, run_id: str, tree: str = "tree-0") -> dict[str, str]:
    """The texts of a tree's nodes, each with its state."""
    return {node.text: node.state.name for node in (await people.get_tree(run_id, tree)).nodes}


async def waits(people: aeenc.PeopleClient, run_id: str, *queries: str, state: str = "WAITING") -> None:
    """Returns once each query waits for people, or the run has recorded what was said of it (`SETTLED`)."""
    wanted = dict.fromkeys(queries, state).items()
    await eventually(lambda: tree_of(people, run_id), is_so=lambda found: wanted <= found.items())


async def cut(people: aeenc.PeopleClient, run_id: str, *queries: str) -> None:
    """Returns once the first tree has none of the queries."""
    await eventually(lambda: tree_of(people, run_id), is_so=lambda found: not {*queries} & found.keys())


async def ended(sampler: aeenc.SamplerClient, run_id: str) -> tuple[str, int, int]:
    """The state of a run that ends, and how many of its nodes are judged and pending."""
    run = await asyncio.wait_for(sampler.wait(run_id), 40)
    return run.state.name, run.progress.nodes_judged, run.progress.nodes_pending


async def amend_root(people: aeenc.PeopleClient, run_id: str, verdicts: Verdicts) -> str:
    """Amends the only answer to the first hypothesis; returns the id of the answer that is valid now."""
    asked = [task for task in await tasks(people, run_id) if task.task.query == "hypothesis 0"]
    [answer] = [one for task in asked for one in task.answers]
    return await people.amend(answer.answer_id, verdicts, "ann")


@pytest.mark.parametrize("is_resumed", [False, True])
async def test_an_amendment_holds_in_every_tree_that_asks_the_query(world: SamplerWorld, is_resumed: bool):
    """A third tree keeps the run going, unless it has ended by then."""
    async with staffed(world) as (people, sampler):
        roots = [("tree-0", "hypothesis 0"), ("tree-1", "hypothesis 0"), ("tree-2", "hypothesis 2")]
        run = await sampler.start_run(
            roots[: 2 if is_resumed else 3], corpus="science", oracle="team", k=4, max_depth=1
        )
        await waits(people, run.id, "hypothesis 0")
        root = await take(people, "ann", run.id, "tree-0")
        await people.submit(root, [])
        for one in ("tree-0", "tree-1"):
            await eventually(partial(tree_of, people, run.id, one), is_so={"hypothesis 0": "SETTLED"}.__eq__)
        if is_resumed:
            await asyncio.wait_for(sampler.wait(run.id), 40)
        found = root.task.candidates[1].premise
        await amend_root(people, run.id, {found.id: Verdict(EXPLAINS)})
        for one in ("tree-0", "tree-1"):
            accepted = (await people.get_tree(run.id, one)).nodes[0].accepted
            assert [premise.premise_id for premise in accepted] == [found.id]
        if is_resumed:
            await sampler.resume(run.id)
        for one in ("tree-0", "tree-1"):
            await eventually(partial(tree_of, people, run.id, one), is_so=lambda grown: found.text in grown)
        below = await take(people, "ann", run.id, "tree-0")
        assert below.task.query == found.text
        await people.submit(below, {below.task.candidates[0].premise.id: Verdict(EXPLAINS, leaf=True)})
        if not is_resumed:
            await people.submit(await take(people, "ann", run.id, "tree-2"), [])
        state, _, pending = await ended(sampler, run.id)
        assert (state, pending) == ("SUCCEEDED", 0)
        exported = {name: record async for name, record in sampler.export_trees(run.id)}
        assert exported.keys() == {"tree-0", "tree-1"}
        assert all(found.text in str(one) for one in exported.values())
        assert len({str(one).replace("tree-1", "tree-0") for one in exported.values()}) == 1


async def test_what_stands_deeper_is_judged_before_or_after_what_has_grown(world: SamplerWorld):
    async with at_work(world, 1, run={"max_depth": 2}, undo_s=0.0) as (people, sampler, run_id):
        root = await take(people, "ann")
        first, second = (one.premise for one in root.task.candidates[:2])
        await people.submit(root, {first.id: Verdict(EXPLAINS)})
        await waits(people, run_id, first.text)
        child = await take(people, "ann")
        below = next(one.premise for one in child.task.candidates if one.premise.text != second.text)
        await people.submit(child, {below.id: Verdict(EXPLAINS)})
        await waits(people, run_id, below.text)
        await amend_root(people, run_id, {second.id: Verdict(EXPLAINS)})
        await waits(people, run_id, second.text)
        leases = {one.task.query: one for one in await people.lease("ann", max_tasks=2)}
        await people.submit(leases[second.text], [])
        await waits(people, run_id, second.text, state="SETTLED")
        assert not (await people.get_tree(run_id, "tree-0")).finished, "a node waits further down"
        await people.submit(leases[below.text], [])
        run = await asyncio.wait_for(sampler.wait(run_id), 40)
        assert (run.state.name, run.progress.trees_done, run.progress.nodes_judged) == ("SUCCEEDED", 1, 4)


async def test_a_cut_node_that_somebody_holds_is_recorded_when_they_answer_and_else_asked_no_more(world: SamplerWorld):
    async with at_work(world, 1, run={"max_depth": 1}, undo_s=0.0) as (people, sampler, run_id):
        root = await take(people, "ann")
        first, second = (one.premise for one in root.task.candidates[:2])
        await people.submit(root, {first.id: EXPLAINS, second.id: EXPLAINS})
        await waits(people, run_id, first.text, second.text)
        one, two = await people.lease("ann", max_tasks=2)
        await amend_root(people, run_id, {first.id: REFUSES, second.id: REFUSES})
        await cut(people, run_id, first.text, second.text)
        await people.submit(one, [])
        await people.release(two.lease_id)
        assert await ended(sampler, run_id) == ("SUCCEEDED", 2, 0)
        assert {pair.query for pair in await pairs(sampler, run_id)} == {"hypothesis 0", one.task.query}


async def state_of(people: aeenc.PeopleClient, run_id: str, query: str) -> str:
    """The state of the only task that asks a query."""
    [state] = [task.state.name for task in await tasks(people, run_id) if task.task.query == query]
    return state


@pytest.mark.parametrize("end", ["is released", "is answered", "nobody holds it"])
async def test_a_cut_node_whose_sampler_ends_is_let_go_by_the_next_one_once_nobody_has_begun_it(
    world: SamplerWorld, monkeypatch: pytest.MonkeyPatch, end: str
):
    """The sampler ends before it has withdrawn the task that nobody holds."""
    async with at_work(world, 2, run={"max_depth": 1}, undo_s=0.0) as (people, sampler, run_id):
        root = await take(people, "ann", run_id, "tree-0")
        first = root.task.candidates[0].premise
        await people.submit(root, {first.id: EXPLAINS})
        await waits(people, run_id, first.text)
        lease = None if end == "nobody holds it" else await take(people, "ann", run_id, "tree-0")
        monkeypatch.setattr(PeopleGateway, "withdraw", AsyncMock())
        await amend_root(people, run_id, {first.id: REFUSES})
        await cut(people, run_id, first.text)
    monkeypatch.undo()
    async with staffed(world, undo_s=0.0) as (people, sampler):
        if lease is not None:
            await eventually(sampler.info, is_so=lambda info: run_id in info.active_runs)
            assert await state_of(people, run_id, first.text) == "WAITING", "somebody holds it"
        if end == "is answered":
            await people.submit(lease, [])
        else:
            if lease is not None:
                await people.release(lease.lease_id)
            await eventually(lambda: state_of(people, run_id, first.text), is_so="WITHDRAWN".__eq__)
        [other] = await people.lease("bob", run_id=run_id, max_tasks=5)
        assert other.task.query == "hypothesis 1", "the task of the cut node is nobody's"
        await people.submit(other, [])
        assert await ended(sampler, run_id) == ("SUCCEEDED", 3 if end == "is answered" else 2, 0)


async def test_a_node_below_the_level_in_work_leaves_the_queue_when_it_is_cut_after_a_restart(world: SamplerWorld):
    async with at_work(world, 1, run={"max_depth": 2}, undo_s=0.0) as (people, sampler, run_id):
        root = await take(people, "ann")
        first, second = (one.premise for one in root.task.candidates[:2])
        await people.submit(root, {first.id: EXPLAINS})
        await waits(people, run_id, first.text)
        child = await take(people, "ann")
        below = next(one.premise for one in child.task.candidates if one.premise.text != second.text)
        await people.submit(child, {below.id: EXPLAINS})
        await waits(people, run_id, below.text)
        changed = await amend_root(people, run_id, {second.id: EXPLAINS})
        await waits(people, run_id, second.text)
    async with staffed(world, undo_s=0.0) as (people, sampler):
        await people.amend(changed, {first.id: REFUSES}, "ann")
        await eventually(lambda: state_of(people, run_id, below.text), is_so="WITHDRAWN".__eq__)
        await people.submit(await take(people, "ann"), [])
        assert await ended(sampler, run_id) == ("SUCCEEDED", 3, 0)


async def test_a_node_that_is_cut_before_its_task_is_queued_leaves_the_queue_once_it_is_there(
    world: SamplerWorld, monkeypatch: pytest.MonkeyPatch
):
    put, withdraw, looked = TaskStore.put, PeopleGateway.withdraw, asyncio.Event()

    async def withdraw_and_note(gateway: PeopleGateway, run_id: str, node_ids: list[str]) -> None:
        try:
            await withdraw(gateway, run_id, node_ids)
        finally:
            looked.set()

    async def amend_and_put(store: TaskStore, new: list[TaskRecord]) -> None:
        if not looked.is_set() and first.text in {one.task.query for one in new}:
            await amend_root(people, run_id, {first.id: REFUSES})
            await asyncio.wait_for(looked.wait(), 20)
        await put(store, new)

    async with at_work(world, 1, run={"max_depth": 1}, undo_s=0.0) as (people, sampler, run_id):
        root = await take(people, "ann")
        first, second = (one.premise for one in root.task.candidates[:2])
        monkeypatch.setattr(PeopleGateway, "withdraw", withdraw_and_note)
        monkeypatch.setattr(TaskStore, "put", amend_and_put)
        await people.submit(root, {first.id: EXPLAINS, second.id: EXPLAINS})
        await asyncio.wait_for(looked.wait(), 20)
        await waits(people, run_id, second.text)
        await eventually(lambda: is_gone_from(people, run_id, first.text))
        await people.submit(await take(people, "ann"), [])
        assert await ended(sampler, run_id) == ("SUCCEEDED", 2, 0)


async def test_an_answer_that_accepts_a_cut_node_opens_it_again_whoever_works_on_the_run(world: SamplerWorld):
    async with at_work(world, 1, run={"max_depth": 2}, undo_s=0.0) as (people, sampler, run_id):
        root = await take(people, "ann")
        first, second = (one.premise for one in root.task.candidates[:2])
        await people.submit(root, {first.id: EXPLAINS, second.id: EXPLAINS})
        await waits(people, run_id, first.text, second.text)
        await amend_root(people, run_id, {first.id: REFUSES})
        await eventually(lambda: is_gone_from(people, run_id, first.text))
        await people.submit(await take(people, "ann"), Answer([], additions=[first.id]))
        await waits(people, run_id, first.text)
        assert (await sampler.get_run(run_id)).progress.nodes_pending == 1
        await people.submit(await take(people, "ann"), [])
        assert await ended(sampler, run_id) == ("SUCCEEDED", 3, 0)
        events = [seen.progress.nodes_pending async for _, seen in sampler.watch(run_id)]
        assert min(events) == events[-1] == 0


async def is_gone_from(people: aeenc.PeopleClient, run_id: str, text: str) -> bool:
    """Whether the first tree has a node no more, and one task is left to take."""
    [queue] = await people.list_queues()
    return text not in await tree_of(people, run_id) and queue.total.waiting == 1


FACT, ABOVE = "fact 7", nearest("fact 7", 9)[0]
LAST_ID, LAST_TEXT, _ = nearest("fact 7", 9)[4]  # asked only where ABOVE is an ancestor


@asynccontextmanager
async def one_query_in_two_trees(
    world: SamplerWorld, **queue: object
) -> AsyncIterator[tuple[aeenc.PeopleClient, aeenc.SamplerClient, str, values.Lease]]:
    """`fact 7` has nothing in `tree-0`, and is leased in `tree-1`, below its nearest premise."""
    async with staffed(world, **queue) as (people, sampler):
        roots = [("tree-0", FACT), ("tree-1", ABOVE[1])]
        run = await sampler.start_run(roots, corpus="science", oracle="team", k=4, max_depth=2)

        async def say(tree: str, query: str, additions: list[str]) -> None:
            lease = await take(people, "ann", run.id, tree)
            assert lease.task.query == query
            await people.submit(lease, Answer([], additions=additions))
            await people.settle(run.id, lease.task.task_id, "ann")
            await eventually(lambda: tree_of(people, run.id, tree), is_so=lambda found: found[query] == "SETTLED")

        await say("tree-0", FACT, [])
        in_reach = "p7" not in {name for name, *_ in nearest(ABOVE[1], 4)}
        assert in_reach, "else it is judged, not added"
        await say("tree-1", ABOVE[1], ["p7"])
        below = await take(people, "ann", run.id, "tree-1")
        assert below.task.query == FACT
        yield people, sampler, run.id, below


async def answer_to_root(people: aeenc.PeopleClient, run_id: str) -> values.TaskAnswer:
    """The answer to `fact 7` at the root of `tree-0`."""
    found = [task for task in await tasks(people, run_id) if task.task.query == FACT and not task.task.path]
    return found[0].answers[0]


async def accepted_by_all(people: aeenc.PeopleClient, sampler: aeenc.SamplerClient, run_id: str) -> list[set[str]]:
    """The texts that explain `fact 7` by the two trees, and by their exported records."""
    nodes = [(await people.get_tree(run_id, tree)).nodes for tree in ("tree-0", "tree-1")]
    found = [{one.text for one in node.accepted} for shown in nodes for node in shown if node.text == FACT]
    async for _, record in sampler.export_trees(run_id):
        built = trees.tree_from_record(json.loads(record))
        [step] = [step for step in built.steps if step.text == FACT]
        found.append({built.texts[label] for label in step.premises})
    return found


async def last_sign(sampler: aeenc.SamplerClient, run_id: str, premise_id: str) -> str:
    """Returns the sign of the last pair recorded with a premise."""
    return [one.sign.name for one in await pairs(sampler, run_id) if one.premise_id == premise_id][-1]


async def test_what_another_tree_adds_holds_although_it_was_amended_away_before(world: SamplerWorld):
    async with one_query_in_two_trees(world, undo_s=NEVER) as (people, sampler, run_id, below):
        again = nearest(FACT, 2)[1]
        assert [one.premise.id for one in below.task.candidates] == [LAST_ID]
        first = await answer_to_root(people, run_id)
        changed = await people.amend(first.answer_id, {again[0]: EXPLAINS}, "ann")
        await people.amend(changed, {again[0]: REFUSES}, "ann")
        await people.submit(below, Answer({LAST_ID: REFUSES}, additions=[again[0]]))
        await people.settle(run_id, below.task.task_id, "ann")
        await eventually(lambda: last_sign(sampler, run_id, again[0]), is_so="POSITIVE".__eq__)
        assert await accepted_by_all(people, sampler, run_id) == [{again[1]}] * 4


async def test_an_amendment_stands_above_an_answer_that_was_given_before_and_recorded_later(world: SamplerWorld):
    async with one_query_in_two_trees(world, undo_s=NEVER) as (people, sampler, run_id, below):
        first = await answer_to_root(people, run_id)
        await people.submit(below, {LAST_ID: REFUSES})
        await people.amend(first.answer_id, Answer({}, additions=[LAST_ID]), "ann")
        await eventually(lambda: tree_of(people, run_id), is_so=lambda found: LAST_TEXT in found)
        await people.settle(run_id, below.task.task_id, "ann")
        await eventually(lambda: tree_of(people, run_id, "tree-1"), is_so=lambda found: found.get(FACT) == "SETTLED")
        assert await accepted_by_all(people, sampler, run_id) == [{LAST_TEXT}] * 4
        assert await last_sign(sampler, run_id, LAST_ID) == "POSITIVE"


async def test_a_node_that_a_budget_left_is_pending_until_what_explains_with_it_is_taken_back(world: SamplerWorld):
    run: dict[str, Any] = {"max_depth": 1, "k": 4, "max_judgements": 4}
    async with at_work(world, 1, run=run, undo_s=0.0) as (people, sampler, run_id):
        root = await take(people, "ann", run_id, "tree-0")
        found = root.task.candidates[0].premise
        await people.submit(root, {found.id: EXPLAINS})
        assert await ended(sampler, run_id) == ("SUCCEEDED", 1, 1)
        await amend_root(people, run_id, {found.id: REFUSES})
        await sampler.resume(run_id)
        assert await ended(sampler, run_id) == ("SUCCEEDED", 1, 0)
        assert [seen.progress.nodes_pending async for _, seen in sampler.watch(run_id)][-1] == 0

"""A tree as people see it, leasing within it, going on at once, and the numbers of a queue."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import pytest

import aeenc
from aeenc import errors, values
from aeenc.oracle import EXPLAINS, REFUSES, Answer, Candidate, Task, Verdict
from services.sampler.people import overview
from services.sampler.people.overview import Overview
from services.sampler.people.task_store import TaskStore
from services.sampler.records.keys import RunKeys
from support.waiting import eventually, until
from support.worlds.sampler_world import NEVER, QUEUE, SamplerWorld, at_work, finish, pairs, staffed, take, tasks

GROWING = {"max_depth": 1}
TASK = Task("0-0", "run", "q", (), (), (Candidate("p1", "t1", 1, 0.9),))
ASKED = ("What floats?", "ice")
State = values.TaskState


def states(tree: values.TreeState) -> dict[str, State]:
    return {node.node_id: node.state for node in tree.nodes}


async def reached(people: aeenc.PeopleClient, run_id: str, wanted: dict[str, State], name: str = "tree-0") -> Any:
    """The tree, once its nodes have these states."""
    return await eventually(lambda: people.get_tree(run_id, name), is_so=lambda tree: states(tree) == wanted)


async def test_a_tree_shows_what_is_open_held_decided_and_judged(world: SamplerWorld):
    async with at_work(world, 1, run=GROWING, undo_s=NEVER) as (people, _, run_id):
        assert states(await people.get_tree(run_id, "tree-0")) == {"0-0": State.WAITING}
        lease = await take(people, "ann")
        [root] = (await people.get_tree(run_id, "tree-0")).nodes
        assert (root.state, root.holders, root.task_id) == (State.WAITING, ("ann",), lease.task.task_id)
        ticked = lease.task.candidates[0].premise
        await people.submit(lease, Answer([ticked.id], inference="because of it", node_verdict="complete"))
        [root] = (await people.get_tree(run_id, "tree-0")).nodes
        assert (root.state, [one.premise_id for one in root.accepted]) == (State.DECIDED, [ticked.id])
        [said] = root.answers
        assert (said.annotator, said.inference, said.verdicts) == ("ann", "because of it", ())
        assert said.node_verdict is values.NodeVerdict.COMPLETE
        await people.settle(run_id, lease.task.task_id, "ann")
        tree = await reached(people, run_id, {"0-0": State.SETTLED, "0-1": State.WAITING})
        below = tree.nodes[1]
        assert (below.parent_id, below.premise_id, below.text) == ("0-0", ticked.id, ticked.text)
        assert not tree.finished


async def test_each_task_comes_with_the_question_behind_the_tree_that_asks_it_first(world: SamplerWorld):
    async with staffed(world) as (people, sampler):
        roots = [("bare", "hypothesis 0"), ("asked", "hypothesis 1", "What floats?", "ice")]
        run = await sampler.start_run(roots, corpus="science", oracle="team", k=4, max_depth=1)
        both = {"hypothesis 0": ("", ""), "hypothesis 1": ASKED}
        await eventually(lambda: asked(people, run.id), is_so=both.__eq__)
        lease = await take(people, "ann", run.id, "asked")
        premise = lease.task.candidates[0].premise
        await people.submit(lease, [premise.id])
        await eventually(lambda: asked(people, run.id), is_so={**both, premise.text: ASKED}.__eq__)
        [mine] = [one async for one in people.list_tasks(run.id, answered_by="ann")]
        assert (mine.question, mine.question_answer, mine.hypothesis_id) == (*ASKED, "asked")
        trees = [await people.get_tree(run.id, name) for name in ("asked", "bare")]
        assert [(tree.question, tree.answer) for tree in trees] == [ASKED, ("", "")]
        await people.submit(await take(people, "ann", run.id, "asked"), [])
        await people.submit(await take(people, "ann", run.id, "bare"), [])
        await asyncio.wait_for(sampler.wait(run.id), 40)
        [(_, exported)] = [one async for one in sampler.export_trees(run.id)]
        assert (json.loads(exported)["question"], json.loads(exported)["answer"]) == ASKED
        with pytest.raises(errors.InvalidArgument, match="questions and answers"):
            await sampler.start_run([("t", "h", " ", "ice")], corpus="science", oracle="team")


async def asked(people: aeenc.PeopleClient, run_id: str) -> dict[str, tuple[str, str]]:
    """The tasks of a run, each with its question and answer."""
    return {one.task.query: (one.question, one.question_answer) for one in await tasks(people, run_id)}


async def test_a_tree_of_a_run_without_people_is_shown_too(client, redis: Any, keys: RunKeys):
    people, run = aeenc.PeopleClient(client.channel), await finish(client)
    tree = await people.get_tree(run.id, "tree-fact")
    assert tree.finished
    assert {node.state for node in tree.nodes} == {State.SETTLED}
    assert {node.parent_id for node in tree.nodes[1:]} <= {node.node_id for node in tree.nodes}
    with pytest.raises(errors.NotFound, match="no hypothesis 'nobody'"):
        await people.get_tree(run.id, "nobody")
    await redis.lset(keys.hypotheses(run.id), 0, '{"text": 1}')
    with pytest.raises(errors.DataLoss, match=f"a hypothesis of run {run.id} cannot be read .*restore it from a"):
        await people.get_tree(run.id, "nobody")


async def test_a_watched_tree_is_not_read_while_nothing_happens(world: SamplerWorld, monkeypatch):
    reads, looks = list[str](), list[str]()
    tree, events = Overview.tree, TaskStore.events

    async def read(by: Overview, run_id: str, hypothesis_id: str) -> values.TreeState:
        reads.append(run_id)
        return await tree(by, run_id, hypothesis_id)

    async def look(store: TaskStore, run_id: str, *arguments: Any, **options: Any) -> Any:
        looks.extend(filter(None, [run_id]))
        return await events(store, run_id, *arguments, **options)

    monkeypatch.setattr(overview, "WATCH_WAIT_MS", 20)
    monkeypatch.setattr(Overview, "tree", read)
    monkeypatch.setattr(TaskStore, "events", look)
    async with at_work(world, 2) as (people, _, run_id), aclosing(people.watch_tree(run_id, "tree-0")) as watched:
        await anext(watched)
        await until(lambda: len(looks) > 3)
        before = len(reads)
        await until(lambda: len(looks) > 9)
        assert len(reads) == before
        await take(people, "ann", run_id, "tree-0")
        assert [one.holders for one in (await anext(watched)).nodes] == [("ann",)]


async def test_a_watched_tree_comes_again_after_every_change_and_ends_with_its_run(world: SamplerWorld):
    async with at_work(world, 2, run=GROWING) as (people, sampler, run_id):
        seen: list[values.TreeState] = []

        async def watch() -> None:
            async with aclosing(people.watch_tree(run_id, "tree-1")) as watched:
                async for tree in watched:
                    seen.append(tree)  # noqa: PERF401 -- the test looks at it meanwhile

        watching = asyncio.create_task(watch())
        await eventually(lambda: asyncio.sleep(0, bool(seen)))
        first = await take(people, "ann", run_id, "tree-0")
        await people.submit(first, [])
        second = await take(people, "ann", run_id, "tree-1")
        assert second.task.query == "hypothesis 1"
        await until(lambda: bool(seen) and [one.holders for one in seen[-1].nodes] == [("ann",)])
        await people.submit(second, [second.task.candidates[0].premise.id])
        await people.submit(await take(people, "ann", run_id, "tree-1"), [])
        await asyncio.wait_for(sampler.wait(run_id), 40)
        await asyncio.wait_for(watching, 40)
        shown = [states(tree) for tree in seen]
        assert shown[0] == {"1-0": State.WAITING}
        assert shown[-1] == {"1-0": State.SETTLED, "1-1": State.SETTLED}
        assert seen[-1].finished
        assert all(one != other for one, other in pairwise(seen))


async def test_people_stay_in_a_tree_or_take_one_task(world: SamplerWorld):
    async with at_work(world, 3) as (people, _, run_id):
        [lease] = await people.lease("ann", run_id=run_id, hypothesis_id="tree-2")
        assert lease.task.query == "hypothesis 2"
        assert await people.lease("bob", run_id=run_id, hypothesis_id="tree-2") == []
        ids = {task.task.query: task.task.task_id for task in await tasks(people, run_id)}
        [single] = await people.lease("bob", run_id=run_id, task_id=ids["hypothesis 1"])
        assert (single.task.query, single.hypothesis_id, single.node_id) == ("hypothesis 1", "tree-1", "1-0")
        assert 0 < single.remaining.total_seconds() <= 30
        assert [one.task.query for one in await people.lease("cem", queue="team")] == ["hypothesis 0"]
        for wrong, error, problem in (
            ({"queue": "nobody"}, errors.NotFound, "no queue 'nobody'"),
            ({"run_id": run_id, "task_id": "x"}, errors.NotFound, "no task 'x'"),
            ({"run_id": run_id, "hypothesis_id": "x"}, errors.NotFound, "no hypothesis 'x'"),
            ({"task_id": ids["hypothesis 1"]}, errors.InvalidArgument, "name the run"),
        ):
            with pytest.raises(error, match=problem):
                await people.lease("dan", **wrong)


async def test_a_decision_goes_on_at_once_when_its_author_says_so(world: SamplerWorld):
    async with at_work(world, 1, run=GROWING, undo_s=NEVER) as (people, _, run_id):
        lease = await take(people, "ann")
        task_id = lease.task.task_id
        with pytest.raises(errors.FailedPrecondition, match="1 of 1 answers are missing"):
            await people.settle(run_id, task_id, "ann")
        await people.submit(lease, [lease.task.candidates[0].premise.id])
        with pytest.raises(errors.FailedPrecondition, match="bob has not answered"):
            await people.settle(run_id, task_id, "bob")
        begun = time.monotonic()
        await people.settle(run_id, task_id, "ann", request_id="now")
        await people.settle(run_id, task_id, "ann", request_id="now")
        await reached(people, run_id, {"0-0": State.SETTLED, "0-1": State.WAITING})
        assert time.monotonic() - begun < 20.0
        with pytest.raises(errors.FailedPrecondition, match="amend it instead"):
            await people.undo("ann", run_id)


async def test_fewer_people_judge_a_task_once_its_overlap_is_lowered(world: SamplerWorld):
    async with at_work(world, 1, overlap=3) as (people, sampler, run_id):
        lease = await take(people, "ann")
        await people.submit(lease, [])
        same = await people.close(run_id, lease.task.task_id, "judge", overlap=4)
        assert same.state is State.WAITING
        lowered = await people.close(run_id, lease.task.task_id, "judge", overlap=1)
        assert lowered.state in (State.DECIDED, State.SETTLED)
        assert (await asyncio.wait_for(sampler.wait(run_id), 40)).progress.nodes_judged == 1
        assert [event async for event in people.watch(run_id, from_now=True)] == []
        told = [(event.kind, event.person) async for event in people.watch(run_id)]
        assert (values.TaskEventKind.LOWERED, "judge") in told
        assert (values.TaskEventKind.ANSWERED, "ann") in told


async def test_a_queue_tells_its_guideline_and_numbers_and_no_answer_before_its_task_is_decided(
    world: SamplerWorld, tmp_path
):
    guideline = tmp_path / "guideline.md"
    guideline.write_text("# Tick what *explains*", encoding="utf-8")
    async with at_work(world, 3, overlap=2, undo_s=NEVER, guideline=str(guideline)) as (people, _, run_id):
        [queue] = await people.list_queues("ann")
        assert (queue.name, queue.overlap, queue.guideline) == ("team", 2, "# Tick what *explains*")
        assert (queue.total.tasks, queue.total.waiting, queue.total.free, queue.total.mine) == (3, 3, 3, 0)
        first = await take(people, "ann", run_id, "tree-0")
        await people.submit(first, Answer([first.task.candidates[0].premise.id], inference="mine alone"))
        [root] = (await people.get_tree(run_id, "tree-0")).nodes
        assert (root.answered, root.overlap, root.answers, root.accepted) == (1, 2, (), ())
        second = await take(people, "ann", run_id, "tree-1")
        other = await take(people, "bob", run_id, "tree-0")
        assert other.task.task_id == first.task.task_id
        [queue] = await people.list_queues("ann")
        told = queue.total
        assert (told.mine, told.mine_hour, told.answers_hour, told.leased, told.free) == (1, 1, 1, 2, 1)
        await people.submit(other, [])
        [queue] = await people.list_queues("bob")
        assert (queue.total.conflicts, queue.total.waiting, queue.total.mine) == (1, 2, 1)
        assert [run.run_id for run in queue.runs] == [run_id]
        await people.release(second.lease_id)
        [queue] = await people.list_queues()
        assert (queue.total.leased, queue.total.mine) == (0, 0)


async def test_a_run_of_a_newer_release_keeps_nobody_from_the_numbers_of_the_others(
    world: SamplerWorld, redis: Any, keys: RunKeys
):
    async with at_work(world, 2, undo_s=NEVER) as (people, sampler, run_id):
        other = await sampler.start_run([("t", "hypothesis 5")], corpus="science", oracle="team", k=2)
        await eventually(
            people.list_queues, is_so=lambda queues: (queues[0].total.tasks, queues[0].total.waiting) == (3, 3)
        )
        await redis.hset(keys.record(run_id), "format_version", 99)
        async with world.sampler(queues={"team": QUEUE}) as client:  # a process that has counted nothing before
            [queue] = await aeenc.PeopleClient(client.channel).list_queues("ann")
        assert (queue.total.tasks, [run.run_id for run in queue.runs]) == (1, [other.id])


async def test_a_person_sees_their_own_answers_alone(world: SamplerWorld):
    async with at_work(world, 3, overlap=2, undo_s=NEVER) as (people, _, run_id):
        for name in ("ann", "bob"):
            for number in range(3):
                await people.submit(await take(people, name, run_id, f"tree-{number}"), [])
        listed = [task async for task in people.list_tasks(run_id, answered_by="ann", page_size=2)]
        assert [task.task.query for task in listed] == ["hypothesis 2", "hypothesis 1", "hypothesis 0"]
        assert {answer.annotator for task in listed for answer in task.answers} == {"ann"}
        assert [task async for task in people.list_tasks(run_id, answered_by="nobody")] == []
        for nobody in ("", " "):
            with pytest.raises(errors.InvalidArgument, match="answered_by: is empty"):
                await tasks(people, run_id, answered_by=nobody)


async def test_a_query_that_is_cut_in_the_tree_whose_task_somebody_holds_is_asked_once_for_the_other_tree(
    world: SamplerWorld,
):
    async with at_work(world, 2, run={"max_depth": 1, "k": 60}) as (people, sampler, run_id):
        roots = {name: await take(people, "ann", run_id, name) for name in ("tree-0", "tree-1")}
        shared = roots["tree-0"].task.candidates[0].premise
        await people.submit(roots["tree-0"], {shared.id: EXPLAINS})
        await eventually(lambda: asked(people, run_id), is_so=lambda found: shared.text in found)
        held = await take(people, "ann", run_id, "tree-0")
        await people.submit(roots["tree-1"], {shared.id: EXPLAINS})
        answers = {t.task.query: t.answers[0] for t in await tasks(people, run_id) if t.answers}
        await people.amend(answers["hypothesis 0"].answer_id, {shared.id: REFUSES}, "ann")

        async def stands_in() -> list[str]:
            return [name for name in roots if shared.text in str(await people.get_tree(run_id, name))]

        await eventually(stands_in, is_so=["tree-1"].__eq__)
        assert not await people.lease("bob", run_id=run_id), "it is asked already"
        found = held.task.candidates[0].premise
        await people.submit(held, {found.id: Verdict(EXPLAINS, leaf=True)})
        run = await asyncio.wait_for(sampler.wait(run_id), 40)
        assert (run.state.name, run.progress.nodes_pending) == ("SUCCEEDED", 0)
        node = next(one for one in (await people.get_tree(run_id, "tree-1")).nodes if one.text == shared.text)
        assert [one.premise_id for one in node.accepted] == [found.id]
        judged = [pair.premise_id for pair in await pairs(sampler, run_id) if pair.query == shared.text]
        assert len(judged) == len(set(judged)) == len(held.task.candidates), "each once"

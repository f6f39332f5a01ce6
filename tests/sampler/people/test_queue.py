"""People at a run's queue, through the SDK: leases, late answers, second thoughts, conflicts, control items."""

import asyncio
import json
import re
import threading
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest

import aeenc
from aeenc import errors
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, Answer
from aeenc.v1 import people_pb2, types_pb2
from services.sampler.people import gateway, overview, steps
from services.sampler.people import tasks as records
from services.sampler.people.queue import TaskQueue
from services.sampler.people.task_store import TaskStore
from services.sampler.records.keys import RunKeys
from services.sampler.records.node_store import NodeStore
from support.waiting import eventually, until
from support.worlds.sampler_world import NEVER, QUEUE, SamplerWorld, at_work, pairs, take, tasks


async def events(people: aeenc.PeopleClient, run_id: str, last: str) -> list[str]:
    """The names of a run's events up to the first one of this name."""
    seen: list[str] = []
    async with aclosing(people.watch(run_id)) as watched:
        while last not in seen:
            event = await anext(watched)
            seen.append(event.kind.name)
    return seen


async def test_a_call_that_outlives_its_first_lease_does_not_lease_the_task_again(world: SamplerWorld, monkeypatch):
    write = TaskStore.write

    async def slowly(*arguments: Any) -> Any:
        written = await write(*arguments)
        await asyncio.sleep(0.5)
        return written

    async with at_work(world, 1, min_lease_s=0.2, first_lease_s=0.2) as (people, _, run_id):
        monkeypatch.setattr(TaskStore, "write", slowly)
        [lease] = await people.lease("ann", run_id=run_id, max_tasks=2)
        assert (await people.submit(lease, [])).late


async def test_what_people_say_becomes_the_pairs_of_the_run(world: SamplerWorld):
    async with at_work(world) as (people, sampler, run_id):
        one, two = await people.lease("ann", max_tasks=5)
        ids = [c.premise.id for c in one.task.candidates]
        await people.submit(one, [ids[0]], seen_upto=3)
        others = {c.premise.id: ABSTAINS for c in two.task.candidates}
        await people.submit(two, others, elapsed_s=4.0)
        run = await asyncio.wait_for(sampler.wait(run_id), 40)
        assert run.state == types_pb2.WORK_STATE_SUCCEEDED
        assert (run.progress.positives, run.progress.negatives, run.progress.skipped) == (1, 2, 5)
        signs = {
            pair.premise_id: " +-?"[pair.sign] for pair in await pairs(sampler, run_id) if pair.query == one.task.query
        }
        assert signs == dict(zip(ids, "+--?", strict=True))
        assert {pair.provenance.annotator for pair in await pairs(sampler, run_id)} == {"ann"}
        assert await people.lease("bob", run_id=run_id) == []


async def test_the_task_of_a_lease_that_is_over_goes_to_the_next_and_a_late_answer_counts_once(world: SamplerWorld):
    async with at_work(world, 1, first_lease_s=0.3, undo_s=NEVER) as (people, _, run_id):
        slow = await take(people, "ann")
        await asyncio.sleep(0.4)
        with pytest.raises(errors.FailedPrecondition, match="run out") as over:
            await people.renew(slow.lease_id)
        assert over.value.reason == "LEASE_EXPIRED"
        quick = await take(people, "bob")
        assert quick.task.task_id == slow.task.task_id
        late = await people.submit(slow, [], client_seq=1)
        assert late.late
        assert await people.submit(slow, [], client_seq=1) == late
        with pytest.raises(errors.FailedPrecondition) as refused:
            await people.submit(quick, [])
        assert refused.value.reason == "TASK_ANSWERED"
        with pytest.raises(errors.FailedPrecondition, match="others have answered"):
            await people.renew(quick.lease_id)
        [task] = await tasks(people, run_id)
        assert [(a.annotator, a.late) for a in task.answers] == [("ann", True)]
        assert (await events(people, run_id, "ANSWERED"))[1:] == ["LEASED", "EXPIRED", "LEASED", "EXPIRED", "ANSWERED"]


async def test_a_lease_lasts_three_mean_answer_times(world: SamplerWorld, redis: Any):
    async with at_work(world, 3, first_lease_s=600.0, min_lease_s=1.0, undo_s=NEVER) as (people, _, _run):

        async def lasts(lease: people_pb2.Lease) -> float:
            seconds, _ = await redis.time()
            return lease.expires_at.timestamp() - seconds

        first = await take(people, "ann")
        assert await lasts(first) == pytest.approx(600, abs=15)
        await people.submit(first, [], elapsed_s=20.0)
        second = await take(people, "ann")
        assert await lasts(second) == pytest.approx(60, abs=15)
        await people.submit(second, [], elapsed_s=1e15)
        assert await lasts(await take(people, "ann")) == pytest.approx(3600, abs=15)


async def test_an_undone_answer_is_judged_again_first(world: SamplerWorld):
    async with at_work(world, 3, undo_s=NEVER) as (people, _, run_id):
        first = await take(people, "ann")
        answer = await people.submit(first, [])
        other = await take(people, "ann")
        second = await people.submit(other, [])
        assert await people.undo("ann", run_id, request_id="u1") == [second.answer_id]
        assert await people.undo("ann", run_id, request_id="u1") == [second.answer_id]
        assert await people.undo("ann", run_id, count=9) == [answer.answer_id]
        with pytest.raises(errors.NotFound, match="no answers"):
            await people.undo("ann", run_id)
        again = await take(people, "ann")
        assert again.task.query in {first.task.query, other.task.query}
        assert await tasks(people, run_id, state="decided") == []
    async with at_work(world, 2, undo_s=NEVER, overlap=2) as (people, _, run_id):
        _ahead, undone = [await take(people, "ann", run_id) for _ in range(2)]
        await people.submit(undone, [])
        await people.undo("ann", run_id)
        assert (await take(people, "bob", run_id)).task.query == undone.task.query


async def test_an_answer_whose_run_is_deleted_meanwhile_is_not_amended(world: SamplerWorld, monkeypatch):
    async with at_work(world, 1) as (people, sampler, run_id):
        answer = await people.submit(lease := await take(people, "ann"), [])
        await asyncio.wait_for(sampler.wait(run_id), 40)
        trees = NodeStore.trees

        async def deleting(store: NodeStore, *asked: Any) -> Any:
            await sampler.delete(run_id)
            return await trees(store, *asked)

        monkeypatch.setattr(NodeStore, "trees", deleting)
        with pytest.raises(errors.NotFound, match=f"no run '{run_id}'"):
            await people.amend(answer.answer_id, {lease.task.candidates[0].premise.id: EXPLAINS}, "ann")


async def test_a_settled_answer_is_amended_and_its_pairs_are_replaced(world: SamplerWorld):
    async with at_work(world, 1) as (people, sampler, run_id):
        lease = await take(people, "ann")
        ids = [c.premise.id for c in lease.task.candidates]
        answer = await people.submit(lease, [ids[0]])
        await asyncio.wait_for(sampler.wait(run_id), 40)
        with pytest.raises(errors.FailedPrecondition, match="amend it") as used:
            await people.undo("ann", run_id)
        assert used.value.reason == "ANSWER_USED"
        verdicts = {ids[0]: REFUSES, ids[1]: EXPLAINS}
        amended = await people.amend(answer.answer_id, verdicts, "bob", request_id="a1")
        assert await people.amend(answer.answer_id, verdicts, "bob", request_id="a1") == amended
        with pytest.raises(errors.AlreadyExists, match="choose another id"):
            await people.amend(answer.answer_id, {ids[0]: REFUSES}, "bob", request_id="a1")
        log = await pairs(sampler, run_id)
        assert [(p.premise_id, " +-?"[p.sign]) for p in log if p.provenance.amended] == [(ids[0], "-"), (ids[1], "+")]
        assert [p.provenance.amended for p in log] == [False] * 4 + [True] * 2
        assert log[-1].provenance.annotator == "bob"
        with pytest.raises(errors.FailedPrecondition, match="no longer holds"):
            await people.amend(answer.answer_id, verdicts, "bob")
        [task] = await tasks(people, run_id)
        assert {v.premise_id: v.judgement for v in task.decision.verdicts} == dict.fromkeys(ids, REFUSES) | {
            ids[1]: EXPLAINS
        }


async def settle_elsewhere(store: TaskStore, run_id: str, task_id: str) -> None:
    """Settles a decided task as another sampler does."""
    record, at = await store.read(run_id, task_id)
    assert record is not None
    assert await store.write(steps.settle(record, at, 0.0, "0-0"), at)


async def test_what_was_settled_for_a_sampler_that_died_is_found_by_the_next(
    world: SamplerWorld, redis: Any, keys: RunKeys
):
    async with at_work(world, 1, undo_s=NEVER) as (people, _, run_id):
        lease = await take(people, "ann")
        await people.submit(lease, [])
    await settle_elsewhere(TaskStore(redis, keys), run_id, lease.task.task_id)
    async with world.sampler(queues={"team": {**QUEUE, "undo_s": NEVER}}) as sampler:
        run = await asyncio.wait_for(sampler.wait(run_id), 40)
        assert (run.state, run.progress.negatives) == (types_pb2.WORK_STATE_SUCCEEDED, 4)


async def test_what_another_sampler_has_settled_is_found_by_one_that_waits_for_it(
    world: SamplerWorld, redis: Any, keys: RunKeys, monkeypatch
):
    monkeypatch.setattr(gateway, "RECHECK_S", 0.2)
    async with at_work(world, 1, undo_s=NEVER) as (people, sampler, run_id):
        lease = await take(people, "ann")
        await people.submit(lease, [])
        await settle_elsewhere(TaskStore(redis, keys), run_id, lease.task.task_id)
        run = await asyncio.wait_for(sampler.wait(run_id), 20)
        assert (run.state, run.progress.negatives) == (types_pb2.WORK_STATE_SUCCEEDED, 4)


async def test_what_redis_names_as_due_is_over_by_its_record(world: SamplerWorld, redis: Any, keys: RunKeys):
    """Else it is looked at once, a part of a millisecond too early, and then not before RECHECK_S."""
    async with at_work(world, 2, undo_s=NEVER) as (people, _, run_id):
        held, given = [await take(people, "ann") for _ in range(2)]
        await people.submit(given, [])
        (holds, decided), _ = await TaskStore(redis, keys).read_many(
            run_id, [one.task.task_id for one in (held, given)]
        )
        for key, at in ((keys.leases, holds.leases[0].expires_at), (keys.decided, decided.decided_at)):
            [(_, due_ms)] = await redis.zrange(key(run_id), 0, -1, withscores=True)
            assert 0 <= due_ms - 1000 * at <= 1


async def test_tasks_that_wait_unchanged_are_not_read_again(world: SamplerWorld, monkeypatch):
    read, from_row = list[str](), records.from_row
    due, looks = TaskStore.due, list[str]()

    def noted(run_id: str, task_id: str, row: dict[str, str]) -> records.TaskRecord:
        read.append(task_id)
        return from_row(run_id, task_id, row)

    async def counted(store: TaskStore, run_id: str, *limits: float) -> Any:
        looks.append(run_id)
        return await due(store, run_id, *limits)

    async def some_looks() -> None:
        wanted = len(looks) + 5
        await until(lambda: len(looks) >= wanted)

    monkeypatch.setattr(gateway, "RECHECK_S", 0.02)
    monkeypatch.setattr(TaskStore, "due", counted)
    async with at_work(world, 2, overlap=2) as (people, _, _):
        await people.submit(await take(people, "ann"), [])
        await some_looks()  # they have seen the answer
        monkeypatch.setattr(records, "from_row", noted)
        await some_looks()
        assert read == []


async def test_control_items_measure_annotators_and_become_no_pairs(world: SamplerWorld, tmp_path, monkeypatch):
    threads: set[int] = set()

    def noting(work: Callable[..., Any], *arguments: Any) -> Any:
        threads.add(threading.get_ident())
        return work(*arguments)

    for name in ("agreement_of", "edge_f1", "control_report", "_reports"):
        monkeypatch.setattr(overview, name, partial(noting, getattr(overview, name)))
    control = {"query": "what is iron", "explains": ["iron is a metal"], "refuses": ["ice is cold", "salt is white"]}
    file = tmp_path / "controls.jsonl"
    file.write_text(json.dumps(control) + "\n")
    async with at_work(world, 2, controls=str(file), control_share=1.0, undo_s=NEVER) as (people, sampler, run_id):
        for name, right in (("ann", True), ("bob", False)):
            lease = await take(people, name)
            assert lease.task.query == "what is iron"
            scores = [c.score for c in lease.task.candidates]
            assert scores == sorted(scores, reverse=True)
            assert (len(set(scores)), scores[-1] > 0) == (3, True)
            assert all(re.fullmatch(r"p[0-9]+", c.premise.id) for c in lease.task.candidates)
            metal = next(c.premise.id for c in lease.task.candidates if c.premise.text == "iron is a metal")
            await people.submit(lease, [metal] if right else [])
            await people.submit(await take(people, name), [])
        told = await people.get_agreement(run_id)
        shown = {r.annotator: (r.answers, r.control_verdicts, r.control_correct) for r in told.reports}
        assert shown == {"ann": (2, 3, 3), "bob": (2, 3, 2)}
        assert told.candidates == 0
        assert threads
        assert threading.get_ident() not in threads, "a large run's figures take a second"
        assert {t.task.query async for t in people.list_tasks(run_id)} == {"hypothesis 0", "hypothesis 1"}
        assert {pair.query for pair in await pairs(sampler, run_id)} <= {"hypothesis 0", "hypothesis 1"}


async def test_the_candidates_of_a_lease_carry_a_key_by_which_they_say_the_same(world: SamplerWorld, tmp_path):
    texts = ["Ice melts at > 0 degrees", "ice melts at > 0 degrees.", "ice melts at < 0 degrees"]
    item = {"query": "what does ice do", "explains": texts[:1], "refuses": texts[1:]}
    controls = tmp_path / "controls.jsonl"
    controls.write_text(json.dumps(item))
    async with at_work(world, controls=str(controls), qualify=1) as (people, _, run_id):
        lease = await take(people, "ann", run_id)
        keys = dict(zip((one.premise.text for one in lease.task.candidates), lease.same_keys, strict=True))
        assert keys[texts[0]] == keys[texts[1]] != keys[texts[2]]
        assert all(keys.values())


async def test_a_lease_reads_no_further_run_than_it_takes_tasks_of(world: SamplerWorld, monkeypatch):
    async with at_work(world, 1) as (people, sampler, run_id):
        other = await sampler.start_run([("t", "hypothesis 9")], corpus="science", oracle="team", k=4, max_depth=0)
        await eventually(lambda: tasks(people, other.id))
        swept, sweep = list[str](), TaskQueue.sweep

        async def noted(queue: TaskQueue, run_id: str) -> None:
            swept.append(run_id)
            await sweep(queue, run_id)

        monkeypatch.setattr(TaskQueue, "sweep", noted)
        await take(people, "ann")
        assert swept == [run_id]
        await take(people, "ann")
        assert swept == [run_id, run_id, other.id]


async def test_a_retried_lease_is_the_same_lease(world: SamplerWorld):
    async with at_work(world, 3) as (people, _, _run):
        first = await people.lease("ann", max_tasks=2, request_id="r1")
        again = await people.lease("ann", max_tasks=2, request_id="r1")
        assert [lease.lease_id for lease in again] == [lease.lease_id for lease in first]
        with pytest.raises(errors.AlreadyExists, match="max_tasks 2, now with 3"):
            await people.lease("ann", max_tasks=3, request_id="r1")
        assert len(await people.lease("ann", max_tasks=2, request_id="r2")) == 1


async def test_attempts_of_one_request_at_once_lease_the_same_task(world: SamplerWorld):
    async with at_work(world, 3) as (people, _, run_id), world.sampler(queues={"team": QUEUE}) as sampler:
        elsewhere = aeenc.PeopleClient(sampler.channel)
        attempts = [one.lease("ann", request_id="r1") for one in (people, people, elsewhere, elsewhere)]
        leased = [lease.lease_id for [lease] in await asyncio.gather(*attempts)]
        assert len(set(leased)) == 1
        assert len(await people.lease("ann", max_tasks=3, run_id=run_id)) == 2


async def test_an_answer_keeps_no_task_id_that_its_sender_gives(world: SamplerWorld):
    async with at_work(world, 1, undo_s=NEVER, overlap=2) as (people, _, run_id):
        for name in ("ann", "bob"):
            lease = await take(people, name)
            answer = Answer([lease.task.candidates[0].premise.id]).to_proto("x" * 3_000_000)
            request = people_pb2.SubmitVerdictsRequest(lease_id=lease.lease_id, answer=answer)
            await people.channel.unary(people._stub.SubmitVerdicts, request)
        [task] = await tasks(people, run_id)
        assert [(one.annotator, one.task_id) for one in task.answers] == [("ann", ""), ("bob", "")]
        assert (await people.get_tree(run_id, "tree-0")).nodes[0].answered == 2


async def test_wrong_calls_are_refused_by_name(world: SamplerWorld):
    async with at_work(world, 1) as (people, sampler, run_id):
        lease = await take(people, "ann")
        pushed = await sampler.start_run([("t", "hypothesis 5")], corpus="science", oracle="fake", k=2)
        for call, kind, message in [
            (people.lease(" "), errors.InvalidArgument, "annotator"),
            (people.lease("ann", max_tasks=65), errors.InvalidArgument, "max_tasks"),
            (people.lease("ann", run_id="x"), errors.NotFound, "'x'"),
            (people.lease("ann", run_id=pushed.id), errors.NotFound, "has no queue"),
            (people.renew("x"), errors.NotFound, "no lease"),
            (people.renew("a.b.c"), errors.NotFound, "no lease"),
            (people.renew(lease.lease_id + "0"), errors.NotFound, "no lease"),
            (people.submit(lease, ["p99999"]), errors.InvalidArgument, "p99999"),
            (people.amend("x", {}, "ann"), errors.NotFound, "no answer"),
            (people.adjudicate(run_id, "9-9", {}, "ann"), errors.NotFound, "no task"),
            (people.adjudicate(run_id, lease.task.task_id, {}, "ann"), errors.NotFound, "not in conflict"),
            (people.close(run_id, "none", "chief"), errors.NotFound, "no task 'none'"),
            (people.get_agreement("x"), errors.NotFound, "'x'"),
            (anext(people.list_tasks("x")), errors.NotFound, "'x'"),
            (anext(people.watch("x")), errors.NotFound, "'x'"),
            (anext(people.list_changes("x")), errors.NotFound, "'x'"),
            (people.get_tree("x", "y"), errors.NotFound, "'x'"),
        ]:
            with pytest.raises(kind, match=message):
                await call


async def test_an_answer_to_a_cancelled_run_is_refused_until_the_run_is_resumed(world: SamplerWorld):
    async with at_work(world, 2, undo_s=NEVER) as (people, sampler, run_id):
        first, second = await people.lease("ann", run_id=run_id, max_tasks=2)
        sent = await people.submit(first, [], client_seq=7)
        await sampler.cancel(run_id)
        with pytest.raises(errors.FailedPrecondition, match="was cancelled: the answer is not kept") as refused:
            await people.submit(second, [])
        assert refused.value.reason == "RUN_ENDED"
        assert await people.submit(first, [], client_seq=7) == sent  # a retry
        await sampler.resume(run_id)
        assert await people.submit(second, [])


async def test_tasks_of_a_judge_who_left_are_decided_once_the_overlap_is_lowered(world: SamplerWorld):
    async with at_work(world, 1, overlap=2) as (people, _, run_id):
        await people.submit(await take(people, "ann"), [])
    async with world.sampler(queues={"team": {**QUEUE, "overlap": 1}}) as sampler:
        run = await asyncio.wait_for(sampler.wait(run_id), 20)
        assert (run.state, run.progress.negatives) == (types_pb2.WORK_STATE_SUCCEEDED, 4)


async def test_of_two_undos_at_once_none_reports_an_answer_that_the_other_took_back(
    world: SamplerWorld, monkeypatch: pytest.MonkeyPatch
):
    """The second one is held after it has found the last answer, until the first has taken that back."""
    answered_by, held, go_on = TaskStore.answered_by, asyncio.Event(), asyncio.Event()

    async def found_first(store: TaskStore, *asked: Any, **how: Any) -> list[str]:
        found = await answered_by(store, *asked, **how)
        if not held.is_set():
            held.set()
            await go_on.wait()
        return found

    async with at_work(world, 2, undo_s=NEVER) as (people, _, run_id):
        earlier = await people.submit(await take(people, "ann"), [])
        last = await people.submit(await take(people, "ann"), [])
        monkeypatch.setattr(TaskStore, "answered_by", found_first)
        slow = asyncio.create_task(people.undo("ann", run_id))
        await held.wait()
        assert await people.undo("ann", run_id) == [last.answer_id]
        go_on.set()
        assert await slow == [earlier.answer_id]

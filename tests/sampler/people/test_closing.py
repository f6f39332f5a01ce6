"""Closing a task that nobody will answer any more: answers that there are decide it; nothing unseen is refused.

What a lead is told of each person. And what people are sent fits into an answer, or is refused with limit and remedy.
"""

from __future__ import annotations

import math
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path

import pytest

import aeenc
from aeenc import errors
from aeenc.v1 import people_pb2, types_pb2
from aeenc.values import Agreement, AnnotatorReport, ControlReport
from services.sampler.convert import to_agreement
from support.worlds.sampler_world import NEVER, SamplerWorld, at_work, pairs, take, tasks


async def signs(sampler: aeenc.SamplerClient, run_id: str) -> dict[str, str]:
    """Each premise's sign, and the reason of a skipped one, once the run has ended."""
    assert (await sampler.wait(run_id)).state == types_pb2.WORK_STATE_SUCCEEDED
    return {p.premise_id: " +-?"[p.sign] + p.reason for p in await pairs(sampler, run_id)}


async def test_a_task_without_an_answer_is_closed_as_undecided(world: SamplerWorld):
    async with at_work(world, hypotheses=1) as (people, sampler, run_id):
        lease = await take(people, "ann")
        [task] = await tasks(people, run_id)
        closed = await people.close(run_id, task.task.task_id, "chief", reason="ann has left", request_id="c1")
        assert await people.close(run_id, task.task.task_id, "chief", reason="ann has left", request_id="c1")
        with pytest.raises(errors.AlreadyExists, match="annotator 'chief', now with 'another'"):
            await people.close(run_id, task.task.task_id, "another", request_id="c1")
        assert closed.state in {people_pb2.TASK_STATE_DECIDED, people_pb2.TASK_STATE_SETTLED}
        assert await signs(sampler, run_id) == {c.premise.id: "?undecided" for c in task.task.candidates}
        with pytest.raises(errors.FailedPrecondition, match="nothing is left to do"):
            await people.submit(lease, [])
        with pytest.raises(errors.FailedPrecondition, match="has gone on with task"):
            await people.close(run_id, task.task.task_id, "chief")


async def test_a_page_of_tasks_and_of_answers_ends_before_it_is_too_large_for_a_message(
    world: SamplerWorld, sent_by_redis
):
    most, count = 40_000, 12
    world.index.suffix = " x" * 1_500
    async with at_work(world, count, changes={"message_bytes": most}) as (people, sampler, run_id):
        given = []
        while len(given) < count:
            leases = await people.lease("ann", max_tasks=count)
            assert sum(len(one.premise.text) for lease in leases for one in lease.task.candidates) < most
            given.append(len(leases))
            for lease in leases:
                await people.submit(lease, [])
            if sum(given) == count:
                break
        assert len(given) > 1
        await sampler.wait(run_id)  # what the run reads is no part of the answers
        for only in ({}, {"answered_by": "ann"}):
            request = people_pb2.ListTasksRequest(run_id=run_id, page_size=100, **only)
            ids, pages = [], 0
            while not pages or request.page_token:
                before = await sent_by_redis()
                page = await people.channel.unary(people._stub.ListTasks, request)
                assert page.ByteSize() <= most
                assert await sent_by_redis() - before < 4 * most
                ids += [task.task.task_id for task in page.tasks]
                request.page_token, pages = page.next_page_token, pages + 1
            assert len(ids) == len(set(ids)) == count
            assert pages > 1


async def test_what_no_answer_holds_is_refused_with_the_limit_and_the_remedy(world: SamplerWorld, tmp_path: Path):
    world.index.suffix = " x" * 1_500
    most, over = 16_000, r"over the limit of [0-9,]+ .*raise the sampler's MESSAGE_BYTES"
    async with at_work(world, 1, run={"max_depth": 1}, changes={"message_bytes": most}) as (people, _, run_id):
        lease = await take(people, "ann")
        tree = await people.get_tree(run_id, "tree-0")
        async with aclosing(people.watch_tree(run_id, "tree-0")) as watched:
            assert await anext(watched) == tree
            await people.submit(lease, [one.premise.id for one in lease.task.candidates])
            await people.settle(run_id, lease.task.task_id, "ann")
            with pytest.raises(errors.TooLarge, match=over):
                async for _ in watched:
                    pass
        with pytest.raises(errors.TooLarge, match=over):
            await people.get_tree(run_id, "tree-0")
    async with at_work(world, 1, changes={"message_bytes": 12_000}) as (people, _, run_id):
        with pytest.raises(errors.TooLarge, match=f"of run {run_id} takes .*{over}, or start a run with a smaller k"):
            await people.lease("ann")
    (tmp_path / "long.md").write_text("x" * 11_000)
    async with at_work(world, 1, changes={"message_bytes": 10_000}, guideline=tmp_path / "long.md") as (people, _, _):
        with pytest.raises(errors.TooLarge, match=over):
            await people.list_queues()


async def test_the_report_on_a_run_has_as_many_control_items_as_an_answer_holds():
    many = tuple(ControlReport(query=f"q{n}" + " x" * 1_500, answers=1) for n in range(9))
    told = to_agreement(Agreement(cohen_kappa=0.5, controls=many), 10_000)
    assert [one.query for one in told.controls] == [one.query for one in many[:3]]
    assert told.ByteSize() <= 10_000
    with pytest.raises(errors.TooLarge, match="raise the sampler's MESSAGE_BYTES"):
        to_agreement(Agreement(reports=(AnnotatorReport(annotator="n" * 150),) * 100), 10_000)


async def test_a_lead_learns_of_each_person_how_long_how_strict_and_whom_they_agree_with(world: SamplerWorld):
    async with at_work(world, 3, overlap=2, undo_s=NEVER) as (people, _, run_id):
        for elapsed_s, ticks in (
            (1.0, {"ann": 2, "bob": 2}),
            (2.0, {"ann": 2, "bob": 1}),
            (30.0, {"ann": 2, "bob": 0}),
        ):
            for name, count in ticks.items():
                lease = await take(people, name)
                accepted = [one.premise.id for one in lease.task.candidates[:count]]
                await people.submit(lease, accepted, elapsed_s=elapsed_s)
        told = await people.get_agreement(run_id)
        ann, bob = told.reports
        assert (ann.annotator, ann.median_elapsed, ann.refused_share) == ("ann", timedelta(seconds=2), 0.5)
        assert (bob.annotator, bob.refused_share) == ("bob", 0.75)
        # both yes 3, ann alone 3
        for one, row in ((ann, [math.nan, 2 / 3]), (bob, [2 / 3, math.nan])):
            assert one.positive_agreement == pytest.approx(row, nan_ok=True)
        log = [change async for change in people.list_changes(run_id)]
        assert [change.query for change in log] == [f"hypothesis {n}" for n in (0, 0, 1, 1, 2, 2)]

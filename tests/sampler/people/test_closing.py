"""Closing a task that nobody will answer any more: answers that there are decide it; nothing unseen is refused."""

from __future__ import annotations

import pytest

import aeenc
from aeenc import errors
from aeenc.oracle import EXPLAINS, REFUSES
from aeenc.v1 import people_pb2, types_pb2
from support.worlds.sampler_world import NEVER, SamplerWorld, at_work, pairs, take

CONFLICT = people_pb2.TASK_STATE_CONFLICT


async def only_task(people: aeenc.PeopleClient, run_id: str) -> people_pb2.JudgedTask:
    [task] = [task async for task in people.list_tasks(run_id)]
    return task


async def signs(sampler: aeenc.SamplerClient, run_id: str) -> dict[str, str]:
    """Each premise's sign, and the reason of a skipped one, once the run has ended."""
    assert (await sampler.wait(run_id)).state == types_pb2.WORK_STATE_SUCCEEDED
    return {p.premise_id: " +-?"[p.sign] + p.reason for p in await pairs(sampler, run_id)}


async def test_a_task_without_an_answer_is_closed_as_undecided(world: SamplerWorld):
    async with at_work(world, hypotheses=1) as (people, sampler, run_id):
        lease = await take(people, "ann")
        task = await only_task(people, run_id)
        closed = await people.close(run_id, task.task.task_id, "chief", reason="ann has left", request_id="c1")
        assert await people.close(run_id, task.task.task_id, "chief", reason="ann has left", request_id="c1")
        with pytest.raises(errors.AlreadyExists, match="used before to close"):
            await people.close(run_id, task.task.task_id, "another", request_id="c1")
        assert closed.state in {people_pb2.TASK_STATE_DECIDED, people_pb2.TASK_STATE_SETTLED}
        assert await signs(sampler, run_id) == {c.premise_id: "?undecided" for c in task.task.candidates}
        with pytest.raises(errors.FailedPrecondition, match="nothing is left to do"):
            await people.submit(lease, [])
        with pytest.raises(errors.FailedPrecondition, match="has gone on with task"):
            await people.close(run_id, task.task.task_id, "chief")


async def test_the_answers_that_there_are_decide_and_what_they_have_not_seen_is_no_negative(world: SamplerWorld):
    async with at_work(world, hypotheses=1, overlap=3) as (people, sampler, run_id):
        lease = await take(people, "ann")
        first, second, third, fourth = (candidate.premise_id for candidate in lease.task.candidates)
        await people.submit(lease, {first: EXPLAINS}, seen_upto=lease.task.candidates[1].rank)
        assert (await only_task(people, run_id)).state == people_pb2.TASK_STATE_WAITING
        await people.close(run_id, lease.task.task_id, "chief")
        found = await signs(sampler, run_id)
    assert found == {first: "+", second: "-", third: "?undecided", fourth: "?undecided"}


async def test_what_people_dispute_stays_undecided_when_the_task_is_closed(world: SamplerWorld):
    async with at_work(world, hypotheses=1, overlap=2) as (people, sampler, run_id):
        for name, judgement in (("ann", EXPLAINS), ("ben", REFUSES)):
            lease = await take(people, name)
            await people.submit(lease, {lease.task.candidates[0].premise_id: judgement})
        disputed, *others = (candidate.premise_id for candidate in lease.task.candidates)
        assert (await only_task(people, run_id)).state == CONFLICT
        closed = await people.close(run_id, lease.task.task_id, "chief")
        assert (list(closed.conflicts), closed.adjudicator) == ([], "chief")
        assert await signs(sampler, run_id) == {disputed: "?undecided", **dict.fromkeys(others, "-")}


@pytest.mark.parametrize("disputed", [False, True])
async def test_an_answer_that_is_taken_back_opens_a_closed_task_again_for_as_many_as_before(
    world: SamplerWorld, disputed: bool
):
    async with at_work(world, hypotheses=1, overlap=2, undo_s=NEVER) as (people, _, run_id):
        lease = await take(people, "ann")
        await people.submit(lease, [])
        if disputed:
            await people.submit(await take(people, "ben"), {lease.task.candidates[0].premise_id: EXPLAINS})
        await people.close(run_id, lease.task.task_id, "chief")
        assert (await only_task(people, run_id)).state == people_pb2.TASK_STATE_DECIDED
        await people.undo("ann", run_id)
        task = await only_task(people, run_id)
        assert (task.state, task.adjudicator, len(task.answers)) == (
            people_pb2.TASK_STATE_WAITING,
            "",
            int(disputed),
        )
        for name in ("cem", "dora")[disputed:]:
            assert (await only_task(people, run_id)).state == people_pb2.TASK_STATE_WAITING
            await people.submit(await take(people, name), [])
        assert (await only_task(people, run_id)).state == (CONFLICT if disputed else people_pb2.TASK_STATE_DECIDED)


async def test_what_was_adjudicated_after_it_was_closed_is_not_taken_back(world: SamplerWorld):
    async with at_work(world, hypotheses=1, overlap=2, undo_s=NEVER) as (people, _, run_id):
        for name, judgement in (("ann", EXPLAINS), ("ben", REFUSES)):
            lease = await take(people, name)
            await people.submit(lease, {lease.task.candidates[0].premise_id: judgement})
        await people.close(run_id, lease.task.task_id, "chief")
        await people.adjudicate(run_id, lease.task.task_id, {lease.task.candidates[0].premise_id: EXPLAINS}, "lead")
        with pytest.raises(errors.FailedPrecondition, match="was adjudicated; amend it instead"):
            await people.undo("ann", run_id)


async def test_an_unknown_task_is_not_closed(world: SamplerWorld):
    async with at_work(world, hypotheses=1) as (people, _, run_id):
        with pytest.raises(errors.NotFound, match="no task 'none'"):
            await people.close(run_id, "none", "chief")

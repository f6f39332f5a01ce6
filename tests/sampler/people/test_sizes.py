"""What people are sent fits into an answer, or is refused with the limit and the remedy."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest

from aeenc import errors
from aeenc.v1 import people_pb2
from services.sampler.convert import to_agreement
from services.sampler.people.agreement import Agreement
from services.sampler.people.controls import ControlReport
from services.sampler.people.review import AnnotatorReport, Report
from support.worlds.sampler_world import SamplerWorld, at_work, take


async def test_a_page_of_tasks_and_of_answers_ends_before_it_is_too_large_for_a_message(world: SamplerWorld):
    most, count = 40_000, 6
    world.index.suffix = " x" * 1_500
    async with at_work(world, count, changes={"message_bytes": most}) as (people, _, run_id):
        given = []
        while len(given) < count:
            leases = await people.lease("ann", max_tasks=count)
            assert sum(len(one.text) for lease in leases for one in lease.task.candidates) < most
            given.append(len(leases))
            for lease in leases:
                await people.submit(lease, [])
            if sum(given) == count:
                break
        assert len(given) > 1
        for rpc, request in (
            (people._stub.ListTasks, people_pb2.ListTasksRequest(run_id=run_id, page_size=100)),
            (people._stub.ListAnswers, people_pb2.ListAnswersRequest(run_id=run_id, page_size=100, annotator="ann")),
        ):
            ids, pages = [], 0
            while not pages or request.page_token:
                page = await people.channel.unary(rpc, request)
                assert page.ByteSize() <= most
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
            await people.submit(lease, [one.premise_id for one in lease.task.candidates])
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
    many = [ControlReport(f"q{n}" + " x" * 1_500, 1, 2, 1, ()) for n in range(9)]
    figures = Agreement(*(0.5,) * 3, candidates=4, annotators=2)
    told = to_agreement(Report(figures, {"ann": AnnotatorReport(answers=1)}, many), 10_000)
    assert [one.query for one in told.controls] == [one.query for one in many[:3]]
    assert told.ByteSize() <= 10_000
    with pytest.raises(errors.TooLarge, match="raise the sampler's MESSAGE_BYTES"):
        to_agreement(Report(figures, {f"{n}" * 150: AnnotatorReport() for n in range(100)}, []), 10_000)

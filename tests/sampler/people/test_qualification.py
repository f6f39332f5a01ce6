"""The qualification round of a queue: control items before any other task, passed once, and who did what."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from aeenc import errors, values
from aeenc.oracle import Answer
from services.sampler.people.controls import read_controls
from services.sampler.people.task_store import TaskStore
from services.sampler.settings import QueueSettings
from support.worlds.sampler_world import NEVER, SamplerWorld, at_work, take

ITEMS = [
    {"query": f"what is {name}", "explains": [f"{name} is a metal"], "refuses": ["ice is cold", "salt is white"]}
    for name in ("iron", "tin", "lead")
]


def controls(folder: Path) -> dict[str, Any]:
    """Settings of a queue with two items to answer first, of three."""
    file = folder / "controls.jsonl"
    file.write_text("\n".join(map(json.dumps, ITEMS)))
    return {"controls": str(file), "control_share": 0.0, "qualify": 2, "undo_s": NEVER}


def metals(lease: values.Lease) -> list[str]:
    """What a person who looks accepts."""
    return [one.premise.id for one in lease.task.candidates if "metal" in one.premise.text]


async def standing(people: Any, name: str) -> values.Qualification:
    """How far somebody is."""
    [queue] = await people.list_queues(name)
    return queue.qualification


async def test_nobody_gets_a_control_item_of_a_run_that_is_deleted_meanwhile(
    world: SamplerWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with at_work(world, 2, **controls(tmp_path)) as (people, sampler, run_id):
        task_ids = TaskStore.task_ids

        async def deleting(store: TaskStore, *asked: Any) -> list[str]:
            monkeypatch.setattr(TaskStore, "task_ids", task_ids)
            await sampler.cancel(run_id)
            await sampler.delete(run_id)
            return await task_ids(store, *asked)

        monkeypatch.setattr(TaskStore, "task_ids", deleting)
        assert await people.lease("ann", run_id=run_id) == []


async def test_people_answer_control_items_before_any_other_task(world: SamplerWorld, tmp_path):
    async with at_work(world, 2, **controls(tmp_path)) as (people, _, run_id):
        assert await standing(people, "ann") == values.Qualification(items=2)
        [lease] = await people.lease("ann", run_id=run_id)
        with pytest.raises(errors.FailedPrecondition, match="0 of the 2 tasks that qualify") as refused:
            await people.lease("ann", run_id=run_id, hypothesis_id="tree-0")
        assert refused.value.reason == "NOT_QUALIFIED"
        await people.submit(lease, metals(lease))
        assert (await standing(people, "ann")).answered == 1
        second = await take(people, "ann")
        assert {lease.task.query, second.task.query} == {"what is iron", "what is tin"}
        assert await people.lease("ann") == []  # the round has no third item
        await people.submit(second, metals(second))
        assert (await take(people, "ann")).task.query.startswith("hypothesis")
        assert (await standing(people, "ann")).passed
        assert await standing(people, "bob") == values.Qualification(items=2)


async def test_an_answer_that_is_taken_back_meanwhile_qualifies_nobody(world: SamplerWorld, tmp_path, monkeypatch):
    answered_by = TaskStore.answered_by
    async with at_work(world, 2, **{**controls(tmp_path), "qualify": 1}) as (people, _, run_id):

        async def before_an_undo(*arguments: Any, **options: Any) -> list[str]:
            found = await answered_by(*arguments, **options)
            monkeypatch.setattr(TaskStore, "answered_by", answered_by)
            await people.undo("ann", run_id)
            return found

        lease = await take(people, "ann")
        await people.submit(lease, metals(lease))
        monkeypatch.setattr(TaskStore, "answered_by", before_an_undo)
        assert await standing(people, "ann") == values.Qualification(items=1)


async def test_who_fails_gets_no_task_of_the_run_however_they_amend_or_undo(world: SamplerWorld, tmp_path):
    async with at_work(world, 2, **controls(tmp_path)) as (people, _, run_id):
        leases, sent = [], []
        for _ in range(2):
            leases.append(await take(people, "bob"))
            sent.append(await people.submit(leases[-1], []))  # two of three verdicts are right: .67
        for _ in range(2):
            ann = await take(people, "ann")
            await people.submit(ann, metals(ann))
        told = await people.get_agreement(run_id)
        assert [(one.query, one.answers, one.verdicts, one.correct) for one in told.controls] == [
            (query, 2, 6, 5) for query in ("what is iron", "what is tin")
        ]
        assert told.controls[0].mistakes == (
            values.ControlMistake(
                right=values.Verdict(text="iron is a metal", judgement=values.Judgement.EXPLAINS), people=1
            ),
        )
        assert {one.annotator: one.answers_hour for one in told.reports} == {"ann": 2, "bob": 2}

        async def is_refused() -> None:
            with pytest.raises(errors.FailedPrecondition, match="fewer than 80% of the verdicts were right") as refused:
                await people.lease("bob")
            assert refused.value.reason == "NOT_QUALIFIED"
            assert await standing(people, "bob") == values.Qualification(items=2, answered=2)

        await is_refused()
        await people.amend(sent[0].answer_id, metals(leases[0]), "bob")
        await people.undo("bob", run_id)
        await is_refused()


async def test_a_control_item_that_a_lead_amends_still_measures_its_author(world: SamplerWorld, tmp_path):
    async with at_work(world, 2, **controls(tmp_path)) as (people, _, run_id):
        lease = await take(people, "bob")
        sent = await people.submit(lease, [])
        await people.amend(sent.answer_id, metals(lease), "lead")
        told = await people.get_agreement(run_id)
        assert [(one.verdicts, one.correct, len(one.mistakes)) for one in told.controls] == [(3, 2, 1)]
        assert [(one.control_verdicts, one.control_correct) for one in told.reports] == [(3, 2)]


async def test_a_batch_has_its_share_of_control_items_and_none_of_them_shows(world: SamplerWorld, tmp_path):
    settings = {**controls(tmp_path), "qualify": 0, "control_share": 0.5}
    async with at_work(world, 12, **settings) as (people, _, run_id):
        leases = await people.lease("ann", run_id=run_id, max_tasks=12)
        queries = [lease.task.query for lease in leases]
        assert len(set(queries)) == 12
        assert sum(query.startswith("what is") for query in queries) == 3  # all that there are
        for lease in leases:
            assert lease.hypothesis_id == f"tree-{lease.node_id.partition('-')[0]}"
            assert lease.task.model_version == "version-1"
        seen: dict[str, list[str]] = {}
        async with aclosing(people.watch(run_id)) as events:
            while any(seen.get(lease.task.task_id) != ["QUEUED", "LEASED"] for lease in leases):
                event = await asyncio.wait_for(anext(events), 5)
                seen.setdefault(event.task_id, []).append(event.kind.name)


async def test_people_who_answer_one_control_item_share_no_record_and_one_report(world: SamplerWorld, tmp_path):
    async with at_work(world, 2, **controls(tmp_path)) as (people, _, run_id):
        leases = [await take(people, f"person {number}") for number in range(12)]
        assert len({lease.task.query for lease in leases}) == 1
        assert len({lease.task.task_id for lease in leases}) == 12
        await asyncio.gather(*(people.submit(lease, metals(lease)) for lease in leases))
        [report] = (await people.get_agreement(run_id)).controls
        assert (report.answers, report.verdicts, report.correct) == (12, 36, 36)


async def test_a_premise_added_to_a_control_item_counts_neither_for_nor_against_a_person(world: SamplerWorld, tmp_path):
    async with at_work(world, 2, **controls(tmp_path)) as (people, _, run_id):
        for _ in range(2):
            lease = await take(people, "ann")
            await people.submit(lease, Answer(metals(lease), additions=["p1"]))
        assert (await take(people, "ann")).task.query.startswith("hypothesis")
        assert (await standing(people, "ann")).passed
        told = await people.get_agreement(run_id)
        assert [(one.verdicts, one.correct, one.mistakes) for one in told.controls] == [(3, 3, ())] * 2


async def test_who_has_passed_stays_qualified_in_the_next_run_and_after_a_restart(world: SamplerWorld, tmp_path):
    settings = controls(tmp_path)
    async with at_work(world, 2, **settings) as (people, _, run_id):
        for _ in range(2):
            lease = await take(people, "ann")
            await people.submit(lease, metals(lease))
        await take(people, "ann")
        assert run_id
    async with at_work(world, 2, **settings) as (people, _, run_id):
        [lease] = await people.lease("ann", run_id=run_id)
        assert lease.task.query.startswith("hypothesis")


async def test_who_is_named_needs_no_round(world: SamplerWorld, tmp_path):
    async with at_work(world, 2, **controls(tmp_path), qualified=["lea"]) as (people, _, _):
        assert (await take(people, "lea")).task.query.startswith("hypothesis")
        assert await standing(people, "lea") == values.Qualification()


async def test_a_round_needs_as_many_control_items(world: SamplerWorld, tmp_path):
    with pytest.raises(errors.InvalidArgument, match="qualify is 4, and its `controls` hold 3 items"):
        async with at_work(world, 2, **{**controls(tmp_path), "qualify": 4}):
            raise AssertionError


def test_a_queue_may_not_bear_the_name_of_an_oracle_and_controls_must_be_readable(world: SamplerWorld, tmp_path):
    with pytest.raises(ValueError, match="other names"):
        world.configure(queues={"fake": {}})
    for name in ("controls", "guideline"):
        with pytest.raises(ValueError, match=rf"queues\.team\.{name}\n.* does not point to a file"):
            world.configure(queues={"team": {name: str(tmp_path / "nowhere")}})
    guideline = tmp_path / "guideline.md"
    for content, message in ((b"# Les r\xe8gles", ":1: byte 8 is not UTF-8"), (b"a" * 65_537, "at most 65,536")):
        guideline.write_bytes(content)
        with pytest.raises(errors.InvalidArgument, match=message):
            QueueSettings(guideline=guideline).guideline_text()
    guideline.write_bytes(b"\xef\xbb\xbfone\r\n\r\ntwo\r\n")
    assert QueueSettings(guideline=guideline).guideline_text() == "one\n\ntwo"
    malformed = (
        ("{", ":1: not JSON"),
        ("\n[]", ":2: not a control item"),
        ('{"query": "\udce9"}', ":1: byte 12 is not UTF-8"),
        ('{"explains": ["x"]}', "query: Field required"),
        ('{"query": "q"}', "neither"),
        ('{"query": "q", "explains": [""]}', "a text is empty"),
        ("", "holds no"),
    )
    for text, message in malformed:
        (tmp_path / "c.jsonl").write_text(text, errors="surrogateescape")
        with pytest.raises(errors.InvalidArgument, match=message):
            read_controls(tmp_path / "c.jsonl")

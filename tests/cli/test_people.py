"""The commands about people's work: queues and trees, conflicts, figures of agreement, and the trail of changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime

import pytest

import aeenc as sdk
from aeenc.oracle import Answer
from aeenc.v1 import types_pb2
from support.waiting import eventually
from support.worlds.sampler_world import NEVER, SamplerWorld, at_work

PAGE = 9  # candidates that a person has seen
RUN = {"k": 12}


async def accept(people: sdk.PeopleClient, run_id: str, rank: int, name: str = "ann") -> str:
    """A person accepts the candidate of a rank of their next task, and refuses the others of the page."""
    [lease] = await people.lease(name, run_id=run_id)
    accepted = {lease.task.candidates[rank - 1].premise.id: sdk.Verdict("JUDGEMENT_EXPLAINS", in_sight_ms=1500)}
    await people.submit(lease, accepted, seen_upto=PAGE)
    return lease.task.task_id


async def test_a_lead_sees_queue_and_tree(aeenc, world: SamplerWorld, monkeypatch):
    async with at_work(world, 2, run=RUN, undo_s=NEVER) as (people, sampler, run_id):
        monkeypatch.setenv("AEENC_SAMPLER", sampler.channel.target)
        before = await aeenc.json("tree", run_id, "tree-0")
        assert (before["finished"], [node["state"] for node in before["nodes"]]) == (False, ["waiting"])
        numbers = (await aeenc.json("queues", "--annotator", "ann"))["queues"]
        assert [(row["queue"], row["run"], row["free"]) for row in numbers] == [("team", "", 2), ("team", run_id, 2)]
        await people.settle(run_id, await accept(people, run_id, 1), "ann")
        shown = (await aeenc("queues", "--annotator", "ann")).stdout
        assert run_id in shown
        assert "ann in queue team: 1 answers, 1 in the last hour" in shown
        assert max(map(len, shown.splitlines())) <= 80
        await eventually(lambda: sampler.get_run(run_id), is_so=lambda run: run.progress.nodes_judged == 1)
        task = await anext(people.list_tasks(run_id))
        drawn = (await aeenc("tree", run_id, "tree-0")).stdout
        assert "hypothesis 0" in drawn
        assert task.task.candidates[0].premise.text in drawn
        [lease] = await people.lease("bob", run_id=run_id)
        added = min({f"p{n}" for n in range(RUN["k"] + 1)} - {c.premise.id for c in lease.task.candidates})
        await people.submit(lease, Answer([], additions=[added], written=["é fact"]))
        listed = (await aeenc("tasks", run_id)).stdout
        assert f"{added}  fact {added[1:]}  (added by bob)" in listed
        assert "é fact  (written by bob)" in listed


async def test_tasks_are_retrieved_again_and_the_trail_says_who_asked(aeenc, world: SamplerWorld, monkeypatch):
    async with at_work(world, 2, run=RUN) as (_, sampler, run_id):
        monkeypatch.setenv("AEENC_SAMPLER", sampler.channel.target)
        world.index.stable = "version-2"
        tried = await aeenc.json("retrieve-again", run_id, "--dry-run")
        assert (tried["version"], len(tried["tasks"])) == ("version-2", 2)
        assert "no changes" in (await aeenc("changes", run_id)).stdout
        done = await aeenc.json("retrieve-again", run_id, "--annotator", "ann", "--hypothesis", "tree-1")
        assert len(done["tasks"]) == 1
        [change] = (await aeenc.json("changes", run_id))["changes"]
        assert (change["change"], change["person"], change["detail"]) == ("withdrawn", "ann", "version-2")
        assert change["task"] in done["tasks"]
        assert change["query"] == "hypothesis 1"
        shown = (await aeenc("changes", run_id)).stdout
        assert change["task"] in shown
        assert f"{datetime.fromisoformat(change['at']).astimezone():%Y-%m-%d %H:%M:%S}" in shown


async def test_conflicts_are_listed_decided_and_agreement_is_told(aeenc, world: SamplerWorld, monkeypatch):
    async with at_work(world, 1, run=RUN, overlap=2) as (people, sampler, run_id):
        monkeypatch.setenv("AEENC_SAMPLER", sampler.channel.target)
        for rank, name in ((1, "ann"), (2, "bob")):
            await accept(people, run_id, rank, name)
        [task] = (await aeenc.json("tasks", run_id, "--state", "conflict"))["tasks"]
        assert [list(answer["in_sight_ms"].values()) for answer in task["answers"]] == [[1500], [1500]]
        assert [c["said"] for c in task["conflicts"]] == [
            "ann: explains, bob: does not explain",
            "ann: does not explain, bob: explains",
        ]
        told = await aeenc.json("agreement", run_id)
        assert (told["candidates"], told["annotators"]) == (9, 2)
        assert told["krippendorff_alpha"] < 0.5
        assert {report["annotator"]: report["answers"] for report in told["reports"]} == {"ann": 1, "bob": 1}
        assert [report["agrees_with"] for report in told["reports"]] == [{"bob": 0.0}, {"ann": 0.0}]
        assert [report["refused"] for report in told["reports"]] == ["89%", "89%"]
        shown = (await aeenc("agreement", run_id)).stdout
        assert "annotators compared" in shown
        assert "least agreement" in shown
        first, second = (c["id"] for c in task["conflicts"])
        decide = ("--json", "adjudicate", run_id, task["task"], "--explains", first)
        assert (await aeenc(*decide)).code == 2
        assert (await aeenc(*decide, "--refuses", first)).code == 2
        assert (await aeenc(*decide, "--refuses", second, "--annotator", "judge")).code == 0
        await asyncio.wait_for(sampler.wait(run_id), 40)
        assert "SETTLED" in (await aeenc("tasks", run_id)).stdout
        assert (await aeenc.json("tasks", run_id))["tasks"][0]["adjudicator"] == "judge"


@pytest.mark.parametrize("name", ["=2", "team=0", "team=x", "team=101"])
async def test_a_queue_with_a_wrong_number_of_people_is_refused_before_anything_starts(aeenc, name: str):
    ended = await aeenc("--json", "up", "--people", name)
    assert (ended.code, repr(name) in ended.error["message"]) == (2, True)


async def test_a_command_closes_a_task_and_what_nobody_saw_is_undecided(aeenc, world: SamplerWorld, monkeypatch):
    async with at_work(world, 1, run=RUN, overlap=2) as (people, sampler, run_id):
        task_id = await accept(people, run_id, 1)
        monkeypatch.setenv("AEENC_SAMPLER", sampler.channel.target)
        await aeenc.json("close", run_id, task_id, "--reason", "ben has left")
        assert (await sampler.wait(run_id)).progress.nodes_judged == 1
        found = Counter([pair.sign async for pair in sampler.list_pairs(run_id)])
        assert found == {
            types_pb2.PAIR_SIGN_POSITIVE: 1,
            types_pb2.PAIR_SIGN_NEGATIVE: 8,
            types_pb2.PAIR_SIGN_SKIPPED: 3,
        }

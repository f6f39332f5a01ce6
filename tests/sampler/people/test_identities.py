"""People under named credentials: each acts as themselves, sees others' answers after their own, amends their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

import aeenc
from aeenc import errors
from aeenc.oracle import REFUSES
from services.kit.credentials.credential_file import Credential, HashedToken, hash_of, render
from services.sampler.__main__ import build
from support.waiting import eventually
from support.worlds.sampler_world import NEVER, QUEUE, SamplerWorld, at_work, take, tasks

PEOPLE = {"ann": "annotate", "bob": "annotate", "lead": "adjudicate", "boss": "admin"}


@asynccontextmanager
async def team(world: SamplerWorld, folder: Path) -> AsyncIterator[tuple[dict[str, aeenc.PeopleClient], str]]:
    """A queue of two people each task, a run in it, and a client of each person. `web` acts on behalf of others."""
    credentials = [
        Credential(name=name, role=role, hashes=(HashedToken(sha256=hash_of(name)),)) for name, role in PEOPLE.items()
    ]
    web = Credential(name="web", role="annotate", on_behalf=True, hashes=(HashedToken(sha256=hash_of("web")),))
    file = folder / "tokens.toml"
    file.write_text("".join(map(render, [*credentials, web])), encoding="utf-8")
    async with AsyncExitStack() as stack:
        queues = {"team": {**QUEUE, "overlap": 2, "undo_s": 3600.0}}
        server = await stack.enter_async_context(build(world.configure(queues=queues, tokens_file=file)))
        clients = {}
        for name in (*PEOPLE, "web"):
            channel = aeenc.Channel(f"127.0.0.1:{server.port}", token=name)
            stack.push_async_callback(channel.close)
            clients[name] = aeenc.PeopleClient(channel)
        sampler = aeenc.SamplerClient(clients["boss"].channel)
        run = await sampler.start_run([("tree-0", "hypothesis 0")], corpus="science", oracle="team", k=4, max_depth=0)
        await eventually(lambda: tasks(clients["boss"], run.id))
        yield clients, run.id


async def test_a_person_acts_under_their_own_name_only(world: SamplerWorld, tmp_path: Path):
    async with team(world, tmp_path) as (people, run_id):
        with pytest.raises(errors.PermissionDenied, match="'ann' may not act as 'bob'"):
            await people["ann"].lease("bob")
        [mine] = await people["ann"].lease("")
        assert [node.holders for node in (await people["lead"].get_tree(run_id, "tree-0")).nodes] == [("ann",)]
        for call in (
            people["bob"].submit(mine, []),
            people["bob"].renew(mine.lease_id),
            people["bob"].release(mine.lease_id),
        ):
            with pytest.raises(errors.PermissionDenied, match="is held by ann, not by bob"):
                await call
        await people["ann"].submit(mine, [])
        with pytest.raises(errors.PermissionDenied, match="may only settle"):
            await people["ann"].close(run_id, mine.task.task_id, "")
        with pytest.raises(errors.PermissionDenied, match="may not act as"):
            await people["bob"].undo("ann", run_id)
        assert len(await people["ann"].undo("", run_id)) == 1


async def test_the_answers_of_others_are_hidden_until_ones_own(world: SamplerWorld, tmp_path: Path):
    async def seen(by: str, viewer: str = "") -> set[str]:
        [task] = await tasks(people[by], run_id, annotator=viewer)
        return {answer.annotator for answer in task.answers}

    async with team(world, tmp_path) as (people, run_id):
        await people["ann"].submit(await take(people["ann"], "ann"), [])
        assert (await seen("ann"), await seen("bob"), await seen("lead")) == ({"ann"}, set(), {"ann"})
        assert (await seen("web", "bob"), await seen("boss", "bob")) == (set(), set())
        await people["bob"].submit(await take(people["bob"], "bob"), [])
        assert await seen("bob") == {"ann", "bob"}


async def test_only_the_author_or_an_adjudicator_amends(world: SamplerWorld, tmp_path: Path):
    async with team(world, tmp_path) as (people, _):
        lease = await take(people["ann"], "ann")
        first = (await people["ann"].submit(lease, [])).answer_id
        ticked = [lease.task.candidates[0].premise.id]
        with pytest.raises(errors.PermissionDenied, match="is by ann; only its author or an adjudicator"):
            await people["bob"].amend(first, ticked, "bob")
        second = await people["ann"].amend(first, ticked, "ann")
        assert await people["lead"].amend(second, {ticked[0]: REFUSES}, "lead") != second


async def test_a_service_account_speaks_for_the_people_who_use_it(world: SamplerWorld, tmp_path: Path):
    async with team(world, tmp_path) as (people, run_id):
        lease = await take(people["web"], "cem")
        answer = (await people["web"].submit(lease, [])).answer_id
        with pytest.raises(errors.PermissionDenied, match="is by cem"):
            await people["web"].amend(answer, [lease.task.candidates[0].premise.id], "dan")
        assert [one async for one in people["web"].list_tasks(run_id, answered_by="cem")]


@pytest.mark.parametrize(("one", "other"), [("ann", " ann\t"), ("Zo\u00eb", "Zoe\u0308")], ids=["blanks", "NFC"])
async def test_two_ways_to_type_a_name_are_one_person(world: SamplerWorld, one: str, other: str):
    settings = {"overlap": 2, "undo_s": NEVER, "qualified": [other]}
    async with at_work(world, hypotheses=1, **settings) as (people, _, run_id):
        await people.submit(await take(people, one, run_id), [])
        assert await people.lease(other) == []
        assert [queue.total.mine for queue in await people.list_queues(other)] == [1]
        assert [task.answers[0].annotator async for task in people.list_tasks(run_id, answered_by=other)] == [one]
        assert len(await people.undo(other, run_id)) == 1
        assert (await take(people, other)).task.query == "hypothesis 0"

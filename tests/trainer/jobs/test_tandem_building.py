"""The last step of a job in mode SIAMESE or DUAL: its generation is built, and nothing that serves moves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aeenc import IndexClient, errors
from aeenc.values import Premise
from services.corpus.generation import open_generation
from services.kit.concurrency import cancel_all
from services.store.registry import Registry
from services.trainer.jobs.tandem_building import TandemBuilder
from support.waiting import eventually
from support.worlds.tandem_world import PREMISES, TandemCheckpoints, TandemWorld, pairs, tandem_space, world

__all__ = ["pairs", "tandem_space", "world"]


async def test_a_generation_is_built_with_the_trained_premises_and_nothing_that_serves_moves(
    world: TandemWorld, pairs: list[TandemCheckpoints]
) -> None:
    before = await world.served()
    tandem = await world.tandem(pairs[0])
    (built,) = [one async for one in world.index.list_generations(world.corpus) if one.id == tandem.generation]
    assert (built.space_id, built.premise_version) == (pairs[0].space_id, pairs[0].premise_version)
    assert built.premises == len(PREMISES)
    assert await world.served() == before
    assert {row.name for row in await world.rows.labels(pairs[0].space_id)} == set(), "the job's label is gone"
    await eventually(world.spaces, is_so={world.space.space_id}.__eq__)
    shown = await world.trainer.get_checkpoint(pairs[0].version)
    assert (shown.tandem.corpus, shown.tandem.generation) == (world.corpus, tandem.generation)
    assert (shown.tandem.premise_version, shown.tandem.replaces) == (pairs[0].premise_version, "")
    listed = {
        one.version: one.tandem.generation if one.tandem else "" async for one in world.trainer.list_checkpoints()
    }
    assert listed[pairs[0].version] == tandem.generation
    assert listed[world.space.version] == ""


@pytest.mark.parametrize("of_unfolded", [False, True])
async def test_a_tandem_of_a_folded_generation_is_folded_and_keeps_apart_what_it_has_of_an_unfolded_base(
    world: TandemWorld, pairs: list[TandemCheckpoints], of_unfolded: bool
) -> None:
    premises, base = PREMISES, ""
    if of_unfolded:
        again = Premise(id="again", text=f"{PREMISES[0].text.capitalize()}.")
        base = (await world.index.build(world.corpus, [*PREMISES, again])).id
        premises = [Premise(id="new", text="gold is a metal")]
    folded = await world.index.build(world.corpus, premises, base_generation=base, fold_similar=True)
    tandem = await world.tandem(pairs[0], world.job(generation=folded.id))
    opened = [open_generation(world.space.store, world.corpus, one) for one in (folded.id, tandem.generation)]
    assert [one.is_folded for one in opened] == [True, not of_unfolded]
    assert [*opened[0].premises] == [*opened[1].premises]


async def test_a_build_that_fails_leaves_no_label_and_goes_on_when_it_is_asked_again(
    world: TandemWorld, pairs: list[TandemCheckpoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, build = world.job(), IndexClient.build
    asked: list[str] = []

    async def away(self: IndexClient, corpus: str, premises: Any, *, request_id: str, **options: Any) -> Any:
        asked.append(request_id)
        assert not isinstance(premises, list | tuple), "a large corpus is not held here"
        twice = [[one.id async for one in premises] for _ in range(2)]
        assert twice[0] == twice[1] != [], "a build that goes on begins them again"
        raise errors.Unavailable("the index restarts")

    monkeypatch.setattr(IndexClient, "build", away)
    with pytest.raises(errors.Unavailable, match="restarts"):
        await world.tandem(pairs[0], job)
    assert await world.rows.labels(pairs[0].space_id) == []
    monkeypatch.setattr(IndexClient, "build", build)
    tandem = await world.tandem(pairs[0], job)
    assert await world.tandem(pairs[0], job) == tandem
    assert len({*asked, f"tandem {job.id}"}) == 1, "the index is asked for the same build again"


async def test_a_job_that_is_cancelled_before_it_knows_that_its_label_is_set_leaves_no_label(
    world: TandemWorld, pairs: list[TandemCheckpoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_label, moved = Registry.set_label, asyncio.Event()

    async def unanswered(self: Registry, *arguments: Any, **options: Any) -> Any:
        await set_label(self, *arguments, **options)
        moved.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Registry, "set_label", unanswered)
    building = asyncio.create_task(world.tandem(pairs[0]))
    await moved.wait()
    await cancel_all([building])
    assert await world.rows.labels(pairs[0].space_id) == []


async def test_labels_of_jobs_that_have_ended_or_were_deleted_are_swept_but_none_that_a_caller_named_after_a_job(
    world: TandemWorld, pairs: list[TandemCheckpoints]
) -> None:
    job = world.job(state="CANCELLED")
    await world.checkpoints.register(pairs[0].version)
    await world.rows.checkpoints.set_space(pairs[0].space_id, pairs[0].premise_version)
    store: Any = world.building._jobs
    await store.create(job, [])
    others = sorted(["job-0123456789abcdef", f"job-{job.id}", "job-of-somebody", "job-7-20261130"])
    for label in (f"job-{job.id}-01234567", "job-0123456789abcdef-01234567", *others):
        await world.rows.set_label(pairs[0].space_id, label, pairs[0].version)
    sweeping = TandemBuilder(world.rows, world.index, world.tandems, store, world.space.store)
    await sweeping.sweep()
    assert sorted(row.name for row in await world.rows.labels(pairs[0].space_id)) == others

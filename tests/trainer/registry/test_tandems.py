"""A tandem is published and taken back as one: callers get both of its encoders or neither, whatever fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from operator import attrgetter
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from aeenc import IndexClient, errors
from aeenc.v1 import registry_pb2, registry_pb2_grpc, types_pb2
from services.corpus.generation import VECTORS, folder_of
from services.index.__main__ import build as build_index
from services.index.settings import IndexSettings
from services.store.registry import Registry
from services.store.requests import Request, Requests
from services.trainer.registry import tandems as publication
from services.trainer.registry.rollout import await_all
from services.trainer.registry.tandems import Tandem, TandemPublisher
from support.models.tiny_checkpoints import write_tiny_checkpoint
from support.waiting import eventually, until
from support.worlds.tandem_world import PREMISES, TandemCheckpoints, TandemWorld, make_pair, pairs, tandem_space, world

__all__ = ["pairs", "tandem_space", "world"]


async def test_callers_get_encoder_and_premises_of_one_space_while_a_tandem_is_published_and_taken_back(
    world: TandemWorld, pairs: list[TandemCheckpoints]
) -> None:
    tandem = await world.tandem(pairs[0])
    old = (world.space.version, world.base)
    new = (tandem.version, tandem.generation)
    seen: list[tuple[str, str]] = []
    stop = asyncio.Event()

    async def call() -> None:
        while not stop.is_set():
            found = await world.index.retrieve(world.corpus, ["the sun", "a magnet"], k=3)
            assert found.space_id == (
                pairs[0].space_id if found.generation == tandem.generation else world.space.space_id
            )
            seen.append((found.model_version, found.generation))

    callers = [asyncio.create_task(call()) for _ in range(3)]
    await until(lambda: len(seen) > 10)
    published = await world.registry.publish(tandem.version, wait_s=20)
    assert (published.complete, published.generation) == (True, tandem.generation)
    assert (published.label.name, published.label.versions[0]) == ("stable", tandem.version)
    await until(lambda: seen[-1] == new)
    back = await world.registry.rollback(corpus=world.corpus, wait_s=20)
    assert (back.complete, back.generation, back.label.versions[0]) == (True, world.base, world.space.version)
    await until(lambda: seen[-1] == old)
    stop.set()
    await asyncio.gather(*callers)  # no call has failed
    assert set(seen) == {old, new}, "never the encoder of one with the premises of the other"


async def test_a_caller_with_vectors_of_the_old_space_is_refused_and_may_pin_the_old_generation(
    world: TandemWorld, pairs: list[TandemCheckpoints]
) -> None:
    tandem = await world.tandem(pairs[0])
    old = await world.encoder.encode(["the sun"])
    await world.registry.publish(tandem.version, wait_s=20)
    with pytest.raises(errors.SpaceMismatch):
        await world.index.search(world.corpus, old.vectors, space_id=old.space_id)
    pinned = await world.index.search(world.corpus, old.vectors, space_id=old.space_id, generation=world.base)
    assert pinned.generation == world.base
    new = await world.encoder.encode(["the sun"], space_id=tandem.space_id)
    found = await world.index.search(world.corpus, new.vectors, space_id=new.space_id)
    assert (found.generation, found.space_id) == (tandem.generation, tandem.space_id)
    retrieved = await world.index.retrieve(world.corpus, ["the sun"], generation=world.base)
    assert retrieved.model_version == world.space.version, "the old encoders stay for the old generation"
    with pytest.raises(errors.VersionNotLoaded):  # of the old space, while the new one is searched
        await world.index.retrieve(world.corpus, ["the sun"], version=world.space.version)


async def unmoved(world: TandemWorld, made: TandemCheckpoints, before: tuple[str, str]) -> None:
    """The old pair serves, and nothing is left of the attempt."""
    assert await world.served() == before
    assert await world.rows.labels(made.space_id) == []


async def test_an_encoder_that_does_not_follow_keeps_the_old_pair_serving(
    world: TandemWorld, pairs: list[TandemCheckpoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.trainer.registry.tandems.LEAST_WAIT_S", 0.5)
    tandem, before = await world.tandem(pairs[0]), await world.served()
    await world.rows.heartbeat("encoder-2")  # lives, and never answers
    with pytest.raises(errors.FailedPrecondition, match=r"encoder-2 \(has not answered yet\); repair") as caught:
        await world.registry.publish(tandem.version)
    assert caught.value.reason == "ENCODERS_BEHIND"
    await unmoved(world, pairs[0], before)


async def test_a_generation_that_cannot_be_activated_keeps_the_old_pair_serving(
    world: TandemWorld, pairs: list[TandemCheckpoints]
) -> None:
    tandem, before = await world.tandem(pairs[0]), await world.served()
    path = world.space.store.path(folder_of(world.corpus), tandem.generation) / VECTORS
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(errors.DataLoss, match="sha256"):
        await world.registry.publish(tandem.version, wait_s=20)
    await unmoved(world, pairs[0], before)
    assert (await world.trainer.get_checkpoint(tandem.version)).labels == ()


@pytest.mark.parametrize("label_moves", [False, True])
async def test_a_corpus_or_label_that_somebody_moves_during_a_publication_is_left_as_they_want_it(
    world: TandemWorld, pairs: list[TandemCheckpoints], monkeypatch: pytest.MonkeyPatch, label_moves: bool
) -> None:
    tandem = await world.tandem(pairs[0])
    activate = IndexClient.activate

    async def overtaken(self: IndexClient, corpus: str, generation: str, **options: Any) -> Any:
        monkeypatch.setattr(IndexClient, "activate", activate)
        await world.index.build(corpus, PREMISES[:40])
        if label_moves:
            await world.rows.set_label(tandem.space_id, "stable", pairs[0].premise_version)
        return await activate(self, corpus, generation, **options)

    monkeypatch.setattr(IndexClient, "activate", overtaken)
    with pytest.raises(errors.Aborted):
        await world.registry.publish(tandem.version, wait_s=20)
    assert await world.active() not in {tandem.generation, world.base}
    left = [pairs[0].premise_version] if label_moves else []
    assert [row.version for row in await world.rows.labels(tandem.space_id) if row.name != "previous"] == left


async def test_a_label_that_moves_while_encoders_are_waited_for_is_left_where_it_is(
    world: TandemWorld, pairs: list[TandemCheckpoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    tandem, before = await world.tandem(pairs[0]), await world.served()

    async def overtaken(*arguments: Any) -> Any:
        await world.rows.set_label(tandem.space_id, "stable", pairs[0].premise_version)
        return await await_all(*arguments)

    monkeypatch.setattr(publication, "await_all", overtaken)
    with pytest.raises(errors.Aborted, match=f"label 'stable' of space {tandem.space_id} has moved meanwhile"):
        await world.registry.publish(tandem.version, wait_s=20)
    assert await world.served() == before
    assert (await world.rows.label(tandem.space_id, "stable")).version == pairs[0].premise_version


async def test_an_answer_of_the_index_that_is_lost_is_no_failure(
    world: TandemWorld, pairs: list[TandemCheckpoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    tandem = await world.tandem(pairs[0])
    activate = IndexClient.activate

    async def lost(self: IndexClient, *arguments: Any, **options: Any) -> Any:
        await activate(self, *arguments, **options)
        raise errors.Unavailable("the connection broke")

    monkeypatch.setattr(IndexClient, "activate", lost)
    assert (await world.registry.publish(tandem.version, wait_s=20)).generation == tandem.generation
    assert await world.served() == (tandem.version, tandem.generation)


async def test_a_corpus_with_other_premises_by_now_is_refused_unless_forced(
    world: TandemWorld, pairs: list[TandemCheckpoints]
) -> None:
    tandem = await world.tandem(pairs[0])
    more = [types_pb2.Premise(id="new", text="a new fact")]
    now = await world.index.build(world.corpus, more, base_generation=world.base)
    with pytest.raises(errors.FailedPrecondition, match="serves other premises since generation") as caught:
        await world.registry.publish(tandem.version, wait_s=20)
    assert caught.value.reason == "OTHER_PREMISES"
    assert await world.active() == now.id
    assert (await world.registry.publish(tandem.version, wait_s=20, force=True)).generation == tandem.generation
    back = await world.registry.rollback(corpus=world.corpus, wait_s=20)
    assert back.generation == now.id == await world.active()


async def test_a_tandem_that_is_measurably_worse_is_refused(world: TandemWorld) -> None:
    bad, good = [0.3 + 0.01 * n for n in range(10)], [0.8 + 0.01 * n for n in range(10)]
    metrics = {"format_version": 1, "generation": "g", "queries_sha256": "x"}
    metrics |= {"average_precisions": bad, "measured": {world.space.version: good}}
    made = make_pair(world.space, 9, metrics)
    tandem, before = await world.tandem(made), await world.served()
    with pytest.raises(errors.FailedPrecondition, match="paired randomisation test") as caught:
        await world.registry.publish(tandem.version, wait_s=20)
    assert caught.value.reason == "QUALITY_GATE"
    await unmoved(world, made, before)


async def tandem_and_better(world: TandemWorld, pairs: list[TandemCheckpoints]) -> tuple[Tandem, str]:
    """Makes a tandem, and a version of the space before that `stable` may come to name meanwhile."""
    better = write_tiny_checkpoint(world.space.store, seed=7).version
    await world.checkpoints.register(better)
    return await world.tandem(pairs[0]), better


@pytest.mark.parametrize("step", ["await_all", "TandemPublisher._activate"])
async def test_a_tandem_does_not_replace_what_it_was_not_compared_with_unless_forced(
    world: TandemWorld, pairs: list[TandemCheckpoints], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    tandem, better = await tandem_and_better(world, pairs)
    place, go_on = f"services.trainer.registry.tandems.{step}", attrgetter(step)(publication)

    async def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(place, go_on)
        assert (await world.registry.publish(better, wait_s=20)).complete
        return await go_on(*arguments)

    monkeypatch.setattr(place, overtaken)
    with pytest.raises(errors.Aborted, match=rf"at revision 2 \({better}\), no longer at 1, .*publish it again"):
        await world.registry.publish(tandem.version, wait_s=20)
    await unmoved(world, pairs[0], (better, world.base))
    await world.registry.set_label("stable", world.space.version)
    monkeypatch.setattr(place, overtaken)
    await world.registry.publish(tandem.version, wait_s=20, force=True)
    assert await world.served() == (tandem.version, tandem.generation)


async def test_a_way_back_that_nobody_went_is_refused_and_a_repeated_one_goes_back_once(
    world: TandemWorld, pairs: list[TandemCheckpoints]
) -> None:
    with pytest.raises(errors.FailedPrecondition, match="no publication has activated"):
        await world.registry.rollback(corpus=world.corpus)
    tandems = [await world.tandem(made) for made in pairs[:2]]
    for tandem in tandems:
        await world.registry.publish(tandem.version, wait_s=20)
    stub = registry_pb2_grpc.RegistryAdminServiceStub(world.trainer.channel.grpc)
    request = registry_pb2.RollbackRequest(corpus=world.corpus, request_id="once")
    stored = world.tandems
    await stored._redis.hset(stored._key, "another", '{"format_version": "damaged"}')
    for _ in range(2):
        assert (await stub.Rollback(request)).generation == tandems[0].generation
    assert await world.served() == (tandems[0].version, tandems[0].generation)
    await world.registry.rollback(corpus=world.corpus, wait_s=20)
    assert await world.served() == (world.space.version, world.base)


async def test_a_rollback_that_names_no_space_moves_the_one_that_serves_or_none(
    world: TandemWorld, pairs: list[TandemCheckpoints]
) -> None:
    tandem, better = await tandem_and_better(world, pairs)
    await world.registry.publish(better, wait_s=20)
    await world.registry.publish(tandem.version, wait_s=20)
    before = {label.space_id: label async for label in world.registry.list_labels() if label.name == "stable"}
    assert set(before) == {world.space.space_id, tandem.space_id}
    with pytest.raises(errors.FailedPrecondition, match=f"no version before {tandem.version}"):
        await world.registry.rollback()
    revision = before[world.space.space_id].revision
    with pytest.raises(errors.FailedPrecondition, match=f"{tandem.space_id}.*name the one that you mean") as caught:
        await world.registry.rollback(expected_revision=revision)
    assert (caught.value.reason, world.space.space_id in caught.value.message) == ("SPACE_AMBIGUOUS", True)
    after = {label.space_id: label async for label in world.registry.list_labels() if label.name == "stable"}
    assert after == before
    back = await world.registry.rollback(space_id=world.space.space_id, expected_revision=revision)
    assert (back.label.space_id, back.label.versions[0]) == (world.space.space_id, world.space.version)


async def test_the_space_before_the_way_back_is_closed(world: TandemWorld, pairs: list[TandemCheckpoints]) -> None:
    tandems = [await world.tandem(made) for made in pairs]
    await world.rows.set_label(pairs[1].space_id, "run-1", pairs[1].version)
    for tandem in tandems:
        await world.registry.publish(tandem.version, wait_s=20)
    assert await world.rows.labels(pairs[0].space_id) == []
    assert {row.name for row in await world.rows.labels(pairs[1].space_id)} == {"run-1", "stable"}
    await eventually(world.spaces, is_so={world.space.space_id, pairs[1].space_id, pairs[2].space_id}.__eq__)
    with pytest.raises(errors.FailedPrecondition, match="cannot be deleted"):
        await world.registry.delete_label("stable", space_id=pairs[2].space_id)
    await world.registry.delete_label("stable", space_id=pairs[1].space_id)
    await world.registry.delete_label("run-1")  # as a run does, which does not know of spaces
    assert await world.rows.labels(pairs[1].space_id) == []


async def test_a_space_that_an_index_process_still_serves_is_not_closed(
    world: TandemWorld, pairs: list[TandemCheckpoints]
) -> None:
    tandems = [await world.tandem(made) for made in pairs]
    await world.registry.publish(tandems[0].version, wait_s=20)
    settings = IndexSettings(port=0, artifacts_dir=world.space.store.root, instance="slow", look_s=1000.0)
    async with build_index(settings) as slow:
        await until(lambda: slow.readiness.answers)
        for tandem in tandems[1:]:
            await world.registry.publish(tandem.version)
        assert [row.name for row in await world.rows.labels(pairs[0].space_id)] == ["stable"]
        with pytest.raises(errors.FailedPrecondition, match="cannot be deleted"):
            await world.registry.delete_label("stable", space_id=pairs[0].space_id)


async def test_a_version_of_the_space_that_serves_is_published_by_its_label_alone(
    world: TandemWorld, pairs: list[TandemCheckpoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    tandem = await world.tandem(pairs[0])
    with monkeypatch.context() as patched:
        patched.setattr(Registry, "best_precision", AsyncMock(return_value="int8"))
        await world.registry.publish(tandem.version, precision="float32", wait_s=20)
    assert (await world.rows.label(tandem.space_id, "stable")).precision == "float32", "as it was asked for"
    stub = registry_pb2_grpc.RegistryAdminServiceStub(world.trainer.channel.grpc)
    request = registry_pb2.PublishRequest(versions=[pairs[0].premise_version], request_id="once")
    request.wait.FromSeconds(20)
    for _ in range(2):
        later = await stub.Publish(request)
        assert (later.complete, later.generation, later.label.space_id) == (True, "", pairs[0].space_id)
    assert await world.served() == (pairs[0].premise_version, tandem.generation)
    again = await world.registry.publish(tandem.version, wait_s=20)
    assert again.generation == ""
    assert await world.served() == (tandem.version, tandem.generation)


@pytest.mark.parametrize("label", ["canary", "trial"])
async def test_another_label_than_stable_opens_the_space_for_an_evaluation_while_the_index_is_away(
    world: TandemWorld, pairs: list[TandemCheckpoints], monkeypatch: pytest.MonkeyPatch, label: str
) -> None:
    tandem, before = await world.tandem(pairs[0]), await world.served()

    def away(_: IndexClient, **_options: Any) -> Any:
        raise errors.Unavailable("the index is away")

    monkeypatch.setattr(IndexClient, "list_corpora", away)
    published = await world.registry.publish(tandem.version, label=label, wait_s=20)
    assert (published.label.name, published.label.space_id, published.complete) == (label, tandem.space_id, True)
    queries = [(f"the {word} is hot", [PREMISES[n].text]) for n, word in enumerate(("sun", "moon"))]
    report = await world.trainer.evaluate(world.corpus, queries, version=tandem.version, generation=tandem.generation)
    assert (report.model_version, report.generation) == (tandem.version, tandem.generation)
    assert await world.served() == before
    asked_once = type(world.registry)(world.registry.channel.with_options(retry=False))
    with pytest.raises(errors.Unavailable, match="the index is away"):
        await asked_once.publish(tandem.version, wait_s=20)


async def test_a_publication_that_is_cancelled_while_encoders_are_waited_for_leaves_nothing_behind(
    world: TandemWorld, pairs: list[TandemCheckpoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.store.registry.HEARTBEAT_TTL_S", 600)
    tandem, before = await world.tandem(pairs[0]), await world.served()
    await world.rows.heartbeat("encoder-2")  # lives, and never answers
    task = await publishing_elsewhere(world, tandem)
    await eventually(world.spaces, is_so=lambda loaded: tandem.space_id in loaded)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await unmoved(world, pairs[0], before)


async def test_a_trainer_that_dies_before_the_switch_leaves_the_old_pair_and_a_retry_finishes(
    world: TandemWorld, pairs: list[TandemCheckpoints]
) -> None:
    tandem, before = await world.tandem(pairs[0]), await world.served()
    row = await world.rows.set_label(tandem.space_id, "stable", tandem.version)
    assert all(rollout.ok for rollout in await world.rows.await_rollout(row, 20))
    await world.tandems.put(replace(tandem, replaces=world.base, replaces_space=world.space.space_id))
    assert await world.served() == before, "both pairs are loaded, the pointer has not moved"
    with pytest.raises(errors.FailedPrecondition, match="no publication has activated"):
        await world.registry.rollback(corpus=world.corpus)
    assert (await world.registry.publish(tandem.version, wait_s=20)).generation == tandem.generation
    assert (await world.registry.rollback(corpus=world.corpus, wait_s=20)).generation == world.base


async def test_a_space_that_another_trainer_is_about_to_activate_is_not_closed(
    world: TandemWorld, pairs: list[TandemCheckpoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = await world.tandem(pairs[0])
    other = replace(world, corpus=f"{world.corpus}-2")
    other.base = (await world.index.build(other.corpus, PREMISES)).id
    theirs = await other.tandem(pairs[1])
    about, go, activate = asyncio.Event(), asyncio.Event(), IndexClient.activate

    async def hesitating(self: IndexClient, corpus: str, generation: str, **options: Any) -> Any:
        if corpus == other.corpus:
            about.set()
            await go.wait()
        return await activate(self, corpus, generation, **options)

    monkeypatch.setattr(IndexClient, "activate", hesitating)
    slower = await publishing_elsewhere(other, theirs)
    await asyncio.wait_for(about.wait(), 30)
    faster = asyncio.create_task(world.registry.publish(ours.version, wait_s=20))
    await asyncio.wait([faster], timeout=2.0)  # time enough to close the other one's space
    go.set()
    await asyncio.gather(slower, faster)
    assert await world.served() == (ours.version, ours.generation)
    assert await other.served() == (theirs.version, theirs.generation)


async def test_a_publication_whose_trainer_dies_after_the_switch_answers_its_retry_with_the_generation(
    world: TandemWorld, pairs: list[TandemCheckpoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    tandem = await world.tandem(pairs[0])
    record = Requests.record

    async def dies(self: Requests, request: Any, fields: Any) -> None:
        if "version" in fields:
            raise RuntimeError("the trainer died")
        await record(self, request, fields)

    with monkeypatch.context() as patch:
        patch.setattr(Requests, "record", dies)
        with pytest.raises(errors.AeencError, match="internal error"):
            await world.registry.publish(tandem.version, wait_s=20, request_id="once")
    assert await world.served() == (tandem.version, tandem.generation)
    for _ in range(2):
        again = await world.registry.publish(tandem.version, wait_s=20, request_id="once")
        assert (again.generation, again.complete) == (tandem.generation, True)
        assert "without validation queries" in again.not_compared, "the first answer"


async def publishing_elsewhere(world: TandemWorld, tandem: Tandem) -> asyncio.Task[Any]:
    """Begins a publication by another trainer of the same namespace."""
    space: Any = SimpleNamespace(space_id=world.space.space_id)
    trainer = TandemPublisher(world.rows, world.index, world.tandems, world.space.store, space)
    active = await trainer.active(world.corpus)
    unasked: dict[str, Any] = {"precision": "float32", "compared": None, "expected_revision": None, "force": False}
    call = trainer.publish(tandem, active, wait_s=60, request=Request("", "", {}), answer="", **unasked)
    return asyncio.create_task(call)

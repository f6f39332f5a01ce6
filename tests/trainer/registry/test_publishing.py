"""Labels through the registry's RPCs: the way back, conflicts, and what may not be done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from aeenc import Channel, RegistryClient, errors
from aeenc.v1 import registry_pb2, registry_pb2_grpc, types_pb2
from services.store.registry import Registry, RolloutRow
from services.store.requests import Request
from services.trainer.registry.checkpoints import CROSS_ENCODER, Checkpoints
from services.trainer.registry.publishing import Publisher
from support.waiting import until
from support.worlds.registry_world import BAD, GOOD, World, world
from support.worlds.trainer_world import Space, serve_trainer

__all__ = ["world"]


async def test_the_first_start_serves_the_pretrained_encoder(world: World):
    (label,) = [label async for label in world.registry.list_labels()]
    assert (label.name, label.versions, label.revision) == ("stable", (world.space.version,), 1)
    (checkpoint,) = [one async for one in world.trainer.list_checkpoints()]
    assert (checkpoint.version, checkpoint.pretrained, list(checkpoint.labels)) == (
        world.space.version,
        True,
        ["stable"],
    )
    info = await world.trainer.info()
    assert (info.default_space_id, info.device) == (world.space.space_id, "cpu")


FLOAT32, FLOAT16, INT8 = types_pb2.PRECISION_FLOAT32, types_pb2.PRECISION_FLOAT16, types_pb2.PRECISION_INT8
CPU, GPU = {"int8": "model.int8.onnx"}, {"float16": "model.fp16.onnx"}


@pytest.mark.parametrize(
    ("encoders", "files", "asked", "precision"),
    [
        ([], ["model.int8.onnx"], None, FLOAT32),
        ([CPU, CPU], ["model.int8.onnx"], None, INT8),
        ([CPU, {}], ["model.int8.onnx"], None, FLOAT32),
        ([CPU, GPU], ["model.int8.onnx", "model.fp16.onnx"], None, FLOAT32),
        ([GPU], ["model.int8.onnx", "model.fp16.onnx"], None, FLOAT16),
        ([CPU], ["model.onnx"], None, FLOAT32),
        ([CPU], ["model.int8.onnx"], "float32", FLOAT32),
        ([{}], ["model.int8.onnx"], "int8", INT8),
    ],
)
async def test_a_version_is_published_in_the_best_precision_of_all_live_encoders_or_the_one_asked_for(
    world: World, encoders, files, asked, precision
):
    for number, offered in enumerate(encoders):
        await world.rows.heartbeat(f"encoder-{number}", offered)
    good = await world.checkpoint("good", GOOD, files=files)
    moved = await world.registry.publish(good, precision=asked)
    assert moved.label.precision == precision
    assert (await world.registry.rollback()).label.precision == FLOAT32, "the base model has its own"
    assert (await world.registry.rollback()).label.precision == precision, "and the way back its last"
    assert (await world.registry.set_label("run-1", good)).precision == precision
    assert (await world.registry.set_label("run-1", good, precision="float32")).precision == FLOAT32


@pytest.mark.parametrize("damaged", ["[5]", "{", "5"])
async def test_what_an_encoder_computes_is_refused_by_name_where_it_is_damaged(world: World, damaged: str):
    await world.rows.heartbeat("encoder-0", CPU)
    await world.rows._redis.hset(world.rows._files, "encoder-0", damaged)
    good = await world.checkpoint("good", GOOD)
    with pytest.raises(errors.DataLoss, match=r"what an encoder computes cannot be read .*call again in 15 s"):
        await world.registry.publish(good)


async def test_a_label_names_an_ensemble_of_cross_encoders(world: World):
    good, bad, worse = [
        await world.checkpoint(name, precisions, reranks="q1", space_id=CROSS_ENCODER)
        for name, precisions in (("good", GOOD), ("bad", BAD), ("worse", [one / 2 for one in BAD]))
    ]
    moved = await world.registry.publish([good, bad])
    assert (moved.label.versions, moved.label.space_id) == ((good, bad), CROSS_ENCODER)
    assert moved.not_compared == "an ensemble has no validation of its own"
    listed = {one.name: one.versions async for one in world.registry.list_labels(space_id=CROSS_ENCODER)}
    assert listed == {"stable": (good, bad)}
    named = {one.version: list(one.labels) async for one in world.trainer.list_checkpoints()}
    assert (named[good], named[bad], named[worse]) == (["stable"], ["stable"], [])
    with pytest.raises(errors.FailedPrecondition, match=f"serving {good}"):
        await world.registry.publish(worse)
    assert (await world.registry.set_label("stable", [bad, worse])).versions == (bad, worse)
    assert (await world.registry.rollback(space_id=CROSS_ENCODER)).label.versions == (good, bad)


async def test_an_ensemble_that_makes_no_sense_is_refused_by_name_and_moves_nothing(world: World):
    query = await world.checkpoint("query", GOOD)
    one, other = [await world.checkpoint(name, GOOD, space_id=CROSS_ENCODER) for name in ("one", "other")]
    for label, versions, words in (
        ("pair", [query, world.space.version], f"{query} among several; only cross-encoders"),
        ("pair", [one, query], f"{query} among several; only cross-encoders"),
        ("pair", [one, one], "at most 8 different"),
        ("pair", [*[one] * 8, other], "at most 8 different"),
        ("canary", [one, other], "label: is 'canary'"),
    ):
        for move in (world.registry.set_label(label, versions), world.registry.publish(versions, label=label)):
            with pytest.raises(errors.InvalidArgument, match=words):
                await move
    with pytest.raises(errors.NotFound, match="'q-none'"):
        await world.registry.set_label("pair", [one, "q-none"])
    assert {label.name async for label in world.registry.list_labels()} == {"stable"}


async def test_labels_are_listed_page_by_page(world: World):
    for name in ("alpha", "beta", "gamma"):
        await world.registry.set_label(name, world.space.version)
    expected = ["alpha", "beta", "gamma", "stable"]
    for page_size in (1, 3, 4, 1000):
        assert [one.name async for one in world.registry.list_labels(page_size=page_size)] == expected
    assert [one async for one in world.registry.list_labels(space_id="elsewhere", page_size=1)] == []
    channel = world.registry.channel
    list_labels = registry_pb2_grpc.RegistryAdminServiceStub(channel.grpc).ListLabels
    whole = await channel.unary(list_labels, registry_pb2.ListLabelsRequest())
    assert [one.name for one in whole.labels] == expected, "callers that know no pages get all"
    assert not whole.next_page_token
    with pytest.raises(errors.InvalidArgument, match="page_token"):
        await channel.unary(list_labels, registry_pb2.ListLabelsRequest(page_token="nonsense"))


@pytest.mark.parametrize("label", ["stable", "trial"])  # one that serves, and one that does not exist yet
async def test_what_another_caller_publishes_while_the_gate_compares_is_not_overwritten(
    world: World, monkeypatch: pytest.MonkeyPatch, label: str
):
    first, better = await world.checkpoint("first", BAD), await world.checkpoint("better", GOOD)
    move = Registry.set_label

    async def overtaken(self: Registry, space_id: str, name: str, version: str, **options: Any) -> Any:
        monkeypatch.setattr(Registry, "set_label", move)
        await move(world.rows, space_id, name, better)  # by another trainer
        return await move(self, space_id, name, version, **options)

    for force, version in ((False, better), (True, first)):
        monkeypatch.setattr(Registry, "set_label", overtaken)
        if force:
            await world.registry.publish(first, label=label, force=True)
        else:
            with pytest.raises(errors.Aborted, match=f"{better}.*read it and retry"):
                await world.registry.publish(first, label=label)
        assert (await world.registry.get_rollouts(label)).label.versions[0] == version


async def test_wrong_names_are_refused_with_a_remedy(world: World):
    version = world.space.version
    calls: list[tuple[Callable[[], Any], type[errors.AeencError], str]] = [
        (lambda: world.registry.publish("qnothing"), errors.NotFound, "ListCheckpoints"),
        (lambda: world.registry.publish(version, expected_revision=7), errors.Aborted, "revision 1"),
        (lambda: world.registry.set_label("no spaces", version), errors.InvalidArgument, "1 to 64 letters"),
        (lambda: world.registry.set_label("previous", version), errors.InvalidArgument, "follows 'stable'"),
        (lambda: world.registry.delete_label("stable"), errors.FailedPrecondition, "cannot be deleted"),
        (lambda: world.registry.delete_label("nothing"), errors.NotFound, "list the labels"),
        (lambda: world.registry.get_rollouts("nothing"), errors.NotFound, "list the labels"),
        (lambda: world.trainer.get_checkpoint("qnothing"), errors.NotFound, "ListCheckpoints"),
        (world.registry.rollback, errors.FailedPrecondition, "has no version before"),
        (
            lambda: world.registry.rollback(corpus="science", expected_revision=7),
            errors.InvalidArgument,
            r"expected_revision: is 7, .*leave it out",
        ),
    ]
    for call, kind, remedy in calls:
        with pytest.raises(kind, match=remedy):
            await call()


async def test_a_canary_gets_its_share_and_keeps_it(world: World):
    good = await world.checkpoint("good", GOOD)
    published = await world.registry.publish(good, label="canary", share=0.1)
    assert (published.label.share, published.label.revision) == (0.1, 1)
    assert (await world.registry.publish(world.space.version, label="canary", expected_revision=1)).label.share == 0.1
    assert (await world.registry.set_label("canary", good, share=0.5)).share == 0.5
    assert (await world.registry.rollback(label="canary")).label.share == 0.5
    shares = {label.name: label.share async for label in world.registry.list_labels()}
    assert shares == {"canary": 0.5, "stable": 0.0}
    await world.registry.delete_label("canary")
    assert (await world.registry.set_label("canary", good)).share == 0.0


@pytest.mark.parametrize(
    ("label", "share", "remedy"),
    [
        ("canary", 1.1, "is 1.1; give 0 to 1"),
        ("canary", 1.0000001, "is 1.0000001; give 0 to 1"),
        ("canary", -0.1, "give 0 to 1"),
        ("canary", float("nan"), "give 0 to 1"),
        ("stable", 0.5, "only 'canary' has a share"),
        ("run-1", 0.0, "only 'canary' has a share"),
        ("canary", 0.1, r"share: is 0\.1, .*rerank_versions"),  # of cross-encoders
    ],
)
async def test_a_share_that_is_none_is_refused_and_moves_nothing(world: World, label: str, share: float, remedy: str):
    version = world.space.version
    if "rerank" in remedy:
        version = await world.checkpoint("cross", GOOD, space_id=CROSS_ENCODER)
        assert (await world.registry.publish(version, label="canary", share=0.0)).label.share == 0.0
    before = [label async for label in world.registry.list_labels()]
    for call in (
        world.registry.publish,
        lambda version, **options: world.registry.set_label(version=version, **options),
    ):
        with pytest.raises(errors.InvalidArgument, match=remedy):
            await call(version, label=label, share=share)
    assert [label async for label in world.registry.list_labels()] == before


async def test_a_publication_that_a_newer_one_overtakes_returns_at_once_and_says_so(world: World):
    first, second = await world.checkpoint("first", GOOD), await world.checkpoint("second", GOOD)
    await world.rows.heartbeat("encoder-1")
    event = await world.rows.last_event()
    overtaken = asyncio.ensure_future(world.registry.publish(first, wait_s=30))
    await world.rows.wait_for_event(event, 10)
    newer = (await world.registry.publish(second)).label
    # Even an encoder that is at the newer revision already does not serve the overtaken one.
    await world.rows.acknowledge(
        world.space.space_id, "stable", RolloutRow("encoder-1", newer.revision, True, "", datetime.now(UTC))
    )
    ended = await asyncio.wait_for(overtaken, 15)
    assert (ended.complete, ended.label.versions[0], ended.label.revision) == (False, second, newer.revision)
    assert [rollout.instance for rollout in ended.rollouts] == ["encoder-1"]
    assert (await world.registry.publish(second, wait_s=5)).complete


async def test_a_publication_names_who_refuses_and_who_is_silent_and_forgets_the_dead(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    space_id, good = world.space.space_id, await world.checkpoint("good", GOOD)
    for instance in ("refuses", "silent"):
        await world.rows.heartbeat(instance)
    with monkeypatch.context() as patch:
        patch.setattr("services.store.registry.HEARTBEAT_TTL_S", -1)
        await world.rows.heartbeat("dead")
    for instance, revision, reason in (("dead", 1, ""), ("silent", 1, ""), ("refuses", 2, "the disk is full")):
        row = RolloutRow(instance, revision, not reason, reason, datetime.now(UTC))
        await world.rows.acknowledge(space_id, "stable", row)
    published = await world.registry.publish(good, wait_s=0.3)
    stands = [(rollout.instance, rollout.label.revision, rollout.ok, rollout.reason) for rollout in published.rollouts]
    assert stands == [("refuses", 2, False, "the disk is full"), ("silent", 1, True, "")]
    assert (published.complete, published.label.revision) == (False, 2)


async def test_the_registry_wants_the_admin_token(space: Space, redis_url: str, namespace: str, tmp_path: Path):
    tokens = {"token": "t", "admin_token": "a"}
    async with serve_trainer(space, redis_url, namespace, tmp_path, client_token="t", **tokens) as (server, trainer):
        [one async for one in trainer.list_checkpoints()]
        with pytest.raises(errors.PermissionDenied):
            [label async for label in RegistryClient(trainer.channel).list_labels()]
        admin = RegistryClient(Channel(f"127.0.0.1:{server.port}", token="a"))
        assert len([label async for label in admin.list_labels()]) == 1
        await admin.channel.close()


async def test_a_rollback_whose_trainer_dies_before_the_label_moves_is_carried_out_by_its_retry(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    good, other = await world.checkpoint("good", GOOD), await world.checkpoint("other", GOOD)
    await world.registry.publish(good)
    move = Registry.set_label

    async def dies(self: Registry, *given: Any, **options: Any) -> Any:
        monkeypatch.setattr(Registry, "set_label", move)
        raise errors.Unavailable("the trainer died")

    stub = registry_pb2_grpc.RegistryAdminServiceStub(world.registry.channel.grpc)
    monkeypatch.setattr(Registry, "set_label", dies)
    with pytest.raises(Exception, match="the trainer died"):
        await stub.Rollback(registry_pb2.RollbackRequest(request_id="once"))
    await world.registry.publish(other)
    assert (await stub.Rollback(registry_pb2.RollbackRequest(request_id="once"))).label.versions[0] == good


async def test_a_repeated_request_gets_its_answer_also_after_a_restart_and_other_content_is_refused(
    space: Space, redis_url: str, namespace: str, tmp_path: Path, registry: Registry
):
    publish = registry_pb2.PublishRequest(label="trial", request_id="p")
    calls = [
        ("Publish", publish, "force", True),
        ("SetLabel", registry_pb2.SetLabelRequest(label="mine", request_id="s"), "label", "yours"),
        ("Rollback", registry_pb2.RollbackRequest(label="trial", request_id="r"), "space_id", "s1"),
        ("DeleteLabel", registry_pb2.DeleteLabelRequest(label="trial", request_id="d"), "label", "mine"),
    ]
    answers: list[Any] = []
    for _ in range(2):
        async with serve_trainer(space, redis_url, namespace, tmp_path) as (_, trainer):
            world = World(RegistryClient(trainer.channel), trainer, registry, space, Checkpoints(space.store, registry))
            if not answers:
                publish.versions.append(await world.checkpoint("good", GOOD))
                calls[1][1].versions.extend(publish.versions)
                await world.registry.set_label("trial", space.version)
            stub = registry_pb2_grpc.RegistryAdminServiceStub(trainer.channel.grpc)
            answers.append([await getattr(stub, rpc)(request) for rpc, request, _, _ in calls])
            for rpc, request, name, value in calls:
                other = type(request)()
                other.CopyFrom(request)
                setattr(other, name, value)
                with pytest.raises(Exception, match=f"request id .* was used with {name} .*choose another id"):
                    await getattr(stub, rpc)(other)
            with pytest.raises(Exception, match="was used with rpc 'SetLabel', now with 'DeleteLabel'"):
                await stub.DeleteLabel(registry_pb2.DeleteLabelRequest(label="mine", request_id="s"))
            for field in ("answer", "content") if len(answers) == 2 else ():
                await registry._redis.hset(registry.requests.key(Request("p", "", {})), field, "x")
                with pytest.raises(errors.DataLoss, match=r"request.* cannot be read .*; choose another id"):
                    await world.registry.publish(*publish.versions, label="trial", request_id="p")
    assert answers[0] == answers[1]
    assert {row.name for row in await registry.labels(space.space_id)} == {"stable", "mine"}


@pytest.mark.parametrize("move", ["set", "publish"])
async def test_a_move_whose_reads_are_slow_does_not_follow_a_later_one(
    world: World, monkeypatch: pytest.MonkeyPatch, move: str
):
    first, second = [await world.checkpoint(f"j{n}", None) for n in range(2)]
    get, reading, answered = Checkpoints.get, asyncio.Event(), asyncio.Event()
    asked: list[Publisher] = []

    async def slow(self: Checkpoints, version: str) -> Any:
        if version == first:
            reading.set()
            await answered.wait()
        return await get(self, version)

    def noted(call: Any) -> Any:
        async def of_a_caller(self: Publisher, *given: Any, **options: Any) -> Any:
            asked.append(self)
            return await call(self, *given, **options)

        return of_a_caller

    async def ask(version: str) -> None:
        if move == "set":
            await world.registry.set_label("stable", version)
        else:
            await world.registry.publish(version, force=True)

    monkeypatch.setattr(Checkpoints, "get", slow)
    for name in ("set_label", "publish"):
        monkeypatch.setattr(Publisher, name, noted(getattr(Publisher, name)))
    moves = [asyncio.create_task(ask(first))]
    await reading.wait()
    moves.append(asyncio.create_task(ask(second)))
    await until(lambda: len(asked) == 2 and bool(asked[0]._turn._waiters))  # the second one waits for its turn
    answered.set()
    await asyncio.gather(*moves)
    row = await world.rows.label(world.space.space_id, "stable")
    assert row is not None
    assert (row.version, row.previous) == (second, first)

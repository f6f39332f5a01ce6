"""Following labels: the canary's share, what is overtaken, a bad `stable`, another default space."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from prometheus_client import generate_latest

from aeenc import errors
from services.encoder.rollout import candidates, follower, history
from services.encoder.rollout.follower import Follower
from services.encoder.runtime.model import Model
from services.store.registry import LabelRow, Registry
from support.models.tiny_checkpoints import TINY_SPACE, register, rolled_out, write_tiny_checkpoint
from support.waiting import eventually, serves, until


async def versions_of(client, keys, **options) -> list[str]:
    answers = await asyncio.gather(*(client.encode(["sun"], routing_key=key, **options) for key in keys))
    return [answer.model_version for answer in answers]


async def test_the_canary_gets_its_share_of_queries_by_key_and_the_same_in_every_encoder(
    serve, tuned, registry, tiny_checkpoint
) -> None:
    stable, canary, _ = tuned
    await registry.set_label(TINY_SPACE, "canary", canary.version, share=0.3)
    keys = [f"user-{n}" for n in range(150)]
    async with serve() as (_, one), serve() as (_, other):
        first, again = await versions_of(one, keys), await versions_of(one, keys)
        elsewhere = await versions_of(other, keys)
        assert first == again == elsewhere
        assert 0.22 < first.count(canary.version) / len(keys) < 0.38
        assert set(first) == {stable.version, canary.version}
        assert set(await versions_of(one, keys, label="stable")) == {stable.version}
        assert set(await versions_of(one, keys, role="premise")) == {tiny_checkpoint.version}
        without_key = await versions_of(one, [""] * 100)
        assert 0.1 < without_key.count(canary.version) / 100 < 0.55, "each call for itself"
        await registry.set_label(TINY_SPACE, "canary", canary.version, share=0.0)
        await eventually(one.info, is_so=lambda info: ("canary", 0.0) in {(row.name, row.share) for row in info.labels})
        assert set(await versions_of(one, keys)) == {stable.version}


async def test_a_load_that_has_just_ended_when_its_label_moves_is_told_as_overtaken(
    serve, tuned, registry, monkeypatch
) -> None:
    original = candidates.Spaces.load

    async def load(self, row):
        await original(self, row)
        if row.version == tuned[1].version:
            moves.append(await registry.set_label(TINY_SPACE, "stable", tuned[2].version))

    moves: list[LabelRow] = []
    monkeypatch.setattr(candidates.Spaces, "load", load)
    monkeypatch.setattr(Registry, "wait_for_event", no_event)
    async with serve(poll_s=0.2) as (_, client):
        await registry.set_label(TINY_SPACE, "stable", tuned[1].version)
        await serves(client, tuned[2].version)
        swaps = [(*swap.label.versions, swap.reason) for swap in (await client.info()).swaps]
        assert (tuned[1].version, f"overtaken by revision {moves[0].revision} ({tuned[2].version})") in swaps


async def no_event(_registry: Registry, last_id: str, timeout_s: float) -> str:
    await asyncio.sleep(timeout_s)
    return last_id


async def test_a_restart_onto_a_bad_stable_serves_the_last_good_version_and_says_so_whatever_else_moves(
    serve, tuned, registry, artifact_store, monkeypatch
) -> None:
    monkeypatch.setattr(history, "KEPT_SWAPS", 2)
    monkeypatch.setattr(follower, "RETRY_S", 30.0)  # on a busy machine the start would try the bad version again
    async with serve():
        pass
    bad = write_tiny_checkpoint(artifact_store, seed=9, base_version=tuned[0].version, poison=True)
    await register(registry, bad, label="stable")
    async with serve(poll_s=30) as (server, client):
        assert (await client.encode(["sun"])).model_version == tuned[0].version
        reason = server.readiness.reason
        assert f"label `stable` names {bad.version}, serving {tuned[0].version}" in reason
        for name in ("one", "two", "three"):
            assert (await rolled_out(registry, TINY_SPACE, name, tuned[0].version)).ok
        assert [swap.ok for swap in (await client.info()).swaps] == [True, True]
        assert (server.readiness.state, server.readiness.reason) == ("DEGRADED", reason)
        assert (await rolled_out(registry, TINY_SPACE, "stable", tuned[1].version)).ok
        await until(lambda: server.readiness.state == "SERVING")  # the acknowledgement comes first


async def test_a_start_onto_a_bad_stable_without_one_before_it_loads_nothing_twice(
    serve, registry, artifact_store, tiny_checkpoint, loaded, monkeypatch
) -> None:
    monkeypatch.setattr(follower, "RETRY_S", 30.0)  # one round only
    bad = write_tiny_checkpoint(artifact_store, seed=9, base_version=tiny_checkpoint.version, poison=True)
    await register(registry, tiny_checkpoint)
    await register(registry, bad, label="stable")
    async with serve(wait=False, poll_s=30) as (server, _):
        await until(lambda: server.readiness.reason.startswith("no version can be served: checkpoint"))
        assert loaded == [tiny_checkpoint.version, bad.version]


async def test_a_failed_candidate_is_tried_again_however_many_labels_move(
    serve, tuned, registry, artifact_store
) -> None:
    candidate = write_tiny_checkpoint(artifact_store, seed=9, base_version=tuned[0].version)
    path = candidate.artifact.path / "model.onnx"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    await register(registry, candidate)
    async with serve(poll_s=0.5) as (_, client):
        assert not (await rolled_out(registry, TINY_SPACE, "stable", candidate.version)).ok
        path.write_bytes(whole)

        async def serves_it() -> bool:
            await registry.set_label(TINY_SPACE, "run-1", tuned[0].version)
            await registry.delete_label(TINY_SPACE, "run-1")
            return (await client.encode(["sun"])).model_version == candidate.version

        await eventually(serves_it, 10)


async def test_labels_of_runs_are_counted_together_and_forgotten_when_they_are_gone(
    serve, tuned, registry, artifact_store
) -> None:
    bad = write_tiny_checkpoint(artifact_store, seed=9, base_version=tuned[0].version, poison=True)
    await register(registry, bad)
    runs = {f"run-{n:016x}": version for n, version in enumerate((tuned[0].version, tuned[1].version, bad.version))}
    async with serve(poll_s=30) as (server, _):
        (following,) = [one for one in gc.get_objects() if isinstance(one, Follower) and one._tasks]
        for name, version in runs.items():
            row = await registry.set_label(TINY_SPACE, name, version)
            await registry.await_rollout(row, 20)
            await registry.delete_label(TINY_SPACE, name)
        for outcome, count in (("ok", 2), ("failed", 1)):
            labels = {"space": TINY_SPACE, "label": "run", "outcome": outcome}
            assert server.metrics.get_sample_value("aeenc_encoder_swaps_total", labels) == count
        assert "run-0" not in generate_latest(server.metrics).decode()
        await until(lambda: {name for _, name in following._acknowledged} == {"stable"})
        await until(lambda: not following._history._failures)


async def test_an_emptied_registry_takes_nothing_away_and_a_refilled_one_is_followed(
    serve, tuned, registry, tiny_checkpoint
) -> None:
    async with serve() as (server, client):
        for key in [key async for key in registry._redis.scan_iter(f"{registry._keys.prefix}*")]:
            await registry._redis.delete(key)
        await until(lambda: server.readiness.state == "DEGRADED")
        assert (await client.encode(["sun"])).model_version == tuned[0].version
        for checkpoint in (tiny_checkpoint, tuned[1]):
            await register(registry, checkpoint)
        again = await registry.set_label(TINY_SPACE, "stable", tuned[1].version)
        assert again.revision == 1, "the same revision as before, of another version"
        (rollout,) = await registry.await_rollout(again, 20)
        assert rollout.ok
        assert (await client.encode(["sun"])).model_version == tuned[1].version
        await until(lambda: server.readiness.state == "SERVING")


async def test_a_label_that_was_deleted_before_a_move_is_not_kept_once_that_move_is_acknowledged(
    serve, tuned, registry, tmp_path, monkeypatch
) -> None:
    labels, acknowledge, both_done, kept = Registry.labels, Registry.acknowledge, asyncio.Event(), []

    async def read(self, *arguments, **options):
        await both_done.wait()
        return await labels(self, *arguments, **options)

    async def acknowledged(self, *arguments):
        kept.append({row.name for row in history.read_state(tmp_path / "state" / history.FILE).labels})
        await acknowledge(self, *arguments)

    await registry.set_label(TINY_SPACE, "run-1", tuned[0].version)
    async with serve(poll_s=30):
        monkeypatch.setattr(Registry, "labels", read)
        monkeypatch.setattr(Registry, "acknowledge", acknowledged)
        await registry.delete_label(TINY_SPACE, "run-1")
        row = await registry.set_label(TINY_SPACE, "trial", tuned[0].version)
        both_done.set()
        assert (await registry.await_rollout(row, 20))[0].ok
    assert kept[0] == {"stable", "trial"}


async def test_a_lost_acknowledgement_is_said_again(serve, tuned, registry, monkeypatch) -> None:
    original, failures = Registry.acknowledge, []

    async def acknowledge(self, space_id, label, row):
        if not failures and label == "stable":
            failures.append(1)
            raise errors.Unavailable("Redis is away for a moment")
        await original(self, space_id, label, row)

    async with serve() as (_, client):
        monkeypatch.setattr(Registry, "acknowledge", acknowledge)
        rollout = await rolled_out(registry, TINY_SPACE, "stable", tuned[1].version)
        assert failures
        assert rollout.ok
        assert (await client.encode(["sun"])).model_version == tuned[1].version


@pytest.mark.parametrize("bad", ["", "stable", "premises"], ids=["no label yet", "damaged", "damaged premises"])
async def test_a_new_default_space_waits_until_it_can_be_served_and_disturbs_nothing(
    serve, tuned, registry, artifact_store, tiny_checkpoint, loaded, bad
) -> None:
    elsewhere = "s" + "1" * 16
    async with serve(poll_s=30) as (server, client):
        premises = write_tiny_checkpoint(artifact_store, seed=8, space_id=elsewhere, poison=bad == "premises")
        await register(registry, premises)  # names its space the default
        damaged = write_tiny_checkpoint(
            artifact_store, seed=9, space_id=elsewhere, base_version=premises.version, poison=True
        )
        if bad == "stable":
            await register(registry, damaged)
            assert not (await rolled_out(registry, elsewhere, "stable", damaged.version)).ok
        for checkpoint in tuned[1:]:  # a round looks at the default space first
            assert (await rolled_out(registry, TINY_SPACE, "stable", checkpoint.version)).ok, "labels are followed"
        assert loaded.count(damaged.version) == (bad == "stable")
        assert (await client.encode(["sun"])).model_version == tuned[2].version
        assert (await client.encode(["sun"], role="premise")).model_version == tiny_checkpoint.version
        assert server.readiness.healthy
        if bad != "premises":
            assert (await rolled_out(registry, elsewhere, "stable", premises.version)).ok
            await serves(client, premises.version)  # the acknowledgement comes first
        await until(lambda: server.readiness.state == "SERVING")


async def test_a_dropped_model_is_really_gone_and_the_metric_names_what_serves(serve, tuned, registry) -> None:
    def revision_of(version: str) -> float | None:
        labels = {"space": TINY_SPACE, "label": "stable", "version": version}
        return server.metrics.get_sample_value("aeenc_encoder_serving_revision", labels)

    async with serve(poll_s=30, workers=1) as (server, client):
        assert revision_of(tuned[0].version) == 1
        swaps = [(*swap.label.versions, swap.ok) for swap in (await client.info()).swaps if swap.label.name == "stable"]
        assert swaps == [(tuned[0].version, True)]
        assert (await rolled_out(registry, TINY_SPACE, "stable", tuned[1].version)).ok
        await client.encode(["sun"])
        found = [one for one in gc.get_objects() if isinstance(one, Model) and one.version == tuned[1].version]
        gone, runner = weakref.ref(found[0]), weakref.ref(found[0].runners["float32"])
        found.clear()
        for checkpoint in (tuned[2], tuned[0]):
            rollout = await rolled_out(registry, TINY_SPACE, "stable", checkpoint.version)
            assert rollout.ok

        def both_gone() -> bool:
            gc.collect()
            return gone() is None and runner() is None  # an idle worker must not hold on to it either

        await until(both_gone)
        with pytest.raises(errors.VersionNotLoaded):
            await client.encode(["sun"], version=tuned[1].version)
        assert revision_of(tuned[0].version) == rollout.revision


async def test_heartbeats_go_on_whatever_one_of_them_meets(serve, tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[str] = []
    answers = iter([errors.Unavailable("away"), RuntimeError("a bug"), None])

    async def beat(self: Registry, instance: str, _faster: object) -> None:
        beats.append(instance)
        if error := next(answers, None):
            raise error

    monkeypatch.setattr(Registry, "heartbeat", beat)
    monkeypatch.setattr("services.encoder.rollout.follower.HEARTBEAT_S", 0.02)
    async with serve():
        await until(lambda: len(beats) > 3)


async def test_that_the_labels_cannot_be_saved_is_logged_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept, write = history.StateFile(tmp_path), history.atomic_write
    served: Any = SimpleNamespace(complete=True, premise_versions={}, space_id="", labels={}, models={})

    def fails(path: Path, _: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{path}.{time.monotonic_ns()}")

    with structlog.testing.capture_logs() as logged:
        for number, does in enumerate([fails, fails, write, fails]):
            monkeypatch.setattr(history, "atomic_write", does)
            served.premise_versions["s"] = str(number)
            await kept.save(served)
    assert [one["event"].partition(";")[0] for one in logged] == ["the labels could not be saved"] * 2

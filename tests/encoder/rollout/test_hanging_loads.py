"""A load that hangs, or needs too much: it holds up nothing that is loaded, and takes nothing from it."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator

import pytest

from services.encoder.rollout import candidates, follower, loading
from support.models.tiny_checkpoints import TINY_SPACE, TinyCheckpoint, register, rolled_out, write_tiny_checkpoint
from support.waiting import eventually, serves, until

Hang = Callable[[TinyCheckpoint], threading.Event]


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hang]:
    """Makes opening a checkpoint's model hang until the test ends; the event tells that it does."""
    begun: dict[str, threading.Event] = {}
    end = threading.Event()
    original = loading.open_session

    def open_session(path, *arguments, **options):
        if path.parent.name in begun:
            begun[path.parent.name].set()
            end.wait()
        return original(path, *arguments, **options)

    monkeypatch.setattr(loading, "open_session", open_session)
    monkeypatch.setattr(candidates, "GRACE_S", 0.1)
    yield lambda checkpoint: begun.setdefault(checkpoint.version, threading.Event())
    end.set()


def loads() -> int:
    """The threads that load."""
    return sum(thread.name.startswith("load") for thread in threading.enumerate())


async def test_a_rollback_to_a_loaded_version_waits_for_no_load(serve, tuned, registry, hang) -> None:
    async with serve(poll_s=30) as (_, client):
        row = await registry.set_label(TINY_SPACE, "stable", tuned[1].version)
        assert (await registry.await_rollout(row, 20))[0].ok
        begun = hang(tuned[2])
        await registry.set_label(TINY_SPACE, "canary", tuned[2].version)
        assert await asyncio.to_thread(begun.wait, 10)
        back = await registry.set_label(TINY_SPACE, "stable", row.previous)
        (rollout,) = await registry.await_rollout(back, 5)
        assert (rollout.revision, rollout.ok) == (back.revision, True)
        assert (await client.encode(["sun"])).model_version == tuned[0].version


async def test_a_rollback_that_was_acknowledged_during_a_load_is_kept_for_a_start_without_redis(
    serve, tuned, registry, hang, tmp_path
) -> None:
    async with serve(poll_s=30):
        row = await registry.set_label(TINY_SPACE, "stable", tuned[1].version)
        assert (await registry.await_rollout(row, 20))[0].ok
        await registry.set_label(TINY_SPACE, "run-1", tuned[1].version)
        begun = hang(tuned[2])
        await registry.set_label(TINY_SPACE, "trial", tuned[2].version)
        assert await asyncio.to_thread(begun.wait, 10)
        await registry.delete_label(TINY_SPACE, "run-1")
        back = await registry.set_label(TINY_SPACE, "stable", row.previous)
        (rollout,) = await registry.await_rollout(back, 5)
        assert (rollout.revision, rollout.ok) == (back.revision, True)
        shutil.copytree(tmp_path / "state", tmp_path / "crashed")
    async with serve(redis_url=f"unix://{tmp_path}/nowhere.sock", state_dir=tmp_path / "crashed") as (_, client):
        assert (await client.encode(["sun"])).model_version == tuned[0].version
        assert "run-1" not in {label.name for label in (await client.info()).labels}


@pytest.mark.parametrize("label", ["stable", "canary"])  # which moves away, or is deleted
async def test_a_load_ends_once_its_label_names_something_else(serve, tuned, registry, hang, label: str) -> None:
    async with serve(poll_s=30) as (_, client):
        begun = hang(tuned[1])
        await registry.set_label(TINY_SPACE, label, tuned[1].version)
        assert await asyncio.to_thread(begun.wait, 10)
        if label == "canary":
            await registry.delete_label(TINY_SPACE, label)
        row = await registry.set_label(TINY_SPACE, "stable", tuned[2].version)
        (rollout,) = await registry.await_rollout(row, 30)
        assert (rollout.revision, rollout.ok) == (row.revision, True), rollout.reason
        await serves(client, tuned[2].version)
        told = [(*swap.label.versions, swap.reason) for swap in (await client.info()).swaps]
        overtaken = (tuned[1].version, f"overtaken by revision {row.revision} ({tuned[2].version})")
        assert (overtaken in told) == (label == "stable")


async def test_a_load_that_hangs_is_given_up_with_a_reason_and_the_next_one_goes_on(
    serve, tuned, registry, hang
) -> None:
    async with serve(poll_s=30, load_s=4) as (server, client):
        hang(tuned[1])
        rollout = await rolled_out(registry, TINY_SPACE, "stable", tuned[1].version)
        assert not rollout.ok
        assert "took longer than 4 s" in rollout.reason
        assert (await client.encode(["sun"])).model_version == tuned[0].version
        assert server.readiness.state == "SERVING"
        assert (await rolled_out(registry, TINY_SPACE, "stable", tuned[2].version)).ok


async def test_loads_that_hang_again_and_again_leave_a_few_threads_at_most(
    serve, tuned, registry, hang, artifact_store, tiny_checkpoint
) -> None:
    async with serve(poll_s=30, load_s=2) as (_, client):
        reasons = []
        for seed in range(40, 40 + candidates.MAX_HUNG + 1):
            candidate = write_tiny_checkpoint(artifact_store, seed=seed, base_version=tiny_checkpoint.version)
            hang(candidate)
            await register(registry, candidate)
            rollout = await rolled_out(registry, TINY_SPACE, "canary", candidate.version)
            reasons.append(rollout.reason)
        assert "loads hang" in reasons[-1]
        assert "restart" in reasons[-1]
        await until(lambda: loads() <= candidates.MAX_HUNG, 10)
        assert (await client.encode(["sun"])).model_version == tuned[0].version


async def test_a_start_serves_stable_while_another_label_still_loads(serve, tuned, registry, hang, monkeypatch) -> None:
    monkeypatch.setattr(follower, "START_PATIENCE_S", 0.2)
    begun = hang(tuned[2])
    await registry.set_label(TINY_SPACE, "canary", tuned[2].version)
    async with serve(poll_s=30, wait=False) as (server, client):
        await until(lambda: server.readiness.healthy, 10)
        assert (await client.encode(["sun"], label="stable")).model_version == tuned[0].version
        assert await asyncio.to_thread(begun.wait, 10)


async def test_a_start_onto_a_stable_that_hangs_tries_it_once_and_serves_the_version_before_it(
    serve, tuned, registry, hang, monkeypatch
) -> None:
    monkeypatch.setattr(follower, "RETRY_S", 30.0)  # one round only
    hang(tuned[1])
    await registry.set_label(TINY_SPACE, "stable", tuned[1].version)
    async with serve(poll_s=30, load_s=4) as (server, client):
        assert (await client.encode(["sun"])).model_version == tuned[0].version
        assert server.readiness.state == "DEGRADED"
        assert server.readiness.reason.endswith("or raise AEENC_ENCODER_LOAD_S"), "it says why"
        assert [swap.ok for swap in (await client.info()).swaps if swap.label.versions == (tuned[1].version,)] == [
            False
        ]
        await until(lambda: loads() == 1, 10)


async def test_memory_of_a_version_that_is_gone_is_free_for_the_next(serve, tuned, registry) -> None:
    size = tuned[0].artifact.files["model.onnx"].size_bytes
    async with serve(poll_s=30, loaded_bytes=size * 7 // 2) as (_, client):
        for checkpoint in (tuned[1], tuned[2], tuned[0]):
            await eventually(client.info, is_so=lambda info: len(info.versions) == 2)
            rollout = await rolled_out(registry, TINY_SPACE, "canary", checkpoint.version)
            assert rollout.ok, rollout.reason
            await registry.delete_label(TINY_SPACE, "canary")


async def test_a_file_over_the_limit_is_refused_before_it_is_hashed(
    serve, copied, tuned, registry, artifact_store
) -> None:
    def swell(path, meta) -> None:
        (path / "model.onnx").write_bytes(bytes(200_000))

    large = copied(tuned[1].artifact, swell)
    path = large.artifact.path / "model.onnx"
    path.write_bytes(b"\1" * 200_000)  # as large as its manifest says, with another hash
    await register(registry, large)
    async with serve(poll_s=30, model_bytes=100_000):
        rollout = await rolled_out(registry, TINY_SPACE, "stable", large.version)
        assert not rollout.ok
        assert "has 200,000 bytes, over the limit of 100,000" in rollout.reason

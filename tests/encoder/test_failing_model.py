"""A model that always fails ends readiness, a text that fails does not; readiness returns with the model."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from aeenc import EncoderClient, errors
from services.encoder.batching import breaker
from services.encoder.batching.batcher import WORKER_DIED
from services.encoder.rollout.versions import Versions
from services.encoder.runtime.model import Model
from services.encoder.runtime.runners import PaddedRunner
from services.store.registry import LabelRow
from support.models.base_model_vectors import served
from support.models.tiny_checkpoints import TINY_SPACE, register, tiny_tokenizer, write_tiny_checkpoint
from support.waiting import eventually, until


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """`runner`: "all" or the runner that fails each run; `token`: the token id that no run bears; `why` it fails."""
    what: dict[str, object] = {"runner": None, "token": None, "why": "the device is lost"}
    original = PaddedRunner.run

    def run(self, batch):
        bad = any(what["token"] in tokens.ids for tokens in batch)
        if bad or what["runner"] in {"all", self}:
            raise RuntimeError(what["why"])
        return original(self, batch)

    monkeypatch.setattr(PaddedRunner, "run", run)
    monkeypatch.setattr(breaker, "PROBE_S", 0.05)
    return what


async def fail(client, times: int, text: str = "sun", *, match: str | None = None, **options) -> None:
    once = EncoderClient(client.channel.with_options(retry=False))
    for _ in range(times):
        with pytest.raises(errors.AeencError, match=match):
            await once.encode([text], timeout_s=10, **options)


async def runner_of(client, **options) -> PaddedRunner:
    """The runner that computes a call."""
    original, runners = PaddedRunner.run, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PaddedRunner, "run", lambda self, batch: (runners.append(self), original(self, batch))[1])
        await client.encode(["sun"], **options)
    return runners[0]


whatever_it_says = pytest.mark.parametrize(
    ("why", "told"),
    [
        ("the device is lost", "the model cannot encode this text"),
        ("CUDA out of memory. Tried to allocate 20.00 MiB.", "a text of 3 tokens is over the memory"),
    ],
    ids=["lost", "memory"],
)


@whatever_it_says
async def test_a_model_that_always_fails_ends_readiness_until_its_probe_passes(
    serve, stable, fails, why: str, told: str
) -> None:
    async with serve() as (server, client):
        await client.encode(["sun"])
        fails |= {"runner": "all", "why": why}
        await fail(client, breaker.FAILURES, match=told)
        await until(lambda: not server.readiness.healthy)
        assert f"version {stable.version} fails every run" in server.readiness.reason
        fails["runner"] = None
        await until(lambda: server.readiness.state == "SERVING")
        assert (await client.encode(["sun"])).model_version == stable.version


@whatever_it_says
async def test_texts_that_a_model_cannot_bear_do_not_end_readiness(serve, stable, fails, why: str, told: str) -> None:
    async with serve() as (server, client):
        changed = server.readiness.changed
        fails |= {"token": tiny_tokenizer().token_to_id("moon"), "why": why}
        await fail(client, 3 * breaker.FAILURES, "moon", match=told)
        assert (await client.encode(["sun"])).model_version == stable.version
        assert (changed.is_set(), server.readiness.state) == (False, "SERVING")


async def test_a_canary_that_always_fails_is_named_while_the_others_serve(
    serve, registry, stable, artifact_store, fails
) -> None:
    canary = write_tiny_checkpoint(artifact_store, seed=1, base_version=stable.version)
    await register(registry, canary, label="canary")
    async with serve() as (server, client):
        fails["runner"] = await runner_of(client, label="canary")
        await fail(client, breaker.FAILURES, label="canary")
        await until(lambda: server.readiness.state == "DEGRADED")
        assert canary.version in server.readiness.reason
        assert (await client.encode(["sun"])).model_version == stable.version
        await registry.delete_label(TINY_SPACE, "canary")
        await until(lambda: server.readiness.state == "SERVING")


async def test_a_good_version_in_place_of_the_failing_one_brings_readiness_back(
    serve, registry, stable, artifact_store, fails
) -> None:
    first, other = (write_tiny_checkpoint(artifact_store, seed=n, base_version=stable.version) for n in (1, 2))
    await register(registry, first, label="stable")
    await register(registry, other)
    async with serve() as (server, client):
        fails["runner"] = await runner_of(client)
        await fail(client, breaker.FAILURES)
        await until(lambda: not server.readiness.healthy)
        await registry.set_label(TINY_SPACE, "stable", other.version)

        async def answers() -> bool:
            return server.readiness.healthy and (await client.encode(["sun"])).model_version == other.version

        await eventually(answers)


class SlowBatcher:
    """Holds a probe until `end`, and then fails it."""

    def __init__(self) -> None:
        self.begun, self.end = asyncio.Event(), asyncio.Event()

    async def encode(self, *_arguments):
        self.begun.set()
        await self.end.wait()
        raise errors.AeencError("the device is lost")


async def test_a_probe_that_ends_after_its_model_was_dropped_marks_nothing(tiny_checkpoint) -> None:
    versions, batcher, model = Versions(), SlowBatcher(), served(tiny_checkpoint.artifact)
    watching = breaker.Breaker(versions, batcher, lambda: None)
    versions.keep(model)
    versions.serve(labelled("canary", model))
    watching.failed(model, "float32", errors.Unavailable("the worker died", reason=WORKER_DIED))
    await batcher.begun.wait()
    versions.withdraw_all_but([])
    assert versions.drop_unnamed() == [model]
    batcher.end.set()
    await until(lambda: not watching._probes)
    assert versions.failing() == ""


def labelled(name: str, model: Model) -> LabelRow:
    return LabelRow(TINY_SPACE, name, model.version, 1, "", datetime.now(UTC))


def test_what_failed_is_forgotten_when_its_version_is_loaded_anew(tiny_checkpoint) -> None:
    versions, model, again = Versions(), served(tiny_checkpoint.artifact), served(tiny_checkpoint.artifact)
    versions.keep(model)
    versions.serve(labelled("canary", model))
    model.failing["float32"] = "the device is lost"
    versions.keep(model)
    versions.serve(labelled("next", model))
    assert "the device is lost" in versions.failing({(model.version, "float32")})
    assert versions.failing({(model.version, "int8")}) == "", "another precision computes"
    versions.keep(again)
    versions.serve(labelled("canary", again))
    assert versions.failing() == ""

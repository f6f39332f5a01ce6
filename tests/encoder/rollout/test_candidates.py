"""Loading: in a thread of low priority that ends when nobody wants its model any more."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import threading
import weakref

import pytest

from aeenc import errors
from services.encoder.rollout import loading
from services.encoder.rollout.candidates import CandidateLoader
from services.encoder.rollout.loading import LoadOptions
from services.encoder.runtime.thread_priority import CANDIDATE
from services.onnx_devices import Placement
from support.models.tiny_checkpoints import write_tiny_checkpoint
from support.waiting import until


@pytest.fixture
def made(registry, artifact_store):
    return CandidateLoader(registry, artifact_store, LoadOptions(2**30, Placement(["CPUExecutionProvider"])))


def load(made, checkpoint):
    made.known = {checkpoint.version: checkpoint.artifact.manifest_sha256}
    return made.load(checkpoint.space_id, checkpoint.version, None)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux schedules threads by themselves")
async def test_a_load_runs_in_a_thread_of_low_priority(made, tiny_checkpoint, monkeypatch):
    opened = []
    original = loading.open_session

    def noted(*arguments, **options):
        niceness = os.getpriority(os.PRIO_PROCESS, 0) - os.getpriority(os.PRIO_PROCESS, os.getpid())
        opened.append((threading.current_thread().name, niceness))
        return original(*arguments, **options)

    monkeypatch.setattr(loading, "open_session", noted)
    assert (await load(made, tiny_checkpoint)).version == tiny_checkpoint.version
    assert opened == [("load", min(CANDIDATE, 19 - os.getpriority(os.PRIO_PROCESS, os.getpid())))]  # 19 is the highest


async def test_a_load_that_is_given_up_ends_after_its_step_and_its_model_leaves_memory(
    made, tiny_checkpoint, monkeypatch
):
    go_on, begun, loaded, warmed = threading.Event(), threading.Event(), [], []
    original = loading.open_session

    def late(*arguments, **options):
        begun.set()
        go_on.wait(20)
        session = original(*arguments, **options)
        loaded.append(weakref.ref(session))
        return session

    monkeypatch.setattr(loading, "open_session", late)
    monkeypatch.setattr(loading, "_warm", lambda *_: warmed.append(1))
    waiting = asyncio.create_task(load(made, tiny_checkpoint))
    await asyncio.to_thread(begun.wait, 10)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    go_on.set()
    await until(lambda: bool(loaded) and loaded[0]() is None)
    assert not warmed
    assert (await load(made, tiny_checkpoint)).version == tiny_checkpoint.version


async def test_checkpoints_with_the_same_tokenizer_file_share_it(made, tiny_checkpoint):
    first, second = await load(made, tiny_checkpoint), await load(made, tiny_checkpoint)
    assert first.tokenization is not second.tokenization
    assert first.tokenization._tokenizer is second.tokenization._tokenizer


async def test_memory_is_held_for_the_precisions_that_serve(registry, artifact_store):
    passed = {"passed": True, "recipe": "rowwise"}
    first, second = (write_tiny_checkpoint(artifact_store, seed=seed, int8=passed) for seed in (1, 2))
    float32, int8 = (first.artifact.files[name].size_bytes for name in ("model.onnx", "model.int8.onnx"))
    options = LoadOptions(2**30, Placement(["CPUExecutionProvider"]))
    loader = CandidateLoader(registry, artifact_store, options, loaded_bytes=2 * float32 + int8)
    models = [await load(loader, checkpoint) for checkpoint in (first, second)]
    await loader.add_precision(models[0], "int8")
    assert [list(model.runners) for model in models] == [["float32", "int8"], ["float32"]]
    with pytest.raises(errors.FailedPrecondition, match="over the limit"):
        await loader.add_precision(models[1], "int8")


async def test_what_is_loaded_stays_although_its_artifact_is_deleted(made, tiny_checkpoint, artifact_store):
    model = await load(made, tiny_checkpoint)
    artifact_store.delete("checkpoints", tiny_checkpoint.version)
    assert not artifact_store.sweep("checkpoints") or artifact_store.has_deleted("checkpoints")
    model.reserved.clear()
    artifact_store.sweep("checkpoints")
    assert not artifact_store.has_deleted("checkpoints")


class Session:
    """Stands for ninety megabytes."""


def refuse() -> None:
    raise errors.FailedPrecondition("other vectors than at export")


def break_down() -> None:
    raise RuntimeError("the runtime's own")


@pytest.mark.parametrize("fail", [refuse, break_down])
async def test_what_a_failed_load_had_opened_is_freed_without_a_collector(made, tiny_checkpoint, monkeypatch, fail):
    opened = []

    def check(*_arguments, **_options):
        session = Session()
        opened.append(weakref.ref(session))
        try:
            fail()
        except RuntimeError as error:
            raise ValueError("what it led to") from error

    monkeypatch.setattr(loading, "_check_probes", check)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(errors.AeencError):
            await load(made, tiny_checkpoint)
        assert [one() for one in opened] == [None]
        assert not list(made._reserved), "the frames of the load are gone, and with them what it reserved"
    finally:
        gc.enable()

"""Loading beside a serving version: on an idle processor, or with a share of its own on a busy one."""

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
from services.encoder.rollout import candidates, loading
from services.encoder.rollout.candidates import CandidateLoader
from services.encoder.rollout.loading import LoadOptions
from services.encoder.runtime.onnx_session import Placement
from services.encoder.runtime.thread_priority import CANDIDATE
from support.models.tiny_checkpoints import write_tiny_checkpoint
from support.waiting import until


@pytest.fixture
def made(registry, artifact_store):
    return CandidateLoader(registry, artifact_store, LoadOptions(2**30, "float32", Placement(["CPUExecutionProvider"])))


def load(made, checkpoint, *, beside=True):
    digest = checkpoint.artifact.manifest_sha256
    return made.load_known(checkpoint.space_id, checkpoint.version, digest, None, beside=beside)


def threads_of(monkeypatch, before=lambda: None):
    """Notes in which thread, and with which scheduling and niceness, each session is opened."""
    opened = []
    original = loading.open_session

    def noted(*arguments, **options):
        niceness = os.getpriority(os.PRIO_PROCESS, 0) - os.getpriority(os.PRIO_PROCESS, os.getpid())
        opened.append((threading.current_thread().name, os.sched_getscheduler(0), niceness))
        before()
        return original(*arguments, **options)

    monkeypatch.setattr(loading, "open_session", noted)
    return opened


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux schedules threads by themselves")
async def test_a_load_beside_a_serving_version_runs_when_idle_and_the_first_one_does_not_wait_for_that(
    made, tiny_checkpoint, monkeypatch
):
    opened = threads_of(monkeypatch)
    assert (await load(made, tiny_checkpoint, beside=False)).version == tiny_checkpoint.version
    assert (await load(made, tiny_checkpoint)).version == tiny_checkpoint.version
    share = min(CANDIDATE, 19 - os.getpriority(os.PRIO_PROCESS, os.getpid()))  # 19 is the highest niceness
    assert opened == [("load-low", os.SCHED_OTHER, share), ("load-idle", os.SCHED_IDLE, 0)]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux schedules threads by themselves")
async def test_a_load_that_takes_too_long_when_idle_goes_on_with_a_share_and_does_nothing_twice(
    made, tiny_checkpoint, monkeypatch
):
    opened, warmed, took_long = threads_of(monkeypatch, lambda: took_long.wait(20)), [], threading.Event()
    original = loading._warm

    def warm(*arguments):
        warmed.append(threading.current_thread().name)
        return original(*arguments)

    monkeypatch.setattr(loading, "_warm", warm)
    monkeypatch.setattr(candidates, "PATIENCE_S", 0.1)
    loading_beside = asyncio.create_task(load(made, tiny_checkpoint))
    await until(lambda: bool(opened))
    await asyncio.sleep(2 * candidates.PATIENCE_S)  # the loop ends the shorter wait, which began before, first
    took_long.set()
    assert (await loading_beside).version == tiny_checkpoint.version
    assert [name for name, *_ in opened] == ["load-idle"], "one session is opened, once"
    assert warmed == ["load-low"], "the next step is taken by the thread with a share"


async def test_a_model_that_came_too_late_does_not_stay_in_memory(made, tiny_checkpoint, monkeypatch):
    go_on, begun, loaded = threading.Event(), threading.Event(), []
    original = loading.open_session

    def late(*arguments, **options):
        begun.set()
        go_on.wait(20)
        session = original(*arguments, **options)
        loaded.append(weakref.ref(session))
        return session

    monkeypatch.setattr(loading, "open_session", late)
    waiting = asyncio.create_task(load(made, tiny_checkpoint))
    await asyncio.to_thread(begun.wait, 10)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    go_on.set()
    await until(lambda: bool(loaded) and loaded[0]() is None)
    assert (await load(made, tiny_checkpoint)).version == tiny_checkpoint.version


async def test_checkpoints_with_the_same_tokenizer_file_share_it(made, tiny_checkpoint):
    first, second = await load(made, tiny_checkpoint), await load(made, tiny_checkpoint)
    assert first.tokenization is not second.tokenization
    assert first.tokenization._tokenizer is second.tokenization._tokenizer


async def test_memory_is_held_for_the_precisions_that_serve_and_not_for_those_that_were_tried(
    registry, artifact_store, monkeypatch
):
    monkeypatch.setattr(loading, "fastest", lambda rates: "float32")
    monkeypatch.setattr(loading, "bfloat16_refusal", lambda: "there is none")
    passed = {"passed": True, "recipe": "rowwise"}
    first, second = (write_tiny_checkpoint(artifact_store, seed=seed, int8=passed) for seed in (1, 2))
    float32, int8 = (first.artifact.files[name].size_bytes for name in ("model.onnx", "model.int8.onnx"))
    options, limit = LoadOptions(2**30, "auto", Placement(["CPUExecutionProvider"])), 2 * float32 + int8
    loader = CandidateLoader(registry, artifact_store, options, loaded_bytes=limit)
    models = [await load(loader, checkpoint) for checkpoint in (first, second)]
    assert [list(model.runners) for model in models] == [["float32"], ["float32"]]
    assert [model.reserved.size_bytes for model in models] == [float32, float32]


class Session:
    """Stands for ninety megabytes."""


def refuse() -> None:
    raise errors.FailedPrecondition("other vectors than at export")


def break_down() -> None:
    raise RuntimeError("the runtime's own")


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("fail", [refuse, break_down])
async def test_what_a_failed_load_had_opened_is_freed_without_a_collector(
    made, tiny_checkpoint, monkeypatch, beside, fail
):
    opened = []

    def check(*_arguments, **_options):
        session = Session()
        opened.append(weakref.ref(session))
        try:
            fail()
        except RuntimeError as error:
            raise ValueError("what it led to") from error

    monkeypatch.setattr(loading, "_check_vectors", check)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(errors.AeencError):
            await load(made, tiny_checkpoint, beside=beside)
        assert [one() for one in opened] == [None]
        assert not list(made._memory._reserved), "the frames of the load are gone, and with them what it reserved"
    finally:
        gc.enable()

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
from services.encoder.rollout import candidates
from services.encoder.rollout.candidates import CandidateLoader
from services.encoder.rollout.loading import LoadOptions
from services.encoder.runtime.thread_priority import CANDIDATE


@pytest.fixture
def made(registry, artifact_store):
    candidate = CandidateLoader(registry, artifact_store, LoadOptions(2**30, "float32", ["CPUExecutionProvider"]))
    yield candidate
    candidate.close()


def load(made, checkpoint, *, beside=True):
    digest = checkpoint.artifact.manifest_sha256
    return made.load_known(checkpoint.space_id, checkpoint.version, digest, None, beside=beside)


def threads_of(monkeypatch, before=lambda: None):
    """Notes in which thread, and with which scheduling, each load begins."""
    begun = []
    original = candidates.load_model

    def noted(*arguments, **options):
        begun.append((threading.current_thread().name.rpartition("_")[0], os.sched_getscheduler(0)))
        before()
        return original(*arguments, **options)

    monkeypatch.setattr(candidates, "load_model", noted)
    return begun


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux schedules threads by themselves")
async def test_a_load_beside_a_serving_version_runs_when_idle_and_the_first_one_does_not_wait_for_that(
    made, tiny_checkpoint, monkeypatch
):
    begun = threads_of(monkeypatch)
    assert (await load(made, tiny_checkpoint, beside=False)).version == tiny_checkpoint.version
    assert (await load(made, tiny_checkpoint)).version == tiny_checkpoint.version
    assert begun == [("load-low", os.SCHED_OTHER), ("load-idle", os.SCHED_IDLE)]
    assert (
        made._low.submit(os.getpriority, os.PRIO_PROCESS, 0).result()
        == os.getpriority(os.PRIO_PROCESS, os.getpid()) + CANDIDATE
    )


async def test_a_load_that_gets_no_turn_is_done_by_the_thread_with_a_share(made, tiny_checkpoint, monkeypatch):
    turn = threading.Event()

    def starve():
        if threading.current_thread().name.startswith("load-idle"):
            turn.wait(20)
            raise errors.DataLoss("nobody waits for this any more")

    begun = threads_of(monkeypatch, starve)
    monkeypatch.setattr(candidates, "PATIENCE_S", 0.2)
    assert (await load(made, tiny_checkpoint)).version == tiny_checkpoint.version
    assert (await load(made, tiny_checkpoint)).version == tiny_checkpoint.version
    assert [name for name, _ in begun] == ["load-idle", "load-low", "load-low"], "the second did not wait again"
    turn.set()


async def test_a_model_that_came_too_late_does_not_stay_in_memory(made, tiny_checkpoint, monkeypatch):
    turn, loaded = threading.Event(), []
    original = candidates.load_model

    def noted(*arguments, **options):
        if threading.current_thread().name.startswith("load-idle"):
            turn.wait(20)
        model = original(*arguments, **options)
        loaded.append(weakref.ref(model))
        return model

    monkeypatch.setattr(candidates, "load_model", noted)
    monkeypatch.setattr(candidates, "PATIENCE_S", 0.1)
    served = await load(made, tiny_checkpoint)
    turn.set()
    async with asyncio.timeout(10):
        while len(loaded) < 2 or loaded[1]() is not None:  # noqa: ASYNC110 -- a thread lets go of it
            await asyncio.sleep(0.01)
    assert loaded[0]() is served


async def test_checkpoints_with_the_same_tokenizer_file_share_it(made, tiny_checkpoint):
    first, second = await load(made, tiny_checkpoint), await load(made, tiny_checkpoint)
    assert first.tokenization is not second.tokenization
    assert first.tokenization._tokenizer is second.tokenization._tokenizer


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

    def load_model(*_arguments, **_options):
        session = Session()
        opened.append(weakref.ref(session))
        try:
            fail()
        except RuntimeError as error:
            raise ValueError("what it led to") from error

    monkeypatch.setattr(candidates, "load_model", load_model)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(errors.AeencError):
            await load(made, tiny_checkpoint, beside=beside)
        assert [one() for one in opened] == [None]
    finally:
        gc.enable()

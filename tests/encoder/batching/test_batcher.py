"""Worker threads: failing texts, dying workers, workers that never come back."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import weakref
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from aeenc.errors import AeencError, Overloaded, Unavailable
from services.encoder.batching import batcher
from services.encoder.batching.admission import ENOUGH, CostModel
from services.encoder.batching.batcher import Batcher
from services.encoder.metrics import EncoderMetrics
from services.encoder.runtime.runners import Tokens
from services.encoder.runtime.thread_priority import WORKER
from support.waiting import eventually, until

POISON, DEADLY, ENDLESS = 13, 17, 19


class Runner:
    """Gives back each text's first token; some lengths make it fail, die, or never come back."""

    pads = True
    width = 2

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.computed: list[int] = []
        self.release = threading.Event()
        self.go_on = threading.Event()  # the next batch waits for it
        self.go_on.set()
        self.niceness = 0

    def run(self, batch):
        self.sizes.append(len(batch))
        self.go_on.wait(20)
        self.niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        lengths = {len(tokens.ids) for tokens in batch}
        if DEADLY in lengths:
            raise SystemExit
        if ENDLESS in lengths:
            self.release.wait(20)
        time.sleep(0.02)
        if POISON in lengths:
            raise ValueError("a text that the model cannot bear")
        self.computed += [tokens.ids[0] for tokens in batch]
        return np.array([[tokens.ids[0]] * 2 for tokens in batch], dtype=np.float32)


class Setup:
    def __init__(self, workers: int = 1, stuck_s: float = 60.0) -> None:
        self.registry = CollectorRegistry()
        self.runner, self.cost = Runner(), CostModel(workers)
        self.batcher = Batcher(
            workers=workers,
            batch_items=32,
            batch_tokens=100_000,
            stuck_s=stuck_s,
            cost=self.cost,
            metrics=EncoderMetrics(self.registry),
        )

    def encode(self, number: int, length: int = 5, count: int = 1):
        return self.batcher.encode(self.runner, [Tokens([number] * length)] * count, "interactive")

    async def keep_busy(self, count: int = 1) -> asyncio.Task:
        """Occupies the worker until `go_on`, so that what comes next queues together."""
        before = len(self.runner.sizes)
        self.runner.go_on.clear()
        task = asyncio.create_task(self.encode(0, count=count))
        while len(self.runner.sizes) == before:  # noqa: ASYNC110 -- the runner knows no event loop
            await asyncio.sleep(0)
        return task

    async def queue(self, *calls: Awaitable[Any]) -> list[asyncio.Task]:
        """Begins calls behind the batch that occupies the worker, and lets that end."""
        tasks = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0)  # each is in the queue as soon as it has run
        self.runner.go_on.set()
        return tasks

    def restarts(self, reason: str) -> float:
        return self.registry.get_sample_value("aeenc_encoder_worker_restarts_total", {"reason": reason}) or 0.0


@pytest.fixture
async def setup():
    made = Setup()
    yield made
    made.runner.release.set()
    made.runner.go_on.set()
    await made.batcher.close()


async def test_a_poisoned_text_fails_alone_and_is_found_by_halving(setup) -> None:
    first = await setup.keep_busy()
    calls = [setup.encode(n, POISON if n == 20 else 5) for n in range(1, 33)]
    answers = await asyncio.gather(*await setup.queue(*calls), return_exceptions=True)
    await first
    assert [n for n, answer in enumerate(answers, 1) if isinstance(answer, Exception)] == [20]
    assert isinstance(answers[19], AeencError)
    assert "cannot encode this text (ValueError)" in answers[19].message
    assert len(setup.runner.sizes) <= 2 + 2 * 5 + 2, "halving 32 texts takes two runs a level"
    assert sorted(setup.runner.computed) == sorted(set(range(33)) - {20}), "every neighbour is computed once"


class SmallCard(Runner):
    """A device with room for so many padded tokens. `left` has what each run allocates while it computes."""

    def __init__(self, room: int, words: str) -> None:
        super().__init__()
        self.room, self.words = room, words
        self.log: list[str | int] = []
        self.left: list[weakref.ref[Any]] = []

    def run(self, batch):
        assert not any(one() is not None for one in self.left), "a failed run's memory goes first"
        allocated = np.zeros(1)
        self.left.append(weakref.ref(allocated))
        self.log.append(len(batch))
        if max(len(tokens.ids) for tokens in batch) * len(batch) > self.room:
            raise RuntimeError(self.words)
        return super().run(batch)


@pytest.mark.parametrize(
    "words",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 GiB",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
async def test_a_batch_over_the_devices_memory_is_computed_in_halves_and_fails_one_text_at_most(
    setup, monkeypatch, words: str
) -> None:
    setup.runner = runner = SmallCard(20, words)
    cuda = SimpleNamespace(empty_cache=lambda: runner.log.append("freed"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    first = await setup.keep_busy()
    calls = [setup.encode(n, 5) for n in range(1, 9)]
    answers = await asyncio.gather(first, *await setup.queue(*calls, setup.encode(9, 21)), return_exceptions=True)
    assert [answer.rows[0, 0] for answer in answers[:9]] == list(range(9))
    assert isinstance(answers[9], Overloaded)
    assert answers[9].reason == batcher.OUT_OF_MEMORY
    assert "a text of 21 tokens" in answers[9].message
    assert runner.log == [1, 9, "freed", 4, 5, "freed", 2, 3, "freed", 1, 2, "freed", 1, 1]


async def test_a_dead_worker_fails_what_it_held_and_nothing_else_and_is_replaced(setup) -> None:
    first = await setup.keep_busy()
    doomed = await setup.queue(*(setup.encode(n, DEADLY if n == 3 else 5) for n in range(1, 6)))
    answers = await asyncio.gather(first, *doomed, return_exceptions=True)
    assert not isinstance(answers[0], Exception)
    assert all(isinstance(answer, Unavailable) for answer in answers[1:]), "all shared the batch that died"
    assert "worker that computed this call died (SystemExit)" in answers[1].message
    assert (await setup.encode(7)).rows.tolist() == [[7, 7]]
    assert setup.restarts("died") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a niceness for each thread")
async def test_workers_and_those_that_replace_them_leave_the_event_loop_first(setup) -> None:
    for _ in range(3):
        await setup.encode(1)
        assert setup.runner.niceness == os.getpriority(os.PRIO_PROCESS, os.getpid()) + WORKER
        with pytest.raises(Unavailable):
            await setup.encode(1, DEADLY)


async def test_a_call_spread_over_many_batches_is_put_together_in_its_own_order() -> None:
    setup = Setup(workers=3)
    lengths = [2 + (n * 7) % 40 for n in range(500)]
    texts = [Tokens([n] * length) for n, length in enumerate(lengths) if length not in {POISON, DEADLY, ENDLESS}]
    gathered = await setup.batcher.encode(setup.runner, texts, "interactive")
    assert gathered.rows[:, 0].tolist() == [tokens.ids[0] for tokens in texts]
    assert gathered.queue_s >= 0
    assert gathered.compute_s > 0
    await setup.batcher.close()


async def test_cancelling_many_calls_leaves_no_text_to_compute(setup) -> None:
    first = await setup.keep_busy()
    doomed = [asyncio.create_task(setup.encode(n, count=64)) for n in range(1, 40)]
    await asyncio.sleep(0)
    for call in doomed:
        call.cancel()
    await asyncio.gather(*doomed, return_exceptions=True)
    setup.runner.go_on.set()
    await first
    last = await setup.encode(99)
    assert last.rows.tolist() == [[99, 99]]
    assert set(setup.runner.computed) <= {0, 1, 99}, "the cancelled calls were computed"
    dropped = setup.registry.get_sample_value("aeenc_encoder_dropped_texts_total", {"reason": "cancelled"})
    assert dropped >= 38 * 64 - 64


async def test_each_kind_of_runner_has_its_own_cost() -> None:
    class Quick(Runner):
        def run(self, batch):
            return np.ones((len(batch), 2), dtype=np.float32)

    setup = Setup()
    for _ in range(ENOUGH):
        await setup.encode(1)  # takes 20 ms
        await setup.batcher.encode(Quick(), [Tokens([1] * 5)], "interactive")
    await until(lambda: setup.cost.of(Runner).is_known and setup.cost.of(Quick).is_known)
    assert setup.cost.of(Quick).compute_s(5) < setup.cost.of(Runner).compute_s(5) / 2
    await setup.batcher.close()


async def test_the_end_waits_once_for_all_workers_that_hang() -> None:
    setup = Setup(workers=8)
    calls: list[asyncio.Future] = []
    while len(calls) < 8:
        calls.append(asyncio.ensure_future(setup.encode(1, ENDLESS)))
        await until(lambda: len(setup.runner.sizes) == len(calls))
    started = time.monotonic()
    await setup.batcher.close(2.0)
    assert time.monotonic() - started < 4 * 2.0
    setup.runner.release.set()
    await asyncio.gather(*calls)
    await setup.batcher.close()


def encode_threads() -> int:
    return sum(thread.name.startswith("encode-") for thread in threading.enumerate())


async def test_threads_that_never_come_back_are_replaced_a_bounded_number_of_times(monkeypatch) -> None:
    monkeypatch.setattr(batcher, "WATCH_S", 0.02)
    setup = Setup(workers=2, stuck_s=0.1)
    before = encode_threads()
    for number in range(4):  # two workers, and the two in their place
        with pytest.raises(Unavailable, match=r"did not come back|every worker hangs"):
            await asyncio.wait_for(setup.encode(number, ENDLESS), 5)
    assert encode_threads() == before + 2
    monkeypatch.setattr(batcher, "WATCH_S", 60)
    await asyncio.sleep(0.1)  # nobody looks after the threads from now on
    with pytest.raises(Unavailable, match="every worker hangs"):
        await asyncio.wait_for(setup.encode(1), 5)
    setup.runner.release.set()

    async def answered() -> bool:
        try:
            return (await setup.encode(3)).rows.tolist() == [[3, 3]]
        except Unavailable:
            return False

    await eventually(answered)
    assert setup.restarts("stuck") == 2
    await setup.batcher.close()

"""The encoder over a long time: swaps, failing loads, overload, garbage. `make bench NAME=encoder-soak`, 35 minutes.

Loopback only, ends by itself. `--only PART` runs one part, `ARGS='--only swaps'` of make; `--swaps`, `--failing`,
`--overload-s` and `--fuzz-s` make it shorter; the row then says how long it was. Needs EntailmentBank in
`data/entailmentbank` or in AEENC_BENCH_DATA.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc import PATIENT, EncoderClient, errors
from benchmarks.encoder.garbage import garbage
from benchmarks.harness.checkpoints import (
    DAMAGES,
    FOLDER,
    STORE,
    base_checkpoint,
    damaged,
    reason_of,
    variant,
    vectors_of,
)
from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.load import Calls, RawCalls, closed_loop, poisson, without_collector
from benchmarks.harness.rows import Rows, run_parts
from benchmarks.harness.services import EncoderFleet, running_encoder
from services.store.artifacts import Artifact, ArtifactStore

SWAP_EVERY_S = 5.0
WINDOW_S = 1.0
VARIANTS = 4  # more than are loaded at once, so that every swap loads
POOL = 64
CONNECTIONS = 4
SAME = 0.99999  # cosine of an answer and the vector that its version must give
DIFFERENT = 0.9999  # versions must be further apart than this to be told apart


class CheckedCalls:
    """Sends texts of a pool one a call; `calls` has their outcomes, `wrong` counts answers that fit no version."""

    def __init__(self, clients: Sequence[EncoderClient], texts: Sequence[str], artifacts: Sequence[Artifact]) -> None:
        self._clients, self._texts = clients, texts
        self._expected = {artifact.id: vectors_of(artifact.path, list(texts)) for artifact in artifacts}
        self._rng = random.Random(11)
        self._count = 0
        self.calls = Calls()
        self.wrong = 0
        self.first_seen: dict[str, float] = {}  # version -> when an answer named it after `forget`
        self._check_apart()

    async def send(self) -> None:
        """One call."""
        self._count += 1
        client = self._clients[self._count % len(self._clients)]
        row = self._rng.randrange(len(self._texts))
        sent = time.monotonic()
        try:
            answer = await client.encode([self._texts[row]], timeout_s=10)
        except errors.AeencError as error:
            self.calls.add(sent, error.code, 1)
            return
        self.calls.add(sent, "OK", 1)
        self.first_seen.setdefault(answer.model_version, time.monotonic())
        expected = self._expected.get(answer.model_version)
        if expected is None or float(answer.vectors[0] @ expected[row]) < SAME:
            self.wrong += 1

    def forget(self, version: str) -> None:
        """Notices again when a version is first seen."""
        self.first_seen.pop(version, None)

    def _check_apart(self) -> None:
        all_vectors: list[NDArray[np.float32]] = list(self._expected.values())
        for number, ours in enumerate(all_vectors):
            for theirs in all_vectors[number + 1 :]:
                assert np.einsum("nd,nd->n", ours, theirs).max() < DIFFERENT, "variants cannot be told apart"


@asynccontextmanager
async def arriving(watched: CheckedCalls, rate: float, *, seed: int) -> AsyncIterator[None]:
    """Calls at Poisson arrivals for as long as the block."""
    stop = asyncio.Event()
    load = asyncio.ensure_future(poisson(watched.send, rate, seconds=1e9, seed=seed, stop=stop))
    yield
    stop.set()
    await load


async def swaps(
    rows: Rows, fleet: EncoderFleet, watched: CheckedCalls, variants: Sequence[Artifact], rate: float, count: int
) -> None:
    """Many swaps under Poisson load: p99 in the windows that overlap one against the others."""
    spans, serving_s, resident = [], [], []
    async with arriving(watched, rate, seed=5):
        await asyncio.sleep(SWAP_EVERY_S)
        for number in range(count):
            artifact = variants[number % len(variants)]
            watched.forget(artifact.id)
            begun = time.monotonic()
            _, rollout = await fleet.point(artifact)
            assert rollout.ok, rollout.reason
            ended = time.monotonic()
            await asyncio.sleep(max(begun + SWAP_EVERY_S - time.monotonic(), 0.5))
            spans.append((begun, ended))
            serving_s.append(watched.first_seen.get(artifact.id, np.inf) - begun)
            resident.append(fleet.process.resident_mb())
    during, without = _split(watched.calls, spans)
    p99_during, p99_without = (float(np.percentile(part, 99)) * 1e3 for part in (during, without))
    settled, last = statistics.median(resident[20:40] or resident), statistics.median(resident[-20:])
    failed = len(watched.calls.rows) - watched.calls.count("OK")
    rows.note("load during swaps", rate, "1/s", f"{len(watched.calls.rows)} calls")
    p99s = f"{p99_during:.1f} ms in {len(during)} calls, {p99_without:.1f} ms in {len(without)}"
    rows.at_most(f"p99 over windows with a swap / without, {count} swaps", p99_during / p99_without, "x", 2.0, p99s)
    rows.at_most("publish to serving, slowest", max(serving_s), "s", 5.0, round(statistics.median(serving_s), 2))
    rows.at_most("failed calls during the swaps", failed, "calls", 0, watched.calls.outcomes())
    rows.at_most("answers from a wrong or mixed version", watched.wrong, "calls", 0)
    rows.at_most(
        "resident memory, last 20 swaps over swaps 21 to 40", last / settled - 1, "share", 0.05, round(settled)
    )


def _split(calls: Calls, spans: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Durations of calls sent in windows of a second that overlap a swap, and of the others."""
    origin = calls.rows[0][0]
    touched = {
        window
        for begun, ended in spans
        for window in range(int((begun - origin) / WINDOW_S), int((ended - origin) / WINDOW_S) + 1)
    }
    during: list[float] = []
    without: list[float] = []
    for sent, seconds, outcome, _ in calls.rows:
        if outcome == "OK" and sent >= spans[0][0]:
            (during if int((sent - origin) / WINDOW_S) in touched else without).append(seconds)
    return during, without


async def failing_loads(
    rows: Rows,
    fleet: EncoderFleet,
    watched: CheckedCalls,
    store: ArtifactStore,
    good: Artifact,
    rate: float,
    count: int,
) -> None:
    """Candidates that must not serve, one after the other, under load."""
    client = fleet.client(retry=PATIENT)
    await fleet.point(good)
    kinds = list(DAMAGES)
    bad = {kind: damaged(store, good, kind, number) for number, kind in enumerate(kinds)}
    watched.calls.rows.clear()
    hidden, resident = [], []
    async with arriving(watched, rate, seed=6):
        for number in range(count):
            kind = kinds[number % len(kinds)]
            _, rollout = await fleet.point(bad[kind], space_id=good.meta["space_id"])
            shown = next(swap for swap in (await client.info()).swaps if swap.label.name == "stable")
            if rollout.ok or shown.ok or reason_of(kind) not in shown.reason:
                hidden.append(f"{kind}: {shown.reason.replace(str(store.root), '')}")
            await asyncio.sleep(0.3)
            resident.append(fleet.process.resident_mb())
    for artifact in bad.values():
        store.delete(FOLDER, artifact.id)
    disturbed = len(watched.calls.rows) - watched.calls.count("OK") + watched.wrong
    growth = statistics.median(resident[-8:]) / statistics.median(resident[8:16] or resident) - 1
    rows.at_most(f"disturbed calls during {count} failing loads", disturbed, "calls", 0, len(watched.calls.rows))
    rows.at_most("resident memory, last 8 failing loads over loads 9 to 16", growth, "share", 0.05, round(resident[0]))
    rows.add("failing loads without their reason in GetInfo", len(hidden), "loads", "0", not hidden, hidden[:3])
    await fleet.point(good)
    await client.channel.close()


async def overload(
    rows: Rows, fleet: EncoderFleet, texts: Sequence[str], *, size: int, times: float, bar: float, seconds: float
) -> None:
    """Much more than the capacity that was just measured: what is still answered, and how fast the rest is refused."""
    load = RawCalls(fleet.process.target, texts, size, timeout_s=10)
    rates = [await load.capacity(8 if size > 1 else 64, 3.0) for _ in range(5)]
    capacity = statistics.median(rates)
    load.calls = calls = Calls()
    begun = time.monotonic()
    with without_collector():
        await poisson(load.send, times * capacity / size, seconds=seconds, seed=9)
    goodput = calls.texts() / (time.monotonic() - begun)
    refusals = calls.seconds("RESOURCE_EXHAUSTED")
    assert len(refusals), "nothing was refused, so this was no overload"
    name = f"overload {times:g}x in calls of {size} for {seconds:g} s"
    rows.at_least(
        f"{name}: goodput over capacity", goodput / capacity, "share", bar, f"{capacity:.0f}/s, {calls.outcomes()}"
    )
    rows.at_most(f"{name}: refusals p99", float(np.percentile(refusals, 99)) * 1e3, "ms", 100.0, len(refusals))
    others = set(calls.outcomes()) - {"OK", "RESOURCE_EXHAUSTED"}
    alive = fleet.process.alive and not others
    rows.add(f"{name}: no crash, no other outcome", alive, "", "True", alive, sorted(others))
    await load.close()


def texts_of_all() -> list[str]:
    """The candidates' texts, shuffled."""
    texts = [candidate.text for candidate in entailmentbank().candidates()]
    random.Random(0).shuffle(texts)
    return texts


async def overloads(rows: Rows, given: Any) -> None:
    """Large calls and single texts."""
    store, texts = ArtifactStore(STORE), texts_of_all()
    async with running_encoder(store, base_checkpoint(store)) as fleet:
        await overload(rows, fleet, texts, size=32, times=10, bar=0.90, seconds=given.overload_s)
        await overload(rows, fleet, texts, size=1, times=2, bar=0.75, seconds=given.overload_s)


async def loads(rows: Rows, given: Any) -> None:
    """Versions that must not serve, then versions that do."""
    store, texts = ArtifactStore(STORE), texts_of_all()
    base = base_checkpoint(store)
    async with running_encoder(store, base) as fleet:
        variants = [variant(store, base, number) for number in range(1, VARIANTS + 1)]
        clients = [fleet.client(timeout_s=10) for _ in range(CONNECTIONS)]
        calls = [partial(client.encode, role="premise") for client in clients]
        capacity = statistics.median([await closed_loop(calls, texts[:1024], callers=64, size=1) for _ in range(5)])
        watched = CheckedCalls(clients, texts[:POOL], [base, *variants])
        await failing_loads(rows, fleet, watched, store, variants[0], 0.3 * capacity, given.failing)
        watched.calls.rows.clear()
        await swaps(rows, fleet, watched, variants, 0.5 * capacity, given.swaps)
        await asyncio.gather(*(client.channel.close() for client in clients))


async def bad_input(rows: Rows, given: Any) -> None:
    """Garbage."""
    store = ArtifactStore(STORE)
    async with running_encoder(store, base_checkpoint(store)) as fleet:
        await garbage(rows, fleet, given.fuzz_s)


if __name__ == "__main__":
    run_parts(
        "encoder-soak",
        __doc__,
        {"overload": overloads, "swaps": loads, "garbage": bad_input},
        swaps={"type": int, "default": 200},
        failing={"type": int, "default": 50},
        overload_s={"type": float, "default": 60.0},
        fuzz_s={"type": float, "default": 600.0},
    )

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
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import numpy as np
import psutil
from numpy.typing import NDArray

from aeenc import PATIENT, EncoderClient, errors
from aeenc.v1 import encoder_pb2
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
from benchmarks.house.scan_rpcs import LOST, WRONG, requests_of
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


CALLERS, HANGS_S, SETTLE_S, SAMPLED_S = 14, 15.0, 30.0, 0.25
GOOD_TEXT, SAME = "the earth rotates on its axis", 0.99999
KNOWN = {"texts": ["sun", "a plant needs light"], "query": "sun", "premises": ["a plant"], "role": 1}
DEADLINES_S = (10.0, 4.0, 0.3, 0.02, 0.0, -1.0)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
STARTS = (b"", PREFACE, PREFACE + bytes(9), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01")
LOGGED = ("call failed", "Traceback", "Unexpected [", "never retrieved", "Fatal")


class Garbage:
    """Sends garbage for some seconds and counts the outcomes. Beside it, a good call a second must keep its vector.

    No call may end with INTERNAL or UNKNOWN, and none hang; then memory, open files and calls in flight must come back
    to where they were.
    """

    def __init__(self, fleet: EncoderFleet, seconds: float, seed: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.faults: list[str] = []
        self.good = 0
        self.resident_mb: list[float] = []
        self._fleet, self._end = fleet, time.monotonic() + seconds
        self._rng = random.Random(seed)
        methods = encoder_pb2.DESCRIPTOR.services_by_name["EncoderService"].methods
        self._requests = [(one, list(requests_of(one, KNOWN))) for one in methods]

    @property
    def _goes_on(self) -> bool:
        return time.monotonic() < self._end and self._fleet.process.alive

    async def send(self) -> None:
        """Sends all of it, then waits until the encoder has come to rest."""
        client = self._fleet.client(retry=True)
        good = (await client.encode([GOOD_TEXT])).vectors[0]
        process = psutil.Process(self._fleet.process.pid)
        files = process.num_fds()
        await asyncio.gather(
            *(self._caller() for _ in range(CALLERS)), self._broken(), self._good(client, good), self._sample()
        )
        give_up = time.monotonic() + SETTLE_S
        while held := sum(version.in_flight for version in (await client.info()).versions) or (
            process.num_fds() > files + CALLERS + 4  # a caller's library may keep its last connection
        ):
            if time.monotonic() > give_up:
                self.faults.append(f"{held} calls in flight, {process.num_fds()} files, {files} before")
                break
            await asyncio.sleep(0.2)
        await client.channel.close()
        log = self._fleet.process.log.read_text(errors="replace")
        self.faults += [f"logged {mark!r}" for mark in LOGGED if mark in log]

    async def _caller(self) -> None:
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        while self._goes_on:
            async with grpc.aio.insecure_channel(self._fleet.process.target, options=options) as channel:
                for _ in range(self._rng.randint(1, 100)):
                    if self._goes_on:
                        await self._call(channel)

    async def _call(self, channel: grpc.aio.Channel) -> None:
        method, known = self._rng.choice(self._requests)
        what, messages = self._rng.choice(known)
        if self._rng.random() < 0.5:
            what, messages = "mutated", [self._mutated(message) for message in messages]

        async def stream() -> Any:
            for message in messages:
                yield message

        path = f"/{method.containing_service.full_name}/{method.name}"
        call = channel.stream_stream(path)(stream(), timeout=self._rng.choice(DEADLINES_S))
        if self._rng.random() < 0.06:
            asyncio.get_running_loop().call_later(self._rng.choice((0.0, 0.001, 0.2)), call.cancel)
        try:
            async with asyncio.timeout(HANGS_S):
                async for _ in call:
                    pass
        except TimeoutError:
            self.faults.append(f"{method.name} hangs, {what}")
            return
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass
        code, details = await call.code(), await call.details()
        self.outcomes[code.name] += 1
        if code in WRONG and details != LOST:
            self.faults.append(f"{method.name}: {code.name} {details}, {what}")

    def _mutated(self, data: bytes) -> bytes:
        """Some bytes changed, cut, repeated or put in; or random ones alone."""
        if self._rng.random() < 0.3:
            return self._rng.randbytes(self._rng.choice((0, 1, 5, 100, 60_000)))
        at = self._rng.randint(0, len(data))
        until = min(len(data), at + self._rng.choice((1, 2, 8, 64)))
        middle = (self._rng.randbytes(until - at), b"", data[at:until] * self._rng.choice((2, 500)), b"\xff")
        return data[:at] + self._rng.choice(middle) + data[until:]

    async def _broken(self) -> None:
        """Connections that speak no HTTP/2, or leave half way."""
        host, port = self._fleet.process.target.split(":")
        while self._goes_on:
            try:
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(self._rng.choice(STARTS) + self._rng.randbytes(self._rng.choice((0, 20, 500))))
                await writer.drain()
                async with asyncio.timeout(self._rng.choice((0.01, 1.0))):
                    await reader.read()
                self.outcomes["closed"] += 1
            except (TimeoutError, ConnectionError):
                self.outcomes["left"] += 1
            writer.transport.abort()

    async def _good(self, client: Any, good: Any) -> None:
        while self._goes_on:
            self.good += 1
            try:
                if float((await client.encode([GOOD_TEXT], timeout_s=20)).vectors[0] @ good) < SAME:
                    self.faults.append("good call: another vector")
            except errors.AeencError as error:
                self.faults.append(f"good call: {error.code} {error.message}")
            await asyncio.sleep(1.0)

    async def _sample(self) -> None:
        while self._goes_on:
            self.resident_mb.append(self._fleet.process.resident_mb())
            await asyncio.sleep(SAMPLED_S)


async def garbage(rows: Rows, given: Any) -> None:
    """Bad input: random bytes, odd and mutated messages, calls and connections that break off."""
    store, seconds = ArtifactStore(STORE), given.fuzz_s
    async with running_encoder(store, base_checkpoint(store)) as fleet:
        sent = Garbage(fleet, seconds, seed=1)
        await sent.send()
    told = sent.faults[:5] or f"{sent.outcomes.total()} calls, {dict(sent.outcomes)}, {sent.good} good ones"
    rows.at_most(f"garbage for {seconds:g} s: crashes, wrong answers and statuses", len(sent.faults), "", 0, told)
    warm = sent.resident_mb[len(sent.resident_mb) // 4 :]
    around = max(3, len(warm) // 10)
    before, after = statistics.median(warm[:around]), statistics.median(warm[-around:])
    leaks, memory = after > before * 1.05 + 5, f"{before:.0f} MB, then {after:.0f}"
    rows.add("garbage: memory grows by more than 5 % and 5 MB", leaks, "", "False", not leaks, memory)


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


if __name__ == "__main__":
    run_parts(
        "encoder-soak",
        __doc__,
        {"overload": overloads, "swaps": loads, "garbage": garbage},
        {
            "--swaps": {"type": int, "default": 200},
            "--failing": {"type": int, "default": 50},
            "--overload-s": {"type": float, "default": 60.0},
            "--fuzz-s": {"type": float, "default": 600.0},
        },
    )

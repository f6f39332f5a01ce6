"""Bad input for a running encoder: random bytes, hostile messages, calls that break off.

Every call has the set of statuses that its input allows, worked out here and not by the service. Beside the calls a
good one a second must keep its vector, and memory, files and calls in flight must come back to where they were.
`python -m benchmarks.encoder.fuzz --seconds 60` runs it alone.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import psutil

from aeenc import EncoderClient, errors
from benchmarks.encoder.fleet import EncoderFleet, running_encoder
from benchmarks.encoder.fuzz_input import CHECK, STREAMING, WATCH, Attempt, attempt, send_broken, wrong_in
from benchmarks.harness.checkpoints import STORE, base_checkpoint
from services.store.artifacts import ArtifactStore

CALLERS = 14
GOOD_TEXT = "the earth rotates on its axis"
HANGS_S = 15.0  # any call must have ended by then, even one without a deadline
SETTLE_S = 30.0  # grpc keeps the socket of a caller who never acknowledged its HTTP/2 settings for twenty seconds
UNEXPECTED = 10
LOST = "Internal error from Core"  # our own library's, when the answer came before a stream was sent to its end


@dataclass
class FuzzReport:
    """The outcomes of all calls. `unexpected` describes at most ten outcomes that the contract does not allow."""

    calls: int = 0
    by_code: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    good_calls: int = 0
    bad_good_calls: int = 0
    alive: bool = True
    rss_mb_before: float = 0.0
    rss_mb_after: float = 0.0

    @property
    def leaks(self) -> bool:
        """Whether memory grew by more than 5 % and 5 MB after the warm-up."""
        return self.rss_mb_after > self.rss_mb_before * 1.05 + 5

    @property
    def ok(self) -> bool:
        """Whether all is as it must be."""
        return self.alive and self.good_calls > 0 and not (self.unexpected or self.bad_good_calls or self.leaks)

    def surprise(self, description: str) -> None:
        """Keeps one description of each kind of surprise."""
        kind = description.partition(" | ")[0]
        known = {one.partition(" | ")[0] for one in self.unexpected}
        if len(self.unexpected) < UNEXPECTED and kind not in known:
            self.unexpected.append(description)


async def fuzz(fleet: EncoderFleet, seconds: float, seed: int, *, bad_paths: bool = False) -> FuzzReport:
    """Sends bad input for so many seconds. The inputs follow from the seed; how they interleave does not.

    `bad_paths` adds paths that are not UTF-8: grpcio's asyncio server (seen in 1.85.1) stops serving at the first one.
    """
    found, client = FuzzReport(), fleet.client(retry=True)
    good = (await client.encode([GOOD_TEXT])).vectors[0]
    process = psutil.Process(fleet.process.pid)
    files = process.num_fds()
    end = time.monotonic() + seconds
    samples: list[float] = []
    callers = [_caller(fleet, random.Random(seed * 1000 + number), end, found) for number in range(CALLERS)]
    broken = _wire_caller(fleet, random.Random(seed * 1000 + CALLERS), end, found, bad_paths)
    await asyncio.gather(*callers, broken, _good_caller(client, good, end, found), _sampler(fleet, end, samples))
    found.alive = await _lives(client, fleet)
    if found.alive:
        await _settled(client, process, files, found)
        warm = samples[len(samples) // 4 :]
        around = max(3, len(warm) // 10)
        found.rss_mb_before = round(statistics.median(warm[:around]), 1)
        found.rss_mb_after = round(statistics.median(warm[-around:]), 1)
    else:
        log = fleet.process.log.read_text(errors="replace")[-1000:]
        found.unexpected.insert(0, f"the encoder is gone, exit status {fleet.process.process.poll()} | {log}")
    for line in _log_lines(fleet):
        found.surprise(line)
    await client.channel.close()
    return found


async def _lives(client: EncoderClient, fleet: EncoderFleet) -> bool:
    try:
        await client.info()
    except errors.AeencError:
        return False
    return fleet.process.alive


async def _caller(fleet: EncoderFleet, rng: random.Random, end: float, found: FuzzReport) -> None:
    """Makes one call after the other, on a new connection now and then."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    options.append(("grpc.use_local_subchannel_pool", 1))
    while time.monotonic() < end and fleet.process.alive:
        async with grpc.aio.insecure_channel(fleet.process.target, options=options) as channel:
            for _ in range(rng.randint(1, 200)):
                if time.monotonic() >= end:
                    return
                await _call(channel, attempt(rng), found)


async def _call(channel: grpc.aio.Channel, tried: Attempt, found: FuzzReport) -> None:
    """Makes one call and judges how it ended."""
    begun, answers = time.monotonic(), list[bytes]()
    call = _begun(channel, tried)
    if tried.cancel_after_s is not None:
        asyncio.get_running_loop().call_later(tried.cancel_after_s, call.cancel)
    try:
        async with asyncio.timeout(HANGS_S):
            if isinstance(call, grpc.aio.UnaryUnaryCall):
                answers.append(await call)
            else:
                answers.extend([answer async for answer in call])
    except TimeoutError:
        found.surprise(f"{tried.method} hangs with {len(answers)} answers | {tried}")
        call.cancel()
        return
    except grpc.aio.AioRpcError:
        pass
    except asyncio.CancelledError:
        if not call.cancelled():
            raise
    code, details = (await call.code()).name, (await call.details()) or ""
    found.calls += 1
    if details == LOST:
        found.by_code["LOST"] += 1
        return
    found.by_code[code] += 1
    problem = _problem(tried, code, details, time.monotonic() - begun)
    if problem := problem or (wrong_in(tried, answers) if code == "OK" else ""):
        where = f"{tried.method} {details[:160]!r}, allowed {sorted(tried.allowed)}: {tried}"
        found.surprise(f"{problem}: {details[:40]!r} | {where}")


def _begun(channel: grpc.aio.Channel, tried: Attempt) -> Any:
    """A unary call goes out as a stream when it has no message, two, or no end."""
    options = {"timeout": tried.timeout_s, "metadata": tried.metadata or None}
    if tried.method in STREAMING or len(tried.requests) != 1 or not tried.finishes:
        return channel.stream_stream(tried.method)(_requests(tried), **options)
    if tried.method == WATCH:
        return channel.unary_stream(tried.method)(tried.requests[0], **options)
    return channel.unary_unary(tried.method)(tried.requests[0], **options)


def _problem(tried: Attempt, code: str, details: str, took_s: float) -> str:
    if code not in tried.allowed:
        return f"{code} is not allowed"
    silent_by_nature = code in {"OK", "CANCELLED", "DEADLINE_EXCEEDED"} or tried.method == CHECK
    if not details and not silent_by_nature:
        return f"{code} without a message"
    if tried.timeout_s is not None and took_s > max(tried.timeout_s, 0) + 1:
        return "late"
    return ""


async def _requests(tried: Attempt) -> AsyncIterator[bytes]:
    for request in tried.requests:
        yield request
    if not tried.finishes:  # what is never said to be the end: the deadline or a cancellation is
        await asyncio.sleep(HANGS_S)


async def _wire_caller(fleet: EncoderFleet, rng: random.Random, end: float, found: FuzzReport, bad_paths: bool) -> None:
    """Sends what no gRPC library would, each on a connection of its own."""
    host, port = fleet.process.target.split(":")
    while time.monotonic() < end and fleet.process.alive:
        outcome, description = await send_broken(host, int(port), rng, bad_paths=bad_paths)
        found.calls += 1
        found.by_code[outcome] += 1
        if outcome == "UNKNOWN":
            found.surprise(f"wire: {outcome} | {description}")


async def _good_caller(client: EncoderClient, good: np.ndarray, end: float, found: FuzzReport) -> None:
    """A patient caller with a good request, once a second."""
    while time.monotonic() < end:
        due = time.monotonic() + 1
        found.good_calls += 1
        try:
            vector = (await client.encode([GOOD_TEXT], timeout_s=20)).vectors[0]
        except errors.AeencError as error:
            found.bad_good_calls += 1
            found.surprise(f"good call: {error.code} | {error.message}")
            if error.code == "UNAVAILABLE":
                return
        else:
            if not float(vector @ good) >= 0.99999:
                found.bad_good_calls += 1
                found.surprise(f"good call: another vector | cosine {float(vector @ good)}")
        await asyncio.sleep(max(0.0, due - time.monotonic()))


async def _sampler(fleet: EncoderFleet, end: float, samples: list[float]) -> None:
    while time.monotonic() < end and fleet.process.alive:
        samples.append(fleet.process.resident_mb())
        await asyncio.sleep(0.25)


async def _settled(client: EncoderClient, process: psutil.Process, files: int, found: FuzzReport) -> None:
    """Once all callers have gone, no call may stay in flight and no connection open."""
    give_up = time.monotonic() + SETTLE_S
    while True:
        held = sum(version.in_flight for version in (await client.info()).versions)
        open_now = process.num_fds()
        if held == 0 and open_now <= files + CALLERS + 4:  # a caller's library may keep its last connection
            return
        if time.monotonic() > give_up:
            found.surprise(f"leak: calls in flight or files | {held} calls in flight, {open_now} files, {files} before")
            return
        await asyncio.sleep(0.2)


def _log_lines(fleet: EncoderFleet) -> list[str]:
    """Lines that the encoder must never log: an unexpected error of its own, or one that grpc caught for it."""
    lines = fleet.process.log.read_text(errors="replace").splitlines()
    bad = ("call failed", "Traceback", "Unexpected [", "never retrieved", "Fatal")
    marks = Counter(mark for line in lines for mark in bad if mark in line)
    first = {mark: next(n for n, line in enumerate(lines) if mark in line) for mark in marks}
    return [
        f"log: {mark} | {count} times, first: {' / '.join(lines[first[mark] : first[mark] + 3])[:400]}"
        for mark, count in marks.items()
    ]


async def _alone(seconds: float, seed: int, bad_paths: bool) -> FuzzReport:
    store = ArtifactStore(STORE)
    async with running_encoder(store, base_checkpoint(store)) as fleet:
        return await fuzz(fleet, seconds, seed, bad_paths=bad_paths)


def main() -> None:
    """Runs it alone against the base model; exit status 1 when anything was unexpected."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bad-paths", action="store_true", help="send paths that are not UTF-8, too")
    chosen = parser.parse_args()
    found = asyncio.run(_alone(chosen.seconds, chosen.seed, chosen.bad_paths))
    print(f"{found.calls:,} calls: {dict(found.by_code.most_common())}")
    print(f"good calls: {found.good_calls}, wrong or failed: {found.bad_good_calls}; alive: {found.alive}")
    print(f"resident memory: {found.rss_mb_before} MB after the warm-up, {found.rss_mb_after} MB at the end")
    for one in found.unexpected:
        print(f"unexpected: {one}")
    sys.exit(0 if found.ok else 1)


if __name__ == "__main__":
    main()

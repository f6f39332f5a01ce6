"""Bad input for a running encoder: random bytes, odd and mutated messages, calls and connections that break off.

No call may end with INTERNAL or UNKNOWN, and none hang. Beside them a good call a second must keep its vector; then
memory, open files and calls in flight must come back to where they were.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import Counter
from typing import Any

import grpc
import psutil

from aeenc import errors
from aeenc.v1 import encoder_pb2
from benchmarks.harness.rows import Rows
from benchmarks.harness.services import EncoderFleet
from benchmarks.house.scan_rpcs import LOST, WRONG, requests_of

CALLERS, HANGS_S, SETTLE_S, SAMPLED_S = 14, 15.0, 30.0, 0.25
GOOD_TEXT, SAME = "the earth rotates on its axis", 0.99999
KNOWN = {"texts": ["sun", "a plant needs light"], "query": "sun", "premises": ["a plant"], "role": 1}
DEADLINES_S = (10.0, 4.0, 0.3, 0.02, 0.0, -1.0)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
STARTS = (b"", PREFACE, PREFACE + bytes(9), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01")
LOGGED = ("call failed", "Traceback", "Unexpected [", "never retrieved", "Fatal")


class Garbage:
    """Sends garbage for some seconds and counts the outcomes."""

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


async def garbage(rows: Rows, fleet: EncoderFleet, seconds: float) -> None:
    """Adds the rows."""
    sent = Garbage(fleet, seconds, seed=1)
    await sent.send()
    told = sent.faults[:5] or f"{sent.outcomes.total()} calls, {dict(sent.outcomes)}, {sent.good} good ones"
    rows.at_most(f"garbage for {seconds:g} s: crashes, wrong answers and statuses", len(sent.faults), "", 0, told)
    warm = sent.resident_mb[len(sent.resident_mb) // 4 :]
    around = max(3, len(warm) // 10)
    before, after = statistics.median(warm[:around]), statistics.median(warm[-around:])
    leaks, memory = after > before * 1.05 + 5, f"{before:.0f} MB, then {after:.0f}"
    rows.add("garbage: memory grows by more than 5 % and 5 MB", leaks, "", "False", not leaks, memory)

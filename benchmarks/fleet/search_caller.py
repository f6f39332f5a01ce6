"""Callers of Search in a process of their own, so that they share no interpreter.

    python -m benchmarks.fleet.search_caller TARGET FILE CALLERS CONNECTIONS

Reads seconds from standard input, a line each time, and answers the number of calls that ended within them. FILE is a
JSON list of requests in hexadecimal.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import grpc

SEARCH = "/aeenc.v1.IndexService/Search"
OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


async def calls_within(channels: list[grpc.aio.Channel], requests: list[bytes], callers: int, seconds: float) -> int:
    """Calls that ended within the seconds, of callers that wait for their answers."""
    done, end = 0, time.monotonic() + seconds

    async def caller(number: int) -> None:
        nonlocal done
        call, turn = channels[number % len(channels)].unary_unary(SEARCH), number
        while time.monotonic() < end:
            await call(requests[turn % len(requests)])
            turn += 1
            done += 1

    await asyncio.gather(*(caller(number) for number in range(callers)))
    return done


async def main(target: str, requests: list[bytes], callers: int, connections: int) -> None:
    """Calls as often as it is asked to."""
    channels = [grpc.aio.insecure_channel(target, options=OPTIONS) for _ in range(connections)]
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(await calls_within(channels, requests, callers, float(line)), flush=True)
    await asyncio.gather(*(channel.close() for channel in channels))


if __name__ == "__main__":
    target, file, *numbers = sys.argv[1:]
    asyncio.run(main(target, [bytes.fromhex(one) for one in json.loads(Path(file).read_text())], *map(int, numbers)))

"""`make bench NAME=scan`, with few odd values: only `aeenc.errors` leave the SDK, no command ends in a traceback."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from benchmarks.house.scan import judging
from benchmarks.house.scan_sdk import scan_sdk
from benchmarks.house.scan_values import FEW, Scanned
from support.worlds.light_fleet import LightFleet, light_fleet

__all__ = ["light_fleet"]


async def test_nothing_but_an_error_of_ours_leaves_a_client(light_fleet: LightFleet) -> None:
    async with judging() as oracle:
        found = await scan_sdk(light_fleet.client.with_options(timeout_s=5, retry=False), oracle, FEW)
    assert found.calls > 1000
    assert not found.failures, str(found)


@pytest.mark.slow
async def test_no_command_ends_with_a_traceback(light_fleet: LightFleet) -> None:
    targets = {f"AEENC_{name.upper()}": f"127.0.0.1:{server.port}" for name, server in light_fleet.servers.items()}
    command = [sys.executable, "-m", "benchmarks.house.scan_commands", "few"]
    environment = {**os.environ, **targets, "AEENC_TIMEOUT_S": "3"}
    ended = await asyncio.to_thread(subprocess.run, command, env=environment, stdout=subprocess.PIPE, check=True)
    told = json.loads(ended.stdout.splitlines()[-1])
    found = Scanned(told["calls"], Counter(told["endings"]), told["failures"])
    assert found.calls > 500
    assert not found.failures, str(found)

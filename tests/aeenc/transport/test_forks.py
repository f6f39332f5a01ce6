"""A process that has connected and forks: its children are refused in words, and one that had not may connect."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# In a process of its own: forking this one would copy pytest's threads and locks.
FORK = """
import os, sys
import aeenc
from aeenc import errors

client = aeenc.connect(encoder="127.0.0.1:1", timeout_s=0.1)
if os.fork() == 0:
    try:
        client.encoder.encode(["a"])
    except errors.FailedPrecondition as error:
        sys.stdout.write(error.message)
        sys.stdout.flush()
        os._exit(7)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""

FORK_OF_AWAITING = """
import asyncio, os, sys
from aeenc import Channel, EncoderClient, errors

async def ask(client):
    try:
        await client.encode(["a"])
    except errors.FailedPrecondition as error:
        sys.stdout.write(error.message)
        sys.stdout.flush()
        os._exit(7)
    os._exit(0)

async def opened():
    return EncoderClient(Channel("127.0.0.1:1", timeout_s=0.1))

client = asyncio.new_event_loop().run_until_complete(opened())
if os.fork() == 0:
    asyncio.run(ask(client))
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""

CONNECT_ANEW = """
import asyncio, os, sys
import aeenc
from aeenc import errors

async def connected():
    async with aeenc.connect_async(encoder="127.0.0.1:1", timeout_s=0.1) as client:
        client.encoder

def blocking():
    with aeenc.connect(encoder="127.0.0.1:1", timeout_s=0.1) as client:
        client.encoder

ways = {"blocking": blocking, "awaiting": lambda: asyncio.run(connected())}
ways[sys.argv[1]]()
if os.fork() == 0:
    try:
        ways[sys.argv[2]]()
    except errors.FailedPrecondition as error:
        sys.stdout.write(error.message)
        sys.stdout.flush()
        os._exit(7)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""

FORK_BEFORE_USE = """
import os, sys
import aeenc
from aeenc import errors

if os.fork() == 0:
    try:
        aeenc.connect(encoder="127.0.0.1:1", timeout_s=0.1).encoder.encode(["a"])
    except errors.Unavailable:
        os._exit(7)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"}
    command = [sys.executable, "-c", script, *words]
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False
    )


FORKED = "nothing of aeenc may be connected in the parent before a fork; start workers with the spawn method"


@pytest.mark.parametrize("script", [FORK, FORK_OF_AWAITING])
def test_use_after_a_fork_raises_and_says_what_to_do(script: str) -> None:
    ended = run(script)
    assert ended.returncode == 7, ended.stderr
    assert FORKED in ended.stdout


@pytest.mark.parametrize("parent", ["blocking", "awaiting"])
@pytest.mark.parametrize("child", ["blocking", "awaiting"])
def test_a_child_of_a_process_that_has_connected_cannot_connect_and_is_told_why(parent: str, child: str) -> None:
    ended = run(CONNECT_ANEW, parent, child)
    assert ended.returncode == 7, (ended.returncode, ended.stdout, ended.stderr)
    assert FORKED in ended.stdout


def test_connecting_after_a_fork_works() -> None:
    ended = run(FORK_BEFORE_USE)
    assert ended.returncode == 7, ended.stderr

"""Forks of a process that has connected: no client works in the child, and says so."""

from __future__ import annotations

import pytest

from support.command import run_script

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

FORK_AND_CONNECT = """
import os, sys
import aeenc
from aeenc import errors

aeenc.connect(encoder="127.0.0.1:1", timeout_s=0.1).close()
if os.fork() == 0:
    try:
        aeenc.connect(encoder="127.0.0.1:1", timeout_s=0.1)
    except errors.FailedPrecondition as error:
        sys.stdout.write(error.message)
        sys.stdout.flush()
        os._exit(7)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""

FORK_AND_CONNECT_AWAITING = """
import asyncio, os, sys
import aeenc
from aeenc import errors

async def ask():
    async with aeenc.connect_async(encoder="127.0.0.1:1", timeout_s=0.1, retry=False) as client:
        try:
            await client.encoder.encode(["a"])
        except errors.Unavailable:
            pass

asyncio.run(ask())
if os.fork() == 0:
    try:
        asyncio.run(ask())
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


@pytest.mark.parametrize("script", [FORK, FORK_OF_AWAITING, FORK_AND_CONNECT, FORK_AND_CONNECT_AWAITING])
def test_use_after_a_fork_raises_and_says_what_to_do(script: str) -> None:
    ended = run_script(script)
    assert ended.returncode == 7, ended.stderr
    assert "nothing of aeenc may be connected in the parent before a fork; start workers with the" in ended.stdout


def test_connecting_after_a_fork_works() -> None:
    ended = run_script(FORK_BEFORE_USE)
    assert ended.returncode == 7, ended.stderr

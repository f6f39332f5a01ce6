"""A process that has connected and forks: its children are refused in words, and one that had not may connect."""

from __future__ import annotations

import pytest

from support.command import run_script

# In a process of its own: forking this one would copy pytest's threads and locks. It prints how each child ended.
FORKS = """
import asyncio, os
import aeenc
from aeenc import errors

def blocking():
    return aeenc.connect(encoder="127.0.0.1:1", timeout_s=0.1).encoder

def idle():
    return aeenc.connect_async(encoder="127.0.0.1:1", timeout_s=0.1)

async def awaiting():
    return idle().encoder

async def encode(client):
    await client.encoder.encode(["a"])

def fork(do):
    if os.fork() == 0:
        try:
            do()
        except errors.AeencError as error:
            print(type(error).__name__, error.message, flush=True)
        os._exit(0)
    os.wait()

unused = idle()
fork(lambda: blocking().encode(["a"]))
if {parent!r} == "blocking":
    use = blocking().encode
else:
    client = asyncio.new_event_loop().run_until_complete(awaiting())
    use = lambda texts: asyncio.run(client.encode(texts))
for do in (lambda: use(["a"]), blocking, lambda: asyncio.run(awaiting()), lambda: asyncio.run(encode(unused))):
    fork(do)
"""
FORKED = "nothing of aeenc may be connected in the parent before a fork; start workers with the spawn method"


@pytest.mark.parametrize("parent", ["blocking", "awaiting"])
def test_after_a_fork_a_child_may_connect_unless_its_parent_had_and_is_told_why(parent: str) -> None:
    ended = run_script(FORKS.format(parent=parent))
    before, *after = ended.stdout.splitlines()
    assert before.startswith("Unavailable "), (before, ended.stderr)
    assert len(after) == 4, ended.stderr
    assert all(told.startswith("FailedPrecondition ") and FORKED in told for told in after), after

"""`aeenc oracle gold` as a process: it says where it listens, answers, and goes when told."""

import json
import signal
import subprocess
import sys

import pytest

from aeenc import Channel, errors
from aeenc.oracle import EXPLAINS, REFUSES, Candidate, Task, Verdict
from aeenc.oracles.client import OracleClient

COMMAND = [sys.executable, "-c", "from aeenc.cli.main import main; main()", "--json", "oracle", "gold"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_gold_oracle_serves_until_it_is_told_to_stop(trees, number):
    command = [*COMMAND, "--trees", trees, "--mode", "subtree", "--address", "127.0.0.1:0", "--token", "secret"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:  # noqa: ASYNC220 -- nothing else runs in this loop
        try:
            told = json.loads(process.stdout.readline())
            assert told["oracle"] == "gold"
            candidates = tuple(Candidate(text, text, 1, 0.5) for text in ("iron is magnetic", "ice is light"))
            task = Task("t", "run", "the nail moves", (), (), candidates)
            with pytest.raises(errors.Unauthenticated):
                await judge(told["address"], task, None)
            [answer] = await judge(told["address"], task, "secret")
        finally:
            process.send_signal(number)
            _, stderr = process.communicate(timeout=5)
    assert dict(answer.verdicts) == {
        "iron is magnetic": Verdict(EXPLAINS, leaf=True),
        "ice is light": Verdict(REFUSES),
    }
    assert (process.returncode, stderr) == (0, "")


async def judge(address, task, token):
    client = OracleClient(Channel(address, token=token))
    try:
        return await client.judge("run", [task], timeout_s=5)
    finally:
        await client.channel.close()


async def test_an_open_address_or_an_unknown_split_is_wrong_use(aeenc, trees):
    assert (await aeenc("oracle", "gold", "--trees", trees, "--split", "test")).code == 2

"""The examples do what they say: an oracle in ten lines of Python, and one in Node from the protos alone."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aeenc import Channel, errors
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, Candidate, Task, Verdict
from aeenc.oracle import ask as ask_here
from aeenc.oracles.client import Answer, OracleClient
from services.launcher.processes import free_port
from support.waiting import reached

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NODE = EXAMPLES / "node_oracle"
TEXTS = ["a nail is made of iron", "iron is a kind of metal", "the moon is round", "a magnet can attract iron", ""]
TASK = Task(
    "t",
    "run",
    "a magnet can attract an iron nail",
    ("root",),
    (),
    tuple(Candidate(f"p{n}", text, n + 1, 0.5) for n, text in enumerate(TEXTS)),
)


@contextmanager
def running(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


async def ask(address: str, token: str | None = None, tasks: tuple[Task, ...] = (TASK,)) -> list[Answer]:
    client = OracleClient(Channel(address, token=token, timeout_s=20))
    try:
        return await reached(lambda: client.judge("run", tasks), 200)
    finally:
        await client.channel.close()


async def test_ten_lines_of_python_are_an_oracle(tmp_path: Path):
    source = (EXAMPLES / "ten_lines.py").read_text()
    code = [line for line in source.splitlines() if line.strip() and not line.startswith('"""')]
    assert len(code) <= 10
    port = free_port(set())
    moved = tmp_path / "oracle.py"
    moved.write_text(source.replace("127.0.0.1:50055", f"127.0.0.1:{port}"))
    with running([sys.executable, str(moved)]):
        [answer] = await ask(f"127.0.0.1:{port}")
    assert answer.annotator == "mine"
    assert [verdict.judgement for _, verdict in answer.verdicts] == [EXPLAINS, EXPLAINS, REFUSES, EXPLAINS, REFUSES]


async def expected() -> dict[str, int]:
    """What the Python example says, whose rule the one in Node follows."""
    spec = importlib.util.spec_from_file_location("own_oracle", EXAMPLES / "own_oracle.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    verdicts: dict[str, Verdict] = await ask_here(module.SharedWords(), TASK)
    return {name: verdict.judgement for name, verdict in verdicts.items()}


async def judge_in_node(folder: Path) -> None:
    """Runs the example in `folder` and compares its verdicts with those of the example in Python."""
    environment = {**os.environ, "AEENC_ORACLE_TOKEN": "secret"}
    with running(["node", str(folder / "oracle.js"), "127.0.0.1:0"], env=environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        address = json.loads(line)["address"]
        with pytest.raises(errors.Unauthenticated):
            await ask(address, "guess")
        other = Task("other", "run", "nobody knows", (), (), ())
        first, second = await ask(address, "secret", (TASK, other))
    assert (first.task_id, first.annotator) == ("t", "node-shared-words")
    judged = {name: verdict.judgement for name, verdict in first.verdicts}
    assert judged == await expected()
    assert set(judged.values()) == {EXPLAINS, ABSTAINS, REFUSES}
    assert (second.task_id, second.verdicts) == ("other", ())


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
@pytest.mark.skipif(
    not (NODE / "node_modules").is_dir(), reason="run `npm ci` in examples/node_oracle, or make test-sdk"
)
async def test_an_oracle_in_node_judges_as_the_one_in_python():
    await judge_in_node(NODE)


@pytest.mark.sdk
@pytest.mark.skipif(shutil.which("npm") is None, reason="Node and npm are not installed")
async def test_an_oracle_in_node_installs_and_judges(tmp_path: Path):
    folder = tmp_path / "examples" / "node_oracle"
    shutil.copytree(NODE, folder, ignore=shutil.ignore_patterns("node_modules"))
    shutil.copytree(EXAMPLES.parent / "protos", tmp_path / "protos")
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=folder, check=True, timeout=300)  # noqa: ASYNC221
    await judge_in_node(folder)

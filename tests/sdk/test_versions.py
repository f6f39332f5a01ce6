"""The SDK, and the settings of the services, at the lowest and the highest versions of what they depend on.

Needs a package index; `make test-sdk`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOWEST = ["googleapis-common-protos==1.69.2", "grpcio==1.72.2", "numpy==1.26.0", "protobuf==6.30.0"]
SCRIPT = """
import asyncio, numpy as np, aeenc
from aeenc import vectors
from aeenc.oracles.client import OracleClient

class Even(aeenc.Oracle):
    def judge(self, task):
        return [c.id for c in task.candidates if int(c.id) % 2 == 0]

async def main():
    server = await Even().start("127.0.0.1:0")
    client = OracleClient(aeenc.Channel(f"127.0.0.1:{server.port}"))
    task = aeenc.Task("t", "r", "query", (), (), tuple(aeenc.Candidate(str(n), "text", n, 0.5) for n in range(4)))
    (answer,) = await client.judge("r", [task])
    assert [verdict.judgement for _, verdict in answer.verdicts] == [1, 2, 1, 2], answer
    try:
        await aeenc.EncoderClient(aeenc.Channel("127.0.0.1:1", timeout_s=0.3)).encode(["x"])
    except aeenc.errors.AeencError as error:
        assert error.code in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
    await client.channel.close()
    await server.stop()

rows = np.arange(6, dtype=np.float32).reshape(2, 3)
assert np.array_equal(vectors.from_proto(vectors.to_proto(rows)), rows)
asyncio.run(main())
blocking = aeenc.connect()
blocking.close()
print("works")
"""


@pytest.mark.sdk
@pytest.mark.parametrize("pins", [LOWEST, []], ids=["lowest", "highest"])
def test_the_sdk_works_with_nothing_but_its_four_dependencies(tmp_path: Path, pins: list[str]):
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    package = str(ROOT / "clients" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", package, *pins], check=True, timeout=300)
    done = subprocess.run([python, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert done.stdout.strip() == "works", done.stderr


@pytest.mark.sdk
@pytest.mark.parametrize("service", ["encoder", "index", "sampler", "trainer"])
def test_the_services_read_their_settings_with_the_lowest_pydantic_settings_that_they_allow(
    tmp_path: Path, service: str
):
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [lowest] = (one.replace(">=", "==") for one in dependencies if one.startswith("pydantic-settings"))
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path), lowest]
    subprocess.run(install, check=True, timeout=300)
    search = os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "clients" / "python")])
    command = [sys.executable, "-m", f"services.{service}", "--metrics-port", "much"]
    environment = {**os.environ, "PYTHONPATH": search}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 2, done.stderr
    assert "(--metrics-port): Input should be a valid integer" in done.stderr

"""The SDK at the lowest and highest versions of what it depends on, and in later Pythons, in environments of their own.

Needs a package index; `make test-sdk`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SDK = str(ROOT / "clients" / "python")
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
    assert [verdict.judgement for verdict in answer.verdicts] == [1, 2, 1, 2], answer
    try:
        await aeenc.EncoderClient(aeenc.Channel("127.0.0.1:1", timeout_s=0.3)).encode(["x"])
    except aeenc.errors.AeencError as error:
        assert error.code in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
    for wrong in ("x", ["x", 3], 3):
        try:
            await aeenc.EncoderClient(aeenc.Channel("127.0.0.1:1")).encode(wrong)
        except aeenc.errors.InvalidArgument as error:
            assert error.message.startswith("texts"), error
    await client.channel.close()
    await server.stop()

rows = np.arange(6, dtype=np.float32).reshape(2, 3)
assert np.array_equal(vectors.from_proto(vectors.to_proto(rows)), rows)
asyncio.run(main())
blocking = aeenc.connect()
blocking.close()
print("works")
"""


def interpreter(version: str) -> str | None:
    """A Python of this version on this machine: on the search path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in (shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))):
        if path and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            return path  # pyenv's shims are on the search path and fail
    return None


def install(python: str, folder: Path, *packages: str) -> str:
    """Makes an environment with the packages; the path of its Python."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True, timeout=120)
    own = str(folder / "bin" / "python")
    subprocess.run([own, "-m", "pip", "install", "-q", *packages], check=True, timeout=300)
    return own


def check(python: str, folder: Path) -> None:
    done = subprocess.run([python, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False, cwd=folder)
    assert done.stdout.strip() == "works", done.stderr


@pytest.mark.sdk
@pytest.mark.parametrize("pins", [LOWEST, []], ids=["lowest", "highest"])
def test_the_sdk_works_with_nothing_but_its_four_dependencies(tmp_path: Path, pins: list[str]):
    check(install(sys.executable, tmp_path / "venv", SDK, *pins), tmp_path)


@pytest.mark.sdk
@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_the_sdk_and_its_command_work_with_later_pythons(tmp_path: Path, version: str):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    own = install(python, tmp_path / "venv", f"{SDK}[cli]")
    check(own, tmp_path)
    command = [str(Path(own).with_name("aeenc")), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert "0." in done.stdout, done.stderr


def with_the_lowest(package: str, requirements: list[str], folder: Path, *options: str) -> dict[str, str]:
    """Installs the lowest version of a package that is allowed; the environment in which it goes before all others."""
    [lowest] = (one.replace(">=", "==") for one in requirements if one.startswith(package))
    command = [sys.executable, "-m", "pip", "install", "-q", *options, "--target", str(folder), lowest]
    subprocess.run(command, check=True, timeout=300)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), SDK])}


def run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


@pytest.mark.sdk
def test_the_command_line_works_with_the_lowest_typer_that_it_allows(tmp_path: Path):
    extras = tomllib.loads((Path(SDK) / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    done = run(with_the_lowest("typer", extras["cli"], tmp_path), "aeenc.cli.main", "retrieve", "--help")
    assert (done.returncode, "hybrid" in done.stdout) == (0, True), done.stderr


@pytest.mark.sdk
def test_the_services_read_their_settings_with_the_lowest_pydantic_settings_that_they_allow(tmp_path: Path):
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    environment = with_the_lowest("pydantic-settings", dependencies, tmp_path, "--no-deps")
    for service in ("encoder", "index", "sampler", "trainer"):
        done = run(environment, f"services.{service}", "--metrics-port", "much")
        assert done.returncode == 2, done.stderr
        assert "(--metrics-port): Input should be a valid integer" in done.stderr

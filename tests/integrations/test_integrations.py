"""Each integration in an environment of its own, at the lowest and highest versions, against a running fleet.

Needs a package index; `make test-integrations`. The tests themselves stand in clients/*/tests.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tools.pinned_venv import PinnedVenv

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "clients"
DOCS = ROOT / "docs" / "integrations.md"
OWN = {"python", "workbench"}  # tested by the default suite and by `make test-browser`
DISTRIBUTIONS = sorted(path.parent.name for path in CLIENTS.glob("*/pyproject.toml") if path.parent.name not in OWN)
IGNORED = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", ".*_cache")


class Environment:
    """A virtual environment with the SDK and one distribution, both built from copies that nothing else writes to."""

    def __init__(self, folder: Path, name: str) -> None:
        self.source, self._sdk = folder / name, folder / "python"
        for copy in (self.source, self._sdk):
            shutil.copytree(CLIENTS / copy.name, copy, ignore=IGNORED)
        self.project: dict[str, Any] = tomllib.loads((self.source / "pyproject.toml").read_text())["project"]
        self._venv = PinnedVenv(folder / "venv")

    @property
    def packages(self) -> list[str]:
        """The import names of the distribution."""
        folders = [path.parent.relative_to(self.source) for path in self.source.rglob("py.typed")]
        return sorted(".".join(folder.parts) for folder in folders)

    def install(self, pins: list[str]) -> None:
        self._venv.create()
        self._venv.install(str(self._sdk), f"{self.source}[test]", *pins)

    def lowest(self) -> list[str]:
        """The framework at the lowest version that the distribution allows."""
        own = [line for line in self.project["dependencies"] if not line.startswith("aeenc")]
        return [f"{re.split('[>=<,]', line)[0]}=={re.findall(r'>=([0-9.]+)', line)[0]}" for line in own]

    async def run(self, *arguments: str, fleet: dict[str, str]) -> None:
        """Runs Python in the distribution's folder; what it wrote is the message of a failure."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("AEENC_", "PYTEST_"))}
        process = await asyncio.create_subprocess_exec(
            str(self._venv.python),
            *arguments,
            cwd=self.source,
            env={**environment, **fleet, "HAYSTACK_TELEMETRY_ENABLED": "False"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()


def examples_of(packages: list[str]) -> list[str]:
    """The Python examples of the page that use one of these packages."""
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [block for block in blocks if any(f"{package} import" in block for package in packages)]


@pytest.mark.integrations
@pytest.mark.parametrize("versions", ["lowest", "highest"])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
async def test_a_distribution_works_beside_a_running_fleet(
    name: str, versions: str, fleet: dict[str, str], tmp_path: Path
):
    folder = tmp_path / "clients"
    environment = Environment(folder, name)
    await asyncio.to_thread(environment.install, environment.lowest() if versions == "lowest" else [])
    await environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", fleet=fleet)
    if versions == "highest":
        await environment.run("-m", "mypy", fleet=fleet)
    examples = examples_of(environment.packages)
    assert examples, f"docs/integrations.md has no example of {name}"
    for example in examples:
        await environment.run("-c", example, fleet=fleet)

"""The notebooks of examples/, executed from top to bottom beside a fleet of their own. Needs a package index.

`make test-sdk`. Two of them train: some minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.launcher.processes import free_port
from tools.pinned_venv import ROOT, PinnedVenv

NOTEBOOKS = sorted((ROOT / "examples").glob("*/*.ipynb"))
ORACLE = "127.0.0.1:50060"
EXECUTE = """
import sys, nbformat, nbclient
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": sys.argv[2]}}).execute()
nbformat.write(notebook, sys.argv[1])
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """`aeenc up` with the corpus `science`; yields its addresses, that of the oracle to be started among them."""
    folder = tmp_path_factory.mktemp("fleet")
    oracle = f"127.0.0.1:{free_port(set())}"

    def aeenc(*arguments: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AEENC_")}
        command = [str(Path(sys.executable).with_name("aeenc")), *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    sample = str(ROOT / "data" / "sample")
    aeenc("up", "--base-port", "0", "--gold", sample, "--oracle", f"mine={oracle}", "--oracle", f"cook={oracle}")
    try:
        aeenc("corpus", "build", "science", "--data", sample)
        targets = json.loads((folder / ".aeenc" / "fleet.json").read_text())["targets"]
        yield {**targets, "mine": oracle}
    finally:
        aeenc("down")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with Jupyter's kernel and the SDK, and nothing of the services."""
    venv = PinnedVenv(tmp_path_factory.mktemp("notebooks") / "venv")
    venv.create()
    venv.install("nbclient>=0.10", "ipykernel>=7", str(ROOT / "clients" / "python"))
    return venv.python


def moved(notebook: dict[str, Any], fleet: dict[str, str]) -> dict[str, Any]:
    """The notebook with the fleet's addresses instead of the default ones."""
    given = ", ".join(f'{name}="{fleet[name]}"' for name in ("encoder", "index", "sampler", "trainer"))
    text = json.dumps(notebook).replace(ORACLE, fleet["mine"])
    for name in ("connect", "connect_async"):
        text = text.replace(f"aeenc.{name}(", f"aeenc.{name}({json.dumps(given)[1:-1]}, ")
    return json.loads(text)


@pytest.mark.sdk
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, fleet: dict[str, str], python: Path, tmp_path: Path):
    kept = json.loads(path.read_text(encoding="utf-8"))
    copy = tmp_path / path.name
    copy.write_text(json.dumps(moved(kept, fleet)))
    done = subprocess.run(
        [str(python), "-c", EXECUTE, str(copy), str(path.parent)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    executed = json.loads(copy.read_text())
    for before, after in zip(kept["cells"], executed["cells"], strict=True):
        # Figures depend on the machine, versions on the run; whether a cell prints does not.
        assert bool(before.get("outputs")) == bool(after.get("outputs")), "".join(before["source"])

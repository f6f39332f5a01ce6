"""The extras for a GPU: what they name can be had together, with one onnxruntime and the CUDA libraries it needs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integrations
ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "clients/python/pyproject.toml")


@pytest.mark.parametrize(
    "extras",
    [("encoder-gpu",), ("index-gpu",), ("encoder-gpu", "encoder-torch"), ("encoder-gpu", "index-gpu")],
    ids="+".join,
)
def test_the_extras_of_a_gpu_resolve(extras: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "ours").write_text("aeenc\n")  # of this repository
    command = [str(Path(sys.executable).parent / "uv"), "pip", "compile", "--quiet", "--no-config"]
    command += ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"]
    command += [word for extra in extras for word in ("--extra", extra)]
    command += ["--excludes", str(tmp_path / "ours"), *SOURCES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    versions = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", done.stdout, re.MULTILINE))
    assert {"onnxruntime-gpu", "grpcio"} <= versions.keys()
    assert "onnxruntime" not in versions, "it would own the same module"
    assert any(name.startswith("nvidia-cudnn") for name in versions)
    if "encoder-torch" in extras:
        assert versions["torch"].startswith("2.13.")

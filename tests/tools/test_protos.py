"""After a release, a change of the protos may break neither a user's program nor stored bytes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tools import protos


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", "-C", root, *identity, *arguments], check=True, capture_output=True)


def test_protos_are_compared_with_the_last_release_from_its_tag_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    for name in ("buf.yaml", "protos"):
        here, there = protos.ROOT / name, tmp_path / name
        _ = shutil.copytree(here, there) if here.is_dir() else shutil.copyfile(here, there)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "Release 0.1.0")
    monkeypatch.setattr(protos, "ROOT", tmp_path)
    changed = tmp_path / "protos" / "aeenc" / "v1" / "encoder.proto"
    changed.write_text(changed.read_text().replace("rpc Encode(", "rpc EncodeTexts("))

    git(tmp_path, "tag", "wip")
    assert protos.breaking() == 0
    assert "no release to compare with" in capfd.readouterr().out

    git(tmp_path, "tag", "v0.1.0")
    assert protos.breaking() != 0
    assert '"Encode" on service "EncoderService" was deleted' in capfd.readouterr().out
    git(tmp_path, "checkout", "--quiet", ".")
    assert protos.breaking() == 0

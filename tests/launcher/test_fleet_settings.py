"""The settings that a fleet passes to its services."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.launcher.fleet import Fleet, Options

TARGETS = dict.fromkeys(("encoder", "index", "sampler", "trainer"), "127.0.0.1:1")


def test_curves_of_jobs_lie_in_the_home_unless_another_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("AEENC_TRAINER_TENSORBOARD_DIR", raising=False)
    fleet = Fleet(tmp_path)
    told = fleet._settings("trainer", Options(), TARGETS, "redis://127.0.0.1:1/0")
    assert told["tensorboard_dir"] == str(tmp_path.resolve() / "tensorboard")
    for named in ("/elsewhere", ""):
        monkeypatch.setenv("AEENC_TRAINER_TENSORBOARD_DIR", named)
        assert "tensorboard_dir" not in fleet._settings("trainer", Options(), TARGETS, "redis://127.0.0.1:1/0")

"""Refusals of `aeenc up`, and their messages."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from aeenc import errors
from services.launcher.fleet import Fleet, Options


def test_a_taken_port_is_named_with_the_remedy(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(errors.FailedPrecondition, match=rf"127.0.0.1:{port} \(encoder\).*--base-port"):
            Fleet(tmp_path).up(Options(base_port=port))
    assert Fleet(tmp_path).running() == {}


def test_a_home_of_another_format_is_left_alone(tmp_path: Path):
    (tmp_path / "VERSION").write_text('{"format_version": 99}')
    with pytest.raises(errors.FailedPrecondition, match="format_version 99"):
        Fleet(tmp_path).up(Options(base_port=0))
    assert not (tmp_path / "fleet.json").exists()


def test_a_service_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AEENC_TRAINER_BASE_MODEL", str(tmp_path / "nothing"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    fleet = Fleet(tmp_path / "home")
    try:
        with pytest.raises(errors.FailedPrecondition, match="trainer ended while starting") as caught:
            fleet.up(Options(base_port=0))
        assert "AEENC_TRAINER_BASE_MODEL" in caught.value.message
    finally:
        fleet.down()


def test_only_one_up_works_on_a_home_at_a_time(tmp_path: Path):
    fleet = Fleet(tmp_path)
    with fleet._locked(), pytest.raises(errors.FailedPrecondition, match="another `aeenc up`"):
        Fleet(tmp_path).up(Options(base_port=0))

"""Tokens that no caller could send stop the start; a tokens file that cannot be read is read later."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
from kit.test_credentials import Clock, credential, gate, refusal, write
from kit.test_server import Settings
from pydantic import ValidationError

from services.sampler.settings import OracleSettings

TOKENS = ("token", "admin_token", "peer_token", "peer_admin_token")


@pytest.mark.parametrize(
    "value", ["se cret", "se\tcret", "tök", "a\nb", "a" * 9000], ids=lambda value: ascii(value)[:20]
)
@pytest.mark.parametrize("name", TOKENS)
def test_a_token_that_no_caller_could_send_stops_the_start_and_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    monkeypatch.setenv(variable := f"AEENC_TEST_{name.upper()}", value)
    with pytest.raises(SystemExit, match="2"):
        Settings.from_command_line([])
    told = capsys.readouterr().err
    assert re.match(rf"{variable} \(--[a-z-]+\): .*not visible ASCII.*openssl rand", told)
    assert value not in told
    with pytest.raises(ValidationError, match="not visible ASCII"):
        OracleSettings(target="127.0.0.1:1", token=value)


async def test_the_line_end_after_a_token_of_the_settings_is_no_part_of_it() -> None:
    settings = Settings(**dict.fromkeys(TOKENS, "secret\n"))
    assert {getattr(settings, name) for name in TOKENS} == {"secret"}


def test_a_file_that_could_not_be_read_for_a_moment_is_read_by_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "t", credential("lab", "old"))
    one = gate(path, Clock())
    write(path, credential("lab", "fresh"))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        assert not one.reload()
    assert "Too many open files" in one.problem
    assert one.reload()
    assert refusal(one, "old").startswith("UNAUTHENTICATED: an unknown"), "what was revoked is out of force"

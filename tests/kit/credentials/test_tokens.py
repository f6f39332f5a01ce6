"""Tokens in the settings: those that no caller could send stop the start."""

from __future__ import annotations

import re

import pytest
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

"""Gateway and workbench share their settings: an invalid one stops the start and is named."""

from __future__ import annotations

import re

import pytest
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from aeenc.adapters.http import HttpSettings


class Settings(HttpSettings):
    model_config = SettingsConfigDict(env_prefix="AEENC_DOOR_")
    program = "aeenc-door"

    allowed_host: list[str] = Field([])


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PORT", "many", r"AEENC_DOOR_PORT \(--port\): Input should be a valid integer"),
        ("ALLOWED_HOST", "door.example", r"AEENC_DOOR_ALLOWED_HOST \(--allowed-host\): cannot be read; give JSON"),
        ("TLS_CERT", __file__, "aeenc-door: .*tls_cert and tls_key belong together"),
    ],
)
@pytest.mark.parametrize("is_flag", [False, True])
def test_a_wrong_setting_stops_the_start_with_its_name(monkeypatch, capsys, name, value, said, is_flag):
    if is_flag:
        arguments = [f"--{name.lower().replace('_', '-')}", "[" if name == "ALLOWED_HOST" else value]
    else:
        arguments = []
        monkeypatch.setenv(f"AEENC_DOOR_{name}", value)
    with pytest.raises(SystemExit, match="2"):
        Settings.from_command_line(arguments)
    assert re.match(said, capsys.readouterr().err)

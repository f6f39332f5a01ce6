"""Addresses and credentials of the services: what is given, the environment, the local fleet's file, the defaults.

The variables are AEENC_ENCODER, AEENC_INDEX, AEENC_SAMPLER, AEENC_TRAINER, AEENC_TOKEN,
AEENC_ADMIN_TOKEN and AEENC_CA. The fleet's file is `.aeenc/fleet.json` of the working directory (the folder in
AEENC_HOME instead, if set); the launcher writes it:

    {"format_version": 1, "targets": {"encoder": "127.0.0.1:50051", "index": …, "sampler": …, "trainer": …,
                                      "oracle": …}}
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aeenc.errors import InvalidArgument
from aeenc.transport.channel import Channel

ENCODER = "127.0.0.1:50051"
INDEX = "127.0.0.1:50052"
SAMPLER = "127.0.0.1:50053"
TRAINER = "127.0.0.1:50054"
ORACLE = "127.0.0.1:50055"
FLEET_FORMAT = 1
NAMES = ("encoder", "index", "sampler", "trainer", "oracle")
_VARIABLES = ("encoder", "index", "sampler", "trainer", "token", "admin_token", "ca")  # AEENC_ and the name in capitals


@dataclass(frozen=True)
class Targets:
    """Addresses and credentials of the services. `timeout_s` limits one call, its retries included."""

    encoder: str = ENCODER
    index: str = INDEX
    sampler: str = SAMPLER
    trainer: str = TRAINER
    oracle: str = ORACLE
    token: str | None = None
    admin_token: str | None = None
    ca: Path | str | None = None
    timeout_s: float = 8.0

    @classmethod
    def find(cls, **given: Any) -> Targets:
        """Finds each field: as given unless None, else its variable, else the local fleet's file, else the default.

        Raises InvalidArgument for a malformed fleet file.
        """
        set_here = {name: os.environ.get(f"AEENC_{name.upper()}") or None for name in _VARIABLES}
        chosen = {**set_here, **{name: value for name, value in given.items() if value is not None}}
        return cls(**{**read_fleet(home()), **{name: value for name, value in chosen.items() if value is not None}})

    def options(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Returns the arguments of `aeenc.connect` and `aeenc.connect_async`."""
        return {
            "encoder": self.encoder,
            "index": self.index,
            "sampler": self.sampler,
            "trainer": self.trainer,
            "token": self.token,
            "admin_token": self.admin_token,
            "ca": self.ca,
            "timeout_s": timeout_s or self.timeout_s,
        }

    def channel(self, target: str, *, cert: Path | str | None = None, key: Path | str | None = None) -> Channel:
        """Opens a connection to one of the services. Raises InvalidArgument for half a key pair."""
        return Channel(target, token=self.token, ca=self.ca, cert=cert, key=key, timeout_s=self.timeout_s)


def home() -> Path:
    """Returns the folder of the local fleet: AEENC_HOME, or `.aeenc` in the working directory."""
    return Path(os.environ.get("AEENC_HOME") or ".aeenc")


def read_fleet(folder: Path) -> dict[str, str]:
    """Reads the addresses in a folder's fleet.json, by service; none without the file. Raises InvalidArgument."""
    path = folder / "fleet.json"
    try:
        fleet = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except json.JSONDecodeError as error:
        raise InvalidArgument(f"{path}:{error.lineno}: not JSON ({error.msg}); restart the fleet") from None
    except UnicodeDecodeError:
        raise InvalidArgument(f"{path}:1: not UTF-8; restart the fleet") from None
    if not isinstance(fleet, dict) or fleet.get("format_version") != FLEET_FORMAT:
        raise InvalidArgument(f"{path}:1: format_version must be {FLEET_FORMAT}; another release has written it")
    targets = fleet.get("targets")
    if not isinstance(targets, dict) or not all(isinstance(target, str) for target in targets.values()):
        raise InvalidArgument(f"{path}:1: `targets` must be an object, service to host:port; restart the fleet")
    return {name: target for name, target in targets.items() if name in NAMES}

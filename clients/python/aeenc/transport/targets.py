"""Addresses and credentials of the services: what is given, the environment, the local fleet's file, the defaults.

The variables are AEENC_ENCODER, AEENC_INDEX, AEENC_SAMPLER, AEENC_TRAINER, AEENC_TOKEN, AEENC_ADMIN_TOKEN, AEENC_CA,
AEENC_CERT, AEENC_KEY, AEENC_TLS, AEENC_PLAIN_TOKEN and AEENC_TIMEOUT_S. The fleet's file is `.aeenc/fleet.json` of the
working directory (the folder in AEENC_HOME instead, if set); the launcher writes it:

    {"format_version": 1, "targets": {"encoder": "127.0.0.1:50051", "index": …, "sampler": …, "trainer": …,
                                      "oracle": …}}
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from aeenc.errors import FailedPrecondition, InvalidArgument
from aeenc.files.lines import json_file
from aeenc.transport.addresses import is_local, split
from aeenc.transport.channel import Channel, Retry
from aeenc.transport.checks import check_seconds

FLEET_FORMAT = 1
SERVICES = ("encoder", "index", "sampler", "trainer")
NAMES = (*SERVICES, "oracle")


class ConnectOptions(TypedDict, total=False):
    """The options of `aeenc.connect`. Each is a variable, too: AEENC_ and the name in capitals."""

    encoder: str | None
    index: str | None
    sampler: str | None
    trainer: str | None
    token: str | None
    admin_token: str | None
    ca: Path | str | None
    cert: Path | str | None
    key: Path | str | None
    tls: bool | None
    plain_token: bool | None
    timeout_s: float | None


_OPTIONS = tuple(ConnectOptions.__annotations__)


@dataclass(frozen=True)
class Targets:
    """Addresses and credentials of the services. `timeout_s` limits one call, its retries included."""

    encoder: str = "127.0.0.1:50051"
    index: str = "127.0.0.1:50052"
    sampler: str = "127.0.0.1:50053"
    trainer: str = "127.0.0.1:50054"
    oracle: str = "127.0.0.1:50055"
    token: str | None = None
    admin_token: str | None = None
    ca: Path | str | None = None
    cert: Path | str | None = None
    key: Path | str | None = None
    tls: bool = False
    plain_token: bool = False
    timeout_s: float = 60.0

    @classmethod
    def find(cls, **given: Any) -> Targets:
        """Finds each field: as given unless None, else its variable, else the local fleet's file, else the default.

        With `ca` given as "", connections are plain, and the variables of the client certificate and AEENC_TLS do not
        count. Raises InvalidArgument for a malformed fleet file, timeout or switch, and for `ca` and `tls` that
        contradict each other; FailedPrecondition for a fleet file of another account; where all addresses are known,
        nobody reads it.
        """
        found: dict[str, Any] = {name: os.environ.get(f"AEENC_{name.upper()}") or None for name in _OPTIONS}
        if given.get("ca") == "":
            found |= {"cert": None, "key": None, "tls": None}
        found |= {name: value for name, value in given.items() if value is not None}
        if found["timeout_s"] is not None:
            found["timeout_s"] = _seconds(found["timeout_s"])
        for name in ("tls", "plain_token"):
            if found[name] is not None:
                found[name] = _is_on(name, found[name])
        if found["ca"] is not None and found["tls"] is not None and bool(found["ca"]) != found["tls"]:
            way = "TLS" if found["ca"] else "plain"
            state, remedy = ("on" if found["tls"] else "off"), "leave out one of them (AEENC_TLS, AEENC_CA)"
            raise InvalidArgument.field(
                "tls", f"is {state}, and ca {str(found['ca'])!r} makes connections {way}; {remedy}"
            )
        fleet = {} if all(found[name] for name in SERVICES) else read_fleet(home())
        return cls(**{**fleet, **{name: value for name, value in found.items() if value is not None}})

    @property
    def are_tls(self) -> bool:
        """Whether connections are TLS."""
        return self.tls or bool(self.ca)

    def options(self) -> dict[str, Any]:
        """Returns the arguments of `aeenc.connect` and `aeenc.connect_async`."""
        return {**{name: getattr(self, name) for name in _OPTIONS}, "tls": self.are_tls}

    def channel(self, service: str, *, retry: Retry | bool = True, admin: bool = False) -> Channel:
        """Opens a connection to a service of SERVICES, with the admin credential if there is one and `admin` is set.

        Raises InvalidArgument for a malformed address, for half a key pair, for one without TLS, for `tls` to a Unix
        socket, and for a credential that would travel plain to another host.
        """
        target, told_by = getattr(self, service), f"{service}=, --{service} or AEENC_{service.upper()}"
        try:
            split(target, tls=self.are_tls)
        except InvalidArgument as error:
            raise InvalidArgument.field(service, f"{error.violations[0].description}, by {told_by}") from None
        return Channel(
            target,
            token=(admin and self.admin_token) or self.token,
            ca=self.ca,
            cert=self.cert,
            key=self.key,
            tls=self.tls,
            plain_token=self.plain_token,
            timeout_s=self.timeout_s,
            retry=retry,
            remedy=f"start it with `aeenc up`, or say where it is: {told_by}",
        )


def _seconds(value: Any) -> float:
    try:
        return check_seconds(float(value))
    except (TypeError, ValueError, OverflowError, InvalidArgument):
        remedy = "see also AEENC_TIMEOUT_S"
        raise InvalidArgument.field("timeout_s", f"must be seconds above 0, got {value!r:.60}; {remedy}") from None


def _is_on(name: str, value: Any) -> bool:
    switches = {"true": True, "1": True, "false": False, "0": False}
    if (is_on := switches.get(str(value).lower())) is None:
        raise InvalidArgument.field(name, f"must be true or false, got {value!r:.60}; see also AEENC_{name.upper()}")
    return is_on


def _is_here(target: str) -> bool:
    try:
        return is_local(target)
    except InvalidArgument:
        return False


def home() -> Path:
    """Returns the folder of the local fleet: AEENC_HOME, or `.aeenc` in the working directory."""
    return Path(os.environ.get("AEENC_HOME") or ".aeenc")


def read_fleet(folder: Path) -> dict[str, str]:
    """Reads the addresses in a folder's fleet.json, by service; none without the file.

    Raises InvalidArgument for a malformed one, FailedPrecondition for one that this account may not read.
    """
    path = folder / "fleet.json"
    try:
        fleet = json_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except PermissionError:
        variables = ", ".join(f"AEENC_{name.upper()}" for name in SERVICES)
        remedy = f"run as the account that started the fleet, or give all addresses ({variables})"
        raise FailedPrecondition(f"{path} is another account's; {remedy}") from None
    except InvalidArgument as error:
        raise InvalidArgument(f"{error.message}; restart the fleet") from None
    if not isinstance(fleet, dict) or fleet.get("format_version") != FLEET_FORMAT:
        raise InvalidArgument(f"{path}:1: format_version must be {FLEET_FORMAT}; another release has written it")
    targets = fleet.get("targets")
    if not isinstance(targets, dict) or not all(isinstance(target, str) for target in targets.values()):
        raise InvalidArgument(f"{path}:1: `targets` must be an object, service to host:port; restart the fleet")
    for name, target in targets.items():
        if name in NAMES and not _is_here(target):
            variable = f"AEENC_{name.upper()}"
            raise InvalidArgument(
                f"{path}:1: {name} is at {target!r}, and a fleet file may name this machine alone; give that address "
                f"by {variable}"
            )
    return {name: target for name, target in targets.items() if name in NAMES}

"""Checks of what a connection is given: time limits, tokens, and where a token may travel."""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path
from typing import Any

from aeenc import errors
from aeenc.transport.addresses import is_local, is_socket, split

_VISIBLE = re.compile(r"[!-~]{1,8192}")
REQUEST_ID = re.compile(r"[!-~]{1,64}")  # what services take; they give a call with another one an id of their own


class FirstConnected:
    """The process that has connected first. Its children by fork have gRPC's locks and not its threads."""

    def __init__(self) -> None:
        self._pid = 0

    def refuse_child(self) -> None:
        """Raises FailedPrecondition in a process that was forked from one that had connected."""
        if self._pid not in {0, os.getpid()}:
            raise errors.FailedPrecondition(
                f"process {self._pid} had connected before this one was forked from it, which gRPC does not outlive: "
                "nothing of aeenc may be connected in the parent before a fork; start workers with the spawn method, "
                "or connect in the child alone"
            )

    def remember(self) -> None:
        """Notes that this process connects. Raises as `refuse_child`."""
        self.refuse_child()
        self._pid = os.getpid()


FIRST_CONNECTED = FirstConnected()


def check_seconds(timeout_s: Any, field: str = "timeout_s") -> float:
    """Returns a time limit; inf is none. Raises InvalidArgument for one that is not above 0, or no number."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
        raise errors.InvalidArgument.field(field, f"must be seconds above 0, got {timeout_s!r:.60}; inf is no limit")
    return timeout_s


def bare_token(token: Any) -> str:
    """Returns a token without blanks around it. Raises ValueError for one that no header holds; it is not shown."""
    if not isinstance(token, str) or not _VISIBLE.fullmatch(bare := token.strip()):
        raise ValueError(
            "is blank or has characters, blanks among them, that are not visible ASCII, or more than 8,192; read it "
            "from its file anew, or make another by `openssl rand -hex 16`"
        )
    return bare


def credential(token: Any) -> list[tuple[str, str]]:
    """Returns the header. Raises InvalidArgument for a token that no header holds; it is not shown."""
    if token is None or token == "":
        return []
    try:
        return [("authorization", f"Bearer {bare_token(token)}")]
    except ValueError as error:
        raise errors.InvalidArgument.field("token", str(error)) from None


def check_tls(target: str, *, tls: bool, ca: object, cert: object, key: object) -> bool:
    """Returns whether a connection is TLS, by an authority of its own or by public ones.

    Raises InvalidArgument for half a key pair, for a pair without TLS, and for a socket whose certificate would have to
    be a public authority's.
    """
    if (cert is None) != (key is None):
        raise errors.InvalidArgument("cert and key belong together; give both or neither")
    if cert and not ca and not tls:
        raise errors.InvalidArgument.field(
            "cert",
            "needs TLS, and TLS needs ca, the certificate of the servers' authority, or tls, for public ones; give ca, "
            "too (or AEENC_CA; AEENC_TLS), or leave out cert and key (or AEENC_CERT and AEENC_KEY)",
        )
    if tls and not ca and any(map(is_socket, split(target, tls=True))):
        raise errors.InvalidArgument.field(
            "tls",
            f"is on, and {target} is a socket of this machine, which no public authority certifies; leave out tls "
            "(AEENC_TLS), or give ca",
        )
    return bool(tls or ca)


def tls_files(ca: Any, cert: Any, key: Any) -> tuple[bytes | None, bytes | None, bytes | None]:
    """Reads the authority's certificates, the key and its certificate, as gRPC takes them; None without a file.

    Raises InvalidArgument for an authority's file without certificates, and as `key_pair` does.
    """
    trusted = _file_bytes(ca, "ca") if ca else None
    try:
        if trusted is not None:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=trusted.decode("ascii", "ignore"))
    except (OSError, ValueError) as error:
        problem = f"{str(ca)[:200]!r} cannot be used ({error}); give a PEM file"
        raise errors.InvalidArgument.field("ca", problem) from None
    return trusted, *(key_pair(cert, key) if cert else (None, None))


def key_pair(cert: Any, key: Any) -> tuple[bytes, bytes]:
    """Reads a key and its certificate. Raises InvalidArgument for files that are no pair, which gRPC would not tell."""
    pair = _file_bytes(key, "key"), _file_bytes(cert, "cert")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=lambda: "")
    except (OSError, ValueError) as error:
        remedy = "give PEM files, and the key of the certificate"
        raise errors.InvalidArgument(f"cert {cert} and key {key} cannot be used ({error}); {remedy}") from None
    was_replaced = pair != (_file_bytes(key, "key"), _file_bytes(cert, "cert"))  # what was checked is not what was read
    return key_pair(cert, key) if was_replaced else pair


def _file_bytes(path: Any, field: str) -> bytes:
    """Reads a file of the connection. Raises InvalidArgument, naming the option, if that fails."""
    try:
        return Path(path).read_bytes()
    except (OSError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such name"
        raise errors.InvalidArgument.field(field, f"{str(path)[:200]!r} cannot be read ({reason})") from None


def check_request_id(request_id: Any) -> str:
    """Returns an id for `x-request-id`. Raises InvalidArgument for one that the services would replace."""
    if isinstance(request_id, str) and REQUEST_ID.fullmatch(request_id):
        return request_id
    raise errors.InvalidArgument.field("request_id", f"is {request_id!r:.60}; give 1 to 64 visible ASCII characters")


def refuse_plain_token(
    target: str, *, token: str | None, ca: object, plain_token: bool, tls: bool, **_: object
) -> None:
    """Raises InvalidArgument where a token would travel to another host on a connection without TLS."""
    if token and not (ca or tls or plain_token or is_local(target)):
        raise errors.InvalidArgument.field(
            "plain_token",
            f"is off, so no token travels to {target}, another host, without TLS; give ca (AEENC_CA; of a service "
            "PEER_CA), or tls=True (AEENC_TLS=true) where a public authority certifies it or, in a network that you "
            "trust, plain_token=True (AEENC_PLAIN_TOKEN=true; PLAIN_TOKEN)",
        )

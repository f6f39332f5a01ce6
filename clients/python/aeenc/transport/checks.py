"""Checks of what a connection is given: time limits, tokens, and where a token may travel."""

from __future__ import annotations

import re
from typing import Any

from aeenc import errors
from aeenc.transport.addresses import is_local, is_socket, split

_VISIBLE = re.compile(r"[!-~]{1,8192}")


def check_seconds(timeout_s: Any) -> float:
    """Returns a time limit; inf is none. Raises InvalidArgument for one that is not above 0, or no number."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
        raise errors.InvalidArgument.field("timeout_s", f"must be seconds above 0, got {timeout_s!r}; inf is no limit")
    return timeout_s


def bare_token(token: str) -> str:
    """Returns a token without blanks around it. Raises ValueError for one that no header holds; it is not shown."""
    if not _VISIBLE.fullmatch(bare := token.strip()):
        raise ValueError(
            "is blank or has characters, blanks among them, that are not visible ASCII, or more than 8,192; read it "
            "from its file anew, or make another by `openssl rand -hex 16`"
        )
    return bare


def credential(token: str | None) -> list[tuple[str, str]]:
    """Returns the header. Raises InvalidArgument for a token that no header holds; it is not shown."""
    if not token:
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


def refuse_plain_token(
    target: str, *, token: str | None, ca: object, plain_token: bool, tls: bool = False, **_: object
) -> None:
    """Raises InvalidArgument where a token would travel to another host on a connection without TLS."""
    if token and not (ca or tls or plain_token or is_local(target)):
        raise errors.InvalidArgument.field(
            "plain_token",
            f"is off, so no token travels to {target}, another host, without TLS; give ca (AEENC_CA; of a service "
            "PEER_CA), or tls=True (AEENC_TLS=true) where a public authority certifies it or, in a network that you "
            "trust, plain_token=True (AEENC_PLAIN_TOKEN=true; PLAIN_TOKEN)",
        )

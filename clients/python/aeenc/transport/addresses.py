"""The servers that a target names: one address, a static list, or the addresses of a DNS name.

host:port, unix:path         one server
host:port,host:port          these servers, in turn
ipv4:1.2.3.4:1,5.6.7.8:1     the same, in gRPC's spelling
dns:///name:port             all addresses of the name, looked up again and again

By TLS a host may stand without a port, which is 443 then.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from typing import Any

from aeenc.errors import InvalidArgument, Unavailable

LOOKUP_S = 5.0
_DNS = "dns:"
_LISTS = ("ipv4:", "ipv6:")
_SOCKETS = ("unix:", "unix-abstract:")
_OTHERS = (*_SOCKETS, "vsock:", "xds:")  # gRPC's own, without a host and a port
_ASKS = re.compile("dns://[^/]")  # a name server of its own
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # as gRPC's core looks for them
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")  # ends of hosts
_SERVER = re.compile(r"(\[[^/@ ]+\]|[^/@: ]*)(?::([0-9]{1,5}))?")
_TLS_PORT = 443  # gRPC's own default, also without TLS


@dataclass(frozen=True)
class Address:
    """One server: the gRPC target, and the name that its certificate must bear ("": the target's own)."""

    target: str
    name: str = ""


def split(target: Any, *, tls: bool = False) -> list[str]:
    """Splits a list into distinct targets; any other target stays whole.

    Raises InvalidArgument for an empty one, for a malformed one and, unless `tls` is set, for one without a port.
    """
    if not isinstance(target, str) or not target.isprintable():  # half a character and NUL are not printable
        raise InvalidArgument.field("target", f"{target!r:.60} is not an address; give host:port")
    scheme = next((scheme for scheme in _LISTS if target.startswith(scheme)), "")
    parts = [part.strip() for part in target.removeprefix(scheme).split(",")]
    if not all(parts):
        raise InvalidArgument.field("target", f"{target!r} holds an empty address; give host:port or a list of them")
    found = [scheme + part for part in dict.fromkeys(parts)]
    for one in found:
        if not one.startswith(_OTHERS):
            _host_and_port(one, tls=tls)
    return found


def _host_and_port(target: str, *, tls: bool) -> tuple[str, int]:
    """Reads one server. Raises InvalidArgument for a malformed one. A missing host is left to gRPC, which names it."""
    scheme = next((scheme for scheme in (_DNS, *_LISTS) if target.startswith(scheme)), "")
    name = target.removeprefix(scheme)
    match = _SERVER.fullmatch(name.rpartition("/")[2] if scheme == _DNS else name)
    host, port = match.groups() if match else ("", None)
    may_lack_port = tls and host and not host.isdecimal() and scheme not in _LISTS  # these need one, says gRPC
    number = int(port or (_TLS_PORT if may_lack_port else 0))
    if not 0 < number < 1 << 16:
        wanted = "dns:///name:port" if scheme == _DNS else "HOST:PORT, such as 127.0.0.1:50052"
        raise InvalidArgument.field("target", f"{target!r} is not an address; give {wanted}")
    return host.strip("[]"), number


def is_loopback(host: str) -> bool:
    """Whether other machines cannot reach a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_socket(target: str) -> bool:
    """Whether one server's target is a Unix socket."""
    return target.startswith(_SOCKETS)


def is_local(target: str) -> bool:
    """Whether all that is sent to a target stays on this machine: by loopback addresses, `localhost`, unix sockets.

    A name that a name server of the target's own looks up (`dns://server/name:port`) is not local. Raises as `split`.
    """
    return all(
        is_socket(part)
        or (not part.startswith(_OTHERS) and not _ASKS.match(part) and is_loopback(_host_and_port(part, tls=True)[0]))
        for part in split(target, tls=True)
    )


def proxy_of(target: str) -> str:
    """The proxy that gRPC's core calls a target by, without credentials; "": none. This machine is called directly."""
    found, listed = (
        next((value for name in names if (value := os.environ.get(name))), "") for names in (_PROXIES, _EXCEPTIONS)
    )
    if not found or is_local(target):
        return ""
    excepted = tuple(filter(None, map(str.strip, listed.split(","))))
    called = [part for part in split(target, tls=True) if not part.startswith(_OTHERS)]
    if all(_host_and_port(part, tls=True)[0].endswith(excepted) for part in called):
        return ""
    return found.rpartition("@")[2].removeprefix("http://")


async def resolve(target: str, *, tls: bool = False) -> list[Address]:
    """Looks up the servers of a target now. Raises as `split` does, and Unavailable for an unknown DNS name."""
    found: list[Address] = []
    for part in split(target, tls=tls):
        found += await _look_up(*_host_and_port(part, tls=tls)) if part.startswith(_DNS) else [Address(part)]
    return list(dict.fromkeys(found))


async def _look_up(host: str, port: int) -> list[Address]:
    try:
        async with asyncio.timeout(LOOKUP_S):
            rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter for a part without letters, or with more than 63
        reason = "no answer in time" if isinstance(error, TimeoutError) else getattr(error, "strerror", "no such name")
        raise Unavailable(f"{host!r} cannot be resolved ({reason}); is the name right?") from None
    return [
        Address(f"ipv6:[{ip}]:{port}" if family == socket.AF_INET6 else f"ipv4:{ip}:{port}", host)
        for family, *_, (ip, *_) in rows
    ]

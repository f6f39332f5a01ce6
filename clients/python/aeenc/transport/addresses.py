"""The servers that a target names: one address, a static list, or the addresses of a DNS name.

host:port, unix:path         one server
host:port,host:port          these servers, in turn
ipv4:1.2.3.4:1,5.6.7.8:1     the same, in gRPC's spelling
dns:///name:port             all addresses of the name, looked up again and again
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

from aeenc.errors import InvalidArgument, Unavailable

LOOKUP_S = 5.0
_DNS = "dns:"
_LISTS = ("ipv4:", "ipv6:")
_OTHERS = ("unix:", "unix-abstract:", "vsock:", "xds:")  # gRPC's own, without a host and a port


@dataclass(frozen=True)
class Address:
    """One server: the gRPC target, and the name that its certificate must bear ("": the target's own)."""

    target: str
    name: str = ""


def split(target: str) -> list[str]:
    """Splits a list into distinct targets; any other target stays whole.

    Raises InvalidArgument for an empty one, and for one without a host and a port, which gRPC would look for in vain.
    """
    scheme = next((scheme for scheme in _LISTS if target.startswith(scheme)), "")
    parts = [part.strip() for part in target.removeprefix(scheme).split(",")]
    if not all(parts):
        raise InvalidArgument.field("target", f"{target!r} holds an empty address; give host:port or a list of them")
    for part in parts:
        _check(part)
    return [scheme + part for part in dict.fromkeys(parts)]


def _check(part: str) -> None:
    """Raises InvalidArgument for an address that is malformed. A missing host is left to gRPC, which names it."""
    if part.startswith(_OTHERS):
        return
    is_dns = part.startswith(_DNS)
    name = (
        part.rpartition("/")[2].removeprefix(_DNS) if is_dns else part.removeprefix(_LISTS[0]).removeprefix(_LISTS[1])
    )
    host, _, port = name.rpartition(":")
    is_host = not any(sign in host for sign in "/@ ") and (":" not in host or host.startswith("["))
    if not (is_host and port.isdecimal() and 0 < int(port) < 1 << 16 and name != port):
        wanted = "dns:///name:port" if is_dns else "HOST:PORT, such as 127.0.0.1:50052"
        raise InvalidArgument.field("target", f"{part!r} is not an address; give {wanted}")


async def resolve(target: str) -> list[Address]:
    """Looks up the servers of a target now. Raises Unavailable when a DNS name cannot be resolved."""
    found: list[Address] = []
    for part in split(target):
        found += await _look_up(part) if part.startswith(_DNS) else [Address(part)]
    return list(dict.fromkeys(found))


async def _look_up(target: str) -> list[Address]:
    host, _, port = target.removeprefix(_DNS).rpartition("/")[2].rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal():
        raise InvalidArgument.field("target", f"{target!r} lacks a host or a port; write dns:///name:port")
    try:
        async with asyncio.timeout(LOOKUP_S):
            rows = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, TimeoutError) as error:
        raise Unavailable(
            f"{host!r} cannot be resolved ({error.strerror or 'no answer in time'}); is the name right?"
        ) from None
    return [Address(_spelled(family, address[0], int(port)), host) for family, *_, address in rows]


def _spelled(family: int, ip: str | int, port: int) -> str:
    return f"ipv6:[{ip}]:{port}" if family == socket.AF_INET6 else f"ipv4:{ip}:{port}"

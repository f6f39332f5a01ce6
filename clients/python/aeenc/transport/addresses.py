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


@dataclass(frozen=True)
class Address:
    """One server: the gRPC target, and the name that its certificate must bear ("": the target's own)."""

    target: str
    name: str = ""


def split(target: str) -> list[str]:
    """Splits a list into distinct targets; any other target stays whole. Raises InvalidArgument for an empty one."""
    scheme = next((scheme for scheme in _LISTS if target.startswith(scheme)), "")
    parts = [part.strip() for part in target.removeprefix(scheme).split(",")]
    if not all(parts):
        raise InvalidArgument.field("target", f"{target!r} holds an empty address; give host:port or a list of them")
    return [scheme + part for part in dict.fromkeys(parts)]


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

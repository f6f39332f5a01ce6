"""A name server on a loopback port, whose answers tests and benchmarks change: replicas that come and go.

gRPC asks it for `dns://127.0.0.1:PORT/name:port`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from dnslib import QTYPE, RCODE, RR, A
from dnslib.server import BaseResolver, DNSServer

TTL_S = 1


class NameServer(BaseResolver):  # type: ignore[misc]  # dnslib has no types
    """Answers the IPv4 addresses in `known`, by name, and counts how often each was asked for."""

    def __init__(self) -> None:
        self.known: dict[str, list[str]] = {}
        self.asked: dict[str, int] = {}
        self._server = DNSServer(self, address="127.0.0.1", port=0, logger=_Silent())
        self.authority = f"127.0.0.1:{self._server.server.server_address[1]}"

    def target(self, name: str, port: int) -> str:
        """Returns the gRPC target that resolves a name here."""
        return f"dns://{self.authority}/{name}:{port}"

    def resolve(self, request: Any, handler: Any) -> Any:
        """Makes the answer to one request."""
        del handler
        reply, name = request.reply(), str(request.q.qname).rstrip(".")
        if name not in self.known:
            reply.header.rcode = RCODE.NXDOMAIN
        elif request.q.qtype == QTYPE.A:
            self.asked[name] = self.asked.get(name, 0) + 1
            for address in self.known[name]:
                reply.add_answer(RR(name, QTYPE.A, rdata=A(address), ttl=TTL_S))
        return reply

    def __enter__(self) -> Self:
        self._server.start_thread()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._server.stop()
        self._server.server.server_close()


class _Silent:
    """A log of dnslib that keeps nothing."""

    def __getattr__(self, _: str) -> Any:
        return lambda *arguments: None

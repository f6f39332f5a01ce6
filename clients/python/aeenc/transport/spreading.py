"""Calls spread over a list of servers: each call to the next one that is connected and not silent.

gRPC itself takes a list of IP addresses only and checks one name in all their certificates. Here each server has a
channel of its own, so that names work and each certificate is checked against its own name.

    read ──► next server ── answers nothing for `after_s` ──► another server, too ──► the first answer counts
                                       '─► later calls pass over it for SILENT_S, then one tries again

A server that answers UNAVAILABLE, such as one that is still loading, is passed over for UNREADY_S.

A suspended process or a lost network keeps its connections: calls to it would wait until their deadlines. A server that
is merely busy answers other calls meanwhile, so that load alone never doubles the calls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partialmethod
from typing import Any

import grpc

SILENT_S, UNREADY_S = 5.0, 1.0
_BEST_FIRST = (
    grpc.ChannelConnectivity.READY,
    grpc.ChannelConnectivity.CONNECTING,
    grpc.ChannelConnectivity.IDLE,
    grpc.ChannelConnectivity.TRANSIENT_FAILURE,
    grpc.ChannelConnectivity.SHUTDOWN,
)
_ELSEWHERE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}  # the other server may still answer


class _Server:
    """A channel to one server, and when the server last answered a read, on the clock of time.monotonic()."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.answered = 0.0
        self.passed_over_until = 0.0

    def has_answered(self) -> None:
        """Takes note of an answer."""
        self.answered, self.passed_over_until = time.monotonic(), 0.0

    def pass_over(self, seconds: float) -> None:
        """Leaves the server out for some time, where there are others."""
        self.passed_over_until = time.monotonic() + seconds


class SpreadChannel:
    """Deals the calls of stubs to several gRPC channels in turn; passes over a server that cannot be reached."""

    def __init__(self, channels: Sequence[grpc.aio.Channel]) -> None:
        self._servers = [_Server(channel) for channel in channels]
        self._turn = 0

    def get_state(self) -> grpc.ChannelConnectivity:
        """Returns the best state of any channel: READY when one server is connected."""
        states = {server.channel.get_state() for server in self._servers}
        return next(state for state in _BEST_FIRST if state in states)

    async def close(self, grace: float | None = None) -> None:
        """Closes all channels."""
        await asyncio.gather(*(server.channel.close(grace) for server in self._servers))

    def _spread(self, kind: str, *arguments: Any, **options: Any) -> SpreadMethod:
        """Makes a callable as grpc.aio.Channel does; a stream stays with one server."""
        methods = {server: getattr(server.channel, kind)(*arguments, **options) for server in self._servers}
        return SpreadMethod(methods, self._next, name=str(arguments[0]))

    unary_unary = partialmethod(_spread, "unary_unary")
    unary_stream = partialmethod(_spread, "unary_stream")
    stream_unary = partialmethod(_spread, "stream_unary")
    stream_stream = partialmethod(_spread, "stream_stream")

    def _next(self, *, other_than: _Server | None = None) -> _Server | None:
        """Chooses the next connected server; one passed over, or not to be reached, only without any other."""
        now = time.monotonic()

        def preference(server: _Server) -> tuple[bool, bool, bool]:
            state = server.channel.get_state(try_to_connect=True)
            has_failed = state is grpc.ChannelConnectivity.TRANSIENT_FAILURE
            return has_failed, server.passed_over_until > now, state is not grpc.ChannelConnectivity.READY

        turns = [*self._servers[self._turn :], *self._servers[: self._turn]]
        chosen = min((server for server in turns if server is not other_than), key=preference, default=None)
        if chosen is not None:
            self._turn = self._servers.index(chosen) + 1
        return chosen


class SpreadMethod:
    """A method of several servers: called as a method of grpc.aio, it calls the next of them."""

    def __init__(
        self, methods: dict[_Server, Callable[..., Any]], choose: Callable[..., _Server | None], *, name: str
    ) -> None:
        self._methods, self._choose = methods, choose
        self._method = name  # as grpc's own callables keep it, for the name of a span

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Calls one server."""
        server = self._choose()
        assert server is not None
        return self._methods[server](*arguments, **options)

    async def hedged(self, request: Any, *, after_s: float, left_s: float, metadata: Any) -> Any:
        """Makes a unary call; sends it to another server, too, once the first has answered nothing for `after_s`.

        Returns the first answer within `left_s`, and cancels the other call. A server that is away or full does not
        decide while the other may still answer. Raises AioRpcError.
        """
        deadline = time.monotonic() + left_s
        calls: set[asyncio.Future[Any]] = set()

        def start(server: _Server) -> None:
            timeout = max(deadline - time.monotonic(), 0.001)
            calls.add(asyncio.ensure_future(self._answer(server, request, timeout=timeout, metadata=metadata)))

        first, sent = self._choose(), time.monotonic()
        assert first is not None
        start(first)
        try:
            done, _ = await asyncio.wait(calls, timeout=after_s)
            while not done:
                silent_s = time.monotonic() - max(sent, first.answered)
                if silent_s >= after_s:
                    first.pass_over(SILENT_S)
                    if (second := self._choose(other_than=first)) is not None:
                        start(second)
                    break
                done, _ = await asyncio.wait(calls, timeout=after_s - silent_s)
            return await _first_answer(calls)
        finally:
            for call in calls:
                call.cancel()

    async def _answer(self, server: _Server, request: Any, **options: Any) -> Any:
        try:
            answer = await self._methods[server](request, **options)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                server.pass_over(UNREADY_S)
            elif error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                server.has_answered()
            raise
        server.has_answered()
        return answer


async def _first_answer(calls: set[asyncio.Future[Any]]) -> Any:
    """Returns or raises what decides: the first answer, or a failure when no server is left that may answer."""
    waiting = calls
    while True:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        decided = [call for call in done if not _is_passing(call.exception())]
        if decided or not waiting:
            return (decided or list(done))[0].result()


def _is_passing(error: BaseException | None) -> bool:
    return isinstance(error, grpc.aio.AioRpcError) and error.code() in _ELSEWHERE

"""Calls dealt in turn to several gRPC channels, for a static list of servers.

gRPC itself takes a list of IP addresses only and checks one name in all their certificates. Here each server has a
channel of its own, so that names work and each certificate is checked against its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc


class SpreadChannel:
    """Makes the callables that stubs ask a channel for. A server that cannot be reached is passed over."""

    def __init__(self, channels: Sequence[grpc.aio.Channel]) -> None:
        self._channels = list(channels)
        self._turn = 0

    def unary_unary(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """As grpc.aio.Channel has it; so are the three others."""
        return self._dealt([channel.unary_unary(*arguments, **options) for channel in self._channels])

    def unary_stream(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """One question, many answers."""
        return self._dealt([channel.unary_stream(*arguments, **options) for channel in self._channels])

    def stream_unary(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """Many questions, one answer."""
        return self._dealt([channel.stream_unary(*arguments, **options) for channel in self._channels])

    def stream_stream(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """Many questions, many answers; the stream stays with one server."""
        return self._dealt([channel.stream_stream(*arguments, **options) for channel in self._channels])

    async def close(self, grace: float | None = None) -> None:
        """Closes all channels."""
        await asyncio.gather(*(channel.close(grace) for channel in self._channels))

    def _dealt(self, methods: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            return methods[self._next()](*arguments, **options)

        return call

    def _next(self) -> int:
        """The next connected server in turn; without any, the next that has not just failed; else the next."""
        count = len(self._channels)
        turns = [(self._turn + step) % count for step in range(count)]
        states = [channel.get_state(try_to_connect=True) for channel in self._channels]
        ready = [n for n in turns if states[n] is grpc.ChannelConnectivity.READY]
        hopeful = [n for n in turns if states[n] is not grpc.ChannelConnectivity.TRANSIENT_FAILURE]
        chosen = (ready or hopeful or turns)[0]
        self._turn = chosen + 1
        return chosen

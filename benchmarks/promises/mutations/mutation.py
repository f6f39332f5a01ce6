"""Calls that change something: their requests, and the checks that tell whether they did.

A `Mutation` is one RPC. It prepares subjects, each the target of one call or of several in turn, and reads the states
of all its subjects from wherever the change must show: answers, files, Redis. A state is a word; a change that shows in
one place and not in another gives a word that nobody expects.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import grpc

import aeenc.v1
from aeenc import AsyncClient
from benchmarks.promises.fleet import Fleet
from support.waiting import reached

Made = tuple[Any, Any, str]  # the request, another under the same id (None: it has none), the state after it


@dataclass
class Subject:
    """A target of calls. `allowed` are the states that it may be in by what was acknowledged and what was not.

    `between` are states between two acts of one call, each whole. `pending` is a request without an acknowledgement,
    and the state after it.
    """

    name: str
    make: Callable[[], Made]
    allowed: set[str]
    calls: int = 1
    between: frozenset[str] = frozenset()
    pending: tuple[Any, str] | None = None


@dataclass
class World:
    """The fleet, a client of it, and what subjects share."""

    fleet: Fleet
    client: AsyncClient
    shared: dict[str, Any] = field(default_factory=dict)

    async def restart(self, service: str) -> None:
        """Starts a service again and waits until it answers the client: gRPC may remember that nobody listened."""
        await self.fleet.restart(service)
        await reached(getattr(self.client, service).info, times=100)


class Mutation(ABC):
    """One RPC that changes something. Subclasses give `rpc`, `prepare` and `states`."""

    rpc: ClassVar[str]  # Service.Method
    service: ClassVar[str]  # the process that serves it
    refusal: ClassVar[str] = "ALREADY_EXISTS"  # of other content under the same id; "": it has no id
    ignored: ClassVar[tuple[str, ...]] = ()  # fields of the answer that may differ between a call and its retry

    def __init__(self, world: World) -> None:
        self.world = world

    @abstractmethod
    async def prepare(self, count: int) -> list[Subject]:
        """Makes subjects for so many calls."""

    @abstractmethod
    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        """The state of each subject now."""

    async def tidy(self) -> None:  # noqa: B027 - most start nothing
        """Ends what subjects have started."""

    async def call(self, request: Any, timeout_s: float | None = None) -> Any:
        """Sends a request once; a list is sent as a stream. Returns the answer, the last one of a stream.

        Raises grpc.aio.AioRpcError. Cancelling the task that awaits it cancels the call.
        """
        service, method = self.rpc.split(".")
        stub = stubs()[f"{service}Stub"](getattr(self.world.client, self.service).channel.grpc)
        options = {"timeout": timeout_s, "metadata": [("x-request-id", uuid.uuid4().hex)]}
        answer = getattr(stub, method)(_stream(request) if isinstance(request, list) else request, **options)
        if not hasattr(answer, "__aiter__"):
            return await answer
        try:
            messages = [message async for message in answer]
            return messages[-1] if messages else None
        finally:
            answer.cancel()


@functools.cache
def stubs() -> dict[str, Any]:
    """The stubs of all services by name."""
    modules = [one.name for one in pkgutil.iter_modules(aeenc.v1.__path__) if one.name.endswith("_pb2_grpc")]
    found = [vars(importlib.import_module(f"aeenc.v1.{name}")) for name in modules]
    return {name: stub for module in found for name, stub in module.items() if name.endswith("Stub")}


async def _stream(messages: list[Any]) -> AsyncIterator[Any]:
    for message in messages:
        yield message


def agreed(*words: str) -> str:
    """One word where all places say the same, else what each says."""
    return words[0] if len(set(words)) == 1 else "partly: " + ", ".join(words)


def fresh(prefix: str) -> str:
    """A name that nothing else has."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def is_gone(error: grpc.aio.AioRpcError) -> bool:
    """Whether a call's fate is unknown to its caller."""
    unknown = {grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}
    return error.code() in unknown or "Internal error from Core" in (error.details() or "")  # of a stream: grpc#36066

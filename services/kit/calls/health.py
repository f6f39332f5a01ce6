"""grpc.health.v1: what the state of the service is, now or with each change.

grpc's own servicer writes to watchers under a lock: one who reads nothing holds up all others, and the drain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from aeenc import errors
from services.kit.readiness import Readiness


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """Answers for the services of `names`, which may grow, and for "", the whole process."""

    def __init__(self, readiness: Readiness, names: Container[str]) -> None:
        self._readiness, self._names = readiness, names
        self._changed = asyncio.Event()
        readiness.on_change(self._wake)

    async def Check(self, request: Any, _context: Any) -> health_pb2.HealthCheckResponse:
        """Answers the state. Raises NotFound for a service that is not here."""
        answer = self._answer(request.service)
        if answer.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            raise errors.NotFound("no service of that name is here; leave the name empty for all")
        return answer

    async def Watch(self, request: Any, context: Any) -> None:
        """Answers the state, and again whenever it changes, until the service closes."""
        told = None
        while True:
            changed, answer = self._changed, self._answer(request.service)
            if answer != told:
                await context.write(answer)
                told = answer
            if self._readiness.is_closing:
                return
            await changed.wait()

    def _answer(self, service: str) -> health_pb2.HealthCheckResponse:
        kinds = health_pb2.HealthCheckResponse
        if service and service not in self._names:
            return kinds(status=kinds.SERVICE_UNKNOWN)
        return kinds(status=kinds.SERVING if self._readiness.healthy else kinds.NOT_SERVING)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

"""The application: operations, the gate before them, errors, and the OpenAPI document."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from aeenc.adapters.http import error_handlers
from aeenc.errors import AeencError
from aeenc.transport.targets import Targets
from aeenc_gateway import embeddings, problems, retrieval, tei
from aeenc_gateway.embeddings import json_response
from aeenc_gateway.fleet import Fleet
from aeenc_gateway.gate import Gate
from aeenc_gateway.operations import PAGE, document

OPERATIONS = [*embeddings.OPERATIONS, *retrieval.OPERATIONS, *tei.OPERATIONS]


def make_app(
    targets: Targets,
    *,
    token: str | None = None,
    allowed_hosts: Iterable[str] = (),
    timeout_s: float = 60.0,
    body_bytes: int = 4 * 1024 * 1024,
) -> Starlette:
    """Makes the ASGI application. It connects when it starts, and runs whether or not the services do.

    `token` is the credential of callers that send none; that of `targets` is not used. `allowed_hosts` are the names
    that it answers to besides those of loopback. `timeout_s` limits a call.
    """

    @asynccontextmanager
    async def connected(app: Starlette) -> AsyncIterator[None]:
        app.state.fleet = fleet = Fleet.connect(targets, timeout_s=timeout_s)
        yield
        await fleet.close()

    described = document(OPERATIONS)

    async def openapi(_: Request) -> Response:
        return json_response(described)

    async def page(_: Request) -> Response:
        return HTMLResponse(PAGE)

    return Starlette(
        routes=[*(one.route() for one in OPERATIONS), Route("/openapi.json", openapi), Route("/docs", page)],
        middleware=[Middleware(Gate, token=token, allowed_hosts=frozenset(allowed_hosts), body_bytes=body_bytes)],
        exception_handlers={**error_handlers(_respond), Exception: problems.on_bug},
        lifespan=connected,
    )


def _respond(request: Request, error: AeencError, status: int) -> Response:
    return problems.respond(error, request.url.path, status)

"""The application: routes, the gate before them, errors, and the OpenAPI document."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import aeenc
from aeenc.errors import AeencError
from aeenc.transport.targets import Targets
from aeenc_gateway import embeddings, problems, retrieval, tei
from aeenc_gateway.fleet import Fleet
from aeenc_gateway.gate import Gate

DESCRIPTION = """Premises that explain a hypothesis, and their embeddings. The gateway translates each request to one
gRPC call. The bearer token is that of the services. Errors are problem details (RFC 9457)."""


def make_app(
    targets: Targets, *, token: str | None = None, timeout_s: float = 60.0, body_bytes: int = 4 * 1024 * 1024
) -> FastAPI:
    """Makes the ASGI application. It connects when it starts, and runs whether or not the services do.

    `token` is the credential of callers that send none; that of `targets` is not used. `timeout_s` limits a call.
    """

    @asynccontextmanager
    async def connected(app: FastAPI) -> AsyncIterator[None]:
        app.state.fleet = fleet = Fleet.connect(targets, timeout_s=timeout_s)
        yield
        await fleet.close()

    failure = {"model": problems.Problem, "description": "What is wrong"}
    app = FastAPI(
        title="AE-Enc",
        version=aeenc.__version__,
        description=DESCRIPTION,
        lifespan=connected,
        redoc_url=None,
        responses={"default": failure},
        exception_handlers={
            AeencError: problems.on_error,
            HTTPException: problems.on_http_error,
            RequestValidationError: problems.on_invalid_body,
            UnicodeEncodeError: problems.on_half_character,
            Exception: problems.on_bug,
        },
    )
    for routes in (embeddings, retrieval, tei):
        app.include_router(routes.router)
    app.add_middleware(Gate, token=token, body_bytes=body_bytes)
    app.openapi = partial(_document, app, app.openapi)  # type: ignore[method-assign]
    return app


def _document(app: FastAPI, generate: Any) -> dict[str, Any]:
    """The OpenAPI document, with the bearer token, problems as the only errors, and no 422."""
    if app.openapi_schema is None:
        document = generate()
        components = document["components"]
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}, {}]
        for name in ("HTTPValidationError", "ValidationError"):
            components["schemas"].pop(name, None)
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
                content = operation["responses"]["default"]["content"]
                content[problems.MEDIA_TYPE] = content.pop("application/json")
    assert app.openapi_schema is not None
    return app.openapi_schema

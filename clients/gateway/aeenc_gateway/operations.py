"""The operations of the gateway as values: each is a route, and a part of the OpenAPI document.

Bodies are parsed by pydantic from their bytes. Answers are written as they are: their models only describe them.
"""

from __future__ import annotations

import codecs
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from inspect import getdoc
from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import aeenc
from aeenc.adapters.http import PROBLEM
from aeenc_gateway import problems

JSON = "application/json"
_GZIP = b"\x1f\x8b"
_REFERENCE = "#/components/schemas/{model}"
_DESCRIPTION = """Premises that explain a hypothesis, and their embeddings. The gateway translates each request to gRPC.
The bearer token is that of the services. Errors are problem details (RFC 9457)."""
PAGE = """<!doctype html>
<html lang="en">
<head>
<title>AE-Enc</title>
<link rel="stylesheet" href="https://cdn.jsdelivr.net/npm/swagger-ui-dist@5/swagger-ui.css">
</head>
<body>
<div id="page"></div>
<script src="https://cdn.jsdelivr.net/npm/swagger-ui-dist@5/swagger-ui-bundle.js"></script>
<script>SwaggerUIBundle({url: "openapi.json", dom_id: "#page"})</script>
</body>
</html>
"""

Strings = Annotated[list[str], Field(fail_fast=True)]  # to find a million wrong items would hold up all others


class Body(BaseModel):
    """A body, or a part of one. Null stands for an absent field, as clients of other languages send it."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        return {name: one for name, one in fields.items() if one is not None} if isinstance(fields, dict) else fields


@dataclass(frozen=True)
class Operation:
    """A method of a path. `handler` gets the parsed body, if there is one, and the request; its docstring describes."""

    method: str
    path: str
    handler: Callable[..., Awaitable[Response]]
    summary: str
    body: type[Body] | None = None
    answer: type[BaseModel] | None = None  # None: an empty one
    lines: str = ""  # another media type that answers line by line

    def route(self) -> Route:
        """Makes the route."""
        model = self.body

        async def answer(request: Request) -> Response:
            body = await request.body()  # also where there is none: the gate sees callers leave only after it
            packing = request.headers.get("content-encoding", "gzip" if body.startswith(_GZIP) else "identity")
            if body and packing.lower() != "identity":
                raise HTTPException(415, f"the body is {packing}, which is not unpacked here; send it as it is")
            body = body.removeprefix(codecs.BOM_UTF8)
            return await (self.handler(model.model_validate_json(body), request) if model else self.handler(request))

        return Route(self.path, answer, methods=[self.method])


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Makes the OpenAPI document."""
    models: set[type[BaseModel]] = {problems.Problem}
    for operation in operations:
        models |= {model for model in (operation.body, operation.answer) if model is not None}
    named = sorted(models, key=lambda model: model.__name__)
    _, schemas = models_json_schema([(model, "validation") for model in named], ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "AE-Enc", "version": aeenc.__version__, "description": _DESCRIPTION},
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    answered = _content(operation.answer)
    if operation.lines:
        answered[operation.lines] = {"schema": {"type": "string"}}
    problem = {"description": "What is wrong", "content": _content(problems.Problem, PROBLEM)}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "description": getdoc(operation.handler),
        "responses": {"200": {"description": "The answer", "content": answered}, "default": problem},
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _content(operation.body)}
    return described


def _content(model: type[BaseModel] | None, media_type: str = JSON) -> dict[str, Any]:
    return {media_type: {"schema": {"$ref": _REFERENCE.format(model=model.__name__)}}} if model else {}

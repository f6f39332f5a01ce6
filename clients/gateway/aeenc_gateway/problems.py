"""Errors as problem details (RFC 9457), with the gRPC status and the members that OpenAI's and TEI's clients read."""

from __future__ import annotations

import math
import re
from typing import Any

import orjson
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from aeenc.adapters import http
from aeenc.adapters.http import HTTP_STATUS, PROBLEM
from aeenc.errors import AeencError
from aeenc_gateway.fleet import CALLER

_TEI_PATHS = {"/embed", "/rerank", "/info", "/health"}
_TEI_TYPES = {"INVALID_ARGUMENT": "Validation", "RESOURCE_EXHAUSTED": "Overloaded", "UNAVAILABLE": "Unhealthy"}
_FIELDS = {  # what the routes call the fields of the services' requests
    "/v1/embeddings": {"texts": "input", "routing_key": "user"},
    "/embed": {"texts": "inputs"},
    "/rerank": {"premises": "texts"},
    "/v1/retrieve": {"texts": "queries"},
}


class Violation(BaseModel):
    """One wrong field."""

    field: str
    description: str


class Problem(BaseModel):
    """Problem details. `error` is OpenAI's object below /v1, and TEI's text on its paths."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    reason: str
    request_id: str
    violations: list[Violation] = []
    error: dict[str, Any] | str | None = None


def problem_of(error: AeencError, path: str, status: int) -> dict[str, Any]:
    """Returns the members of an error's problem details, by the names that the route gives its fields."""
    names, message, violations = _FIELDS.get(path, {}), error.message, []
    for one in error.violations:
        stem = re.split(r"\W", one.field, maxsplit=1)[0]
        name = names.get(stem, stem) + one.field[len(stem) :]
        message = message.replace(f"{one.field}: ", f"{name}: ")
        violations.append({"field": name, "description": one.description})
    members: dict[str, Any] = {
        **http.problem_of(error, status),
        "detail": message,
        "request_id": error.request_id or CALLER.get().request_id,
        "violations": violations,
    }
    if path.startswith("/v1/"):
        members["error"] = {
            "message": message,
            "type": "invalid_request_error" if status < 500 else "server_error",
            "param": violations[0]["field"] if violations else None,
            "code": error.reason,
        }
    elif path in _TEI_PATHS:
        members |= {"error": message, "error_type": _TEI_TYPES.get(error.code, "Backend")}
    return members


def respond(error: AeencError, path: str, status: int) -> Response:
    """Makes the answer: problem details, and when to come back."""
    headers = {}
    retry_after_s = error.retry_after_s
    if retry_after_s is None and status == HTTP_STATUS["RESOURCE_EXHAUSTED"]:
        retry_after_s = 1.0
    if retry_after_s is not None:
        headers = {"retry-after": str(math.ceil(retry_after_s)), "retry-after-ms": str(math.ceil(retry_after_s * 1e3))}
    if status == HTTP_STATUS["UNAUTHENTICATED"]:
        headers["www-authenticate"] = "Bearer"
    return Response(orjson.dumps(problem_of(error, path, status)), status, headers, PROBLEM)


async def on_bug(request: Request, error: Exception) -> Response:
    """Answers anything unexpected without its text, which the log has."""
    request_id = CALLER.get().request_id
    failure = AeencError(f"the gateway failed unexpectedly; its log has request {request_id} ({type(error).__name__})")
    response = respond(failure, request.url.path, 500)
    response.headers["x-request-id"] = request_id  # this answer does not pass the gate
    return response

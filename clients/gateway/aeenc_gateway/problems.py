"""Errors as problem details (RFC 9457), with the gRPC status and the members that OpenAI's and TEI's clients read."""

from __future__ import annotations

import math
import re
from http import HTTPStatus
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from aeenc.errors import AeencError, FieldViolation, InvalidArgument, NotFound, TooLarge, Unimplemented
from aeenc_gateway.fleet import CALLER

MEDIA_TYPE = "application/problem+json"
HTTP_STATUS = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "FAILED_PRECONDITION": 412,  # not 409, on which OpenAI's client repeats the call
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,  # nginx's number: the caller has gone
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
_OF_HTTP: dict[int, type[AeencError]] = {404: NotFound, 405: Unimplemented, 413: TooLarge}
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


def problem_of(error: AeencError, path: str, *, status: int | None = None) -> dict[str, Any]:
    """Returns the members of an error's problem details; `status` where HTTP has one of its own."""
    names, message, violations = _FIELDS.get(path, {}), error.message, []
    for one in error.violations:
        stem = re.split(r"\W", one.field, maxsplit=1)[0]
        name = names.get(stem, stem) + one.field[len(stem) :]
        message = message.replace(f"{one.field}: ", f"{name}: ")
        violations.append({"field": name, "description": one.description})
    status = status or HTTP_STATUS.get(error.code, 500)
    members: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase if status != HTTP_STATUS["CANCELLED"] else "Client Closed Request",
        "status": status,
        "detail": message,
        "code": error.code,
        "reason": error.reason,
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


def respond(error: AeencError, path: str, *, status: int | None = None) -> Response:
    """Makes the answer: problem details, and when to come back."""
    members = problem_of(error, path, status=status)
    headers = {}
    retry_after_s = error.retry_after_s
    if retry_after_s is None and members["status"] == HTTP_STATUS["RESOURCE_EXHAUSTED"]:
        retry_after_s = 1.0
    if retry_after_s is not None:
        headers = {"retry-after": str(math.ceil(retry_after_s)), "retry-after-ms": str(math.ceil(retry_after_s * 1e3))}
    if members["status"] == HTTP_STATUS["UNAUTHENTICATED"]:
        headers["www-authenticate"] = "Bearer"
    return Response(orjson.dumps(members), members["status"], headers, MEDIA_TYPE)


async def on_error(request: Request, error: Exception) -> Response:
    """Answers an error of `aeenc.errors`."""
    assert isinstance(error, AeencError)
    return respond(error, request.url.path)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answers what the framework refuses: unknown paths and methods, bodies that cannot be read."""
    assert isinstance(error, HTTPException)
    refusal = _OF_HTTP.get(error.status_code, InvalidArgument)(f"{request.method} {request.url.path}: {error.detail}")
    response = respond(refusal, request.url.path, status=error.status_code)
    response.headers.update(error.headers or {})
    return response


async def on_invalid_body(request: Request, error: Exception) -> Response:
    """Answers a body that does not fit its schema, naming each wrong field."""
    assert isinstance(error, ValidationError)
    violations = [_violation(problem) for problem in error.errors(include_url=False, include_input=False)]
    detail = "; ".join(f"{one.field}: {one.description}" for one in violations[:4])
    return respond(InvalidArgument(detail, violations=violations), request.url.path)


async def on_bug(request: Request, error: Exception) -> Response:
    """Answers anything unexpected without its text, which the log has."""
    request_id = CALLER.get().request_id
    told = AeencError(f"the gateway failed unexpectedly; its log has request {request_id} ({type(error).__name__})")
    response = respond(told, request.url.path)
    response.headers["x-request-id"] = request_id  # this answer does not pass the gate
    return response


def _violation(problem: ErrorDetails) -> FieldViolation:
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]]
    return FieldViolation("".join(parts).lstrip(".") or "body", problem["msg"])

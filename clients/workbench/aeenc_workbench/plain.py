"""Turns what the SDK returns into JSON, and errors into problem details (RFC 9457)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import Enum
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from aeenc.errors import AeencError
from aeenc.values import RankedPremise

HTTP_STATUS = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "FAILED_PRECONDITION": 412,
    "RESOURCE_EXHAUSTED": 429,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}


def plain(value: Any) -> Any:
    """Returns a value as JSON has it: enums by name, times in ISO 8601, durations in seconds, NaN as null."""
    if isinstance(value, RankedPremise):
        return {"premise_id": value.premise.id, "text": value.premise.text, "rank": value.rank, "score": value.score}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one) for one in value]
    return value


async def on_error(_: Request, error: Exception) -> Response:
    """Answers an error of `aeenc.errors`."""
    assert isinstance(error, AeencError)
    return problem(HTTP_STATUS.get(error.code, 500), error.message, error.code, error.reason)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answers what the framework refuses."""
    assert isinstance(error, HTTPException)
    return problem(error.status_code, f"{request.method} {request.url.path}: {error.detail}")


async def on_invalid_body(_: Request, error: Exception) -> Response:
    """Answers a body that does not fit its schema, naming each wrong field."""
    assert isinstance(error, ValidationError)
    wrong = [(".".join(map(str, one["loc"])), one["msg"]) for one in error.errors(include_url=False)]
    return problem(400, "; ".join(f"{field or 'body'}: {told}" for field, told in wrong[:4]), "INVALID_ARGUMENT")


async def on_bug(_: Request, error: Exception) -> Response:
    """Answers anything unexpected without its text, which the log has."""
    return problem(500, f"the workbench failed unexpectedly; its log says why ({type(error).__name__})", "INTERNAL")


def problem(status: int, detail: str, code: str = "", reason: str = "") -> Response:
    """Makes an answer of problem details."""
    members = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return JSONResponse({**members, "code": code, "reason": reason}, status, media_type="application/problem+json")

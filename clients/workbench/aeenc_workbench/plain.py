"""Turns what the SDK returns into JSON, and errors into problem details (RFC 9457)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from aeenc.adapters.http import PROBLEM, problem_of
from aeenc.errors import AeencError
from aeenc.values import RankedPremise


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


def respond(_: Request | None, error: AeencError, status: int) -> Response:
    """Makes an answer of problem details."""
    return JSONResponse(problem_of(error, status), status, media_type=PROBLEM)


async def on_bug(request: Request, error: Exception) -> Response:
    """Answers anything unexpected without its text, which the log has."""
    problem = f"the workbench failed unexpectedly; its log says why ({type(error).__name__})"
    return respond(request, AeencError(problem), 500)

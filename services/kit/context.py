"""What a servicer reads from a call's context."""

from __future__ import annotations

import uuid
from typing import Any

MAX_ID = 64


def deadline_s(context: Any) -> float | None:
    """Seconds left until the caller's deadline; None when it set none."""
    left_s = context.time_remaining()
    return None if left_s is None or left_s > 1e9 else float(left_s)


def request_id(context: Any) -> str:
    """The call's `x-request-id`; a fresh one when its caller sent none."""
    for key, value in context.invocation_metadata() or ():
        if key == "x-request-id":
            return str(value)[:MAX_ID]
    return uuid.uuid4().hex

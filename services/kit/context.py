"""What a servicer reads from a call's context."""

from __future__ import annotations

from typing import Any


def deadline_s(context: Any) -> float | None:
    """Seconds left until the caller's deadline; None when it set none."""
    left_s = context.time_remaining()
    return None if left_s is None or left_s > 1e9 else float(left_s)

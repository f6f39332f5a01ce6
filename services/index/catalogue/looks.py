"""Looks at a corpus in the store, as a process finds what others have done to it: its move, its generations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.corpus.moves import Move


@dataclass(frozen=True)
class Look:
    """A corpus as the store has it now: its latest move, and the generations at that move or later.

    `has_deleted`: deleted generations still lie there (looked up only now and then). `is_replaced`: the generation that
    serves was replaced by the same content.
    """

    move: Move
    ids: Sequence[str]
    has_deleted: bool
    is_replaced: bool


@dataclass(frozen=True)
class FailedOpening:
    """A move whose generation could not be opened, and until when it is not tried again: a try may fetch gigabytes."""

    move: int
    error: Exception
    pause_s: float
    again_at: float  # by time.monotonic()

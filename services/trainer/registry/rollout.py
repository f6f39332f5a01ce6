"""How far the live encoders are with a label that has moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aeenc import errors
from services.store.registry import LabelRow, Registry, RolloutRow
from services.trainer.registry.quality_gate import Verdict


@dataclass(frozen=True)
class Publication:
    """A label after a move, and how far the live encoders are. Never complete if another move overtook it.

    `generation` is the one that was activated with it; empty for none. `gate` tells what a published version was
    compared with.
    """

    label: LabelRow
    rollouts: Sequence[RolloutRow]
    complete: bool
    generation: str = ""
    gate: Verdict = field(default_factory=Verdict)


async def followed(registry: Registry, row: LabelRow, wait_s: float) -> Publication:
    """Waits until every live encoder serves a label, or time is up."""
    if not wait_s:
        return Publication(row, (), complete=False)
    rollouts, now = await _answers(registry, row, wait_s)
    is_there = now is not None and now.revision == row.revision
    return Publication(now or row, rollouts, complete=is_there and bool(rollouts) and not _behind(rollouts, row))


async def await_all(registry: Registry, row: LabelRow, timeout_s: float) -> Publication:
    """Waits until every live encoder serves a label.

    Raises FailedPrecondition (ENCODERS_BEHIND) naming those that do not, Aborted if the label has moved meanwhile.
    """
    rollouts, now = await _answers(registry, row, timeout_s)
    if now is None or now.revision != row.revision:
        raise errors.Aborted(
            f"label {row.name!r} of space {row.space_id} has moved meanwhile; list the labels and try again"
        )
    if not rollouts:
        raise errors.FailedPrecondition(
            f"no live encoder could serve {row.version}; start one", reason="ENCODERS_BEHIND"
        )
    if behind := _behind(rollouts, row):
        raise errors.FailedPrecondition(
            f"not every encoder serves {row.version} of space {row.space_id} within {timeout_s:g} s: {behind}; "
            "repair them or wait longer, then try again",
            reason="ENCODERS_BEHIND",
        )
    return Publication(row, rollouts, complete=True)


async def _answers(registry: Registry, row: LabelRow, wait_s: float) -> tuple[list[RolloutRow], LabelRow | None]:
    """Returns how far each encoder is when all have answered or time is up, and the label then."""
    rollouts = await registry.await_rollout(row, wait_s)
    return rollouts, await registry.label(row.space_id, row.name)


def _behind(rollouts: Sequence[RolloutRow], row: LabelRow) -> str:
    return "; ".join(
        f"{one.instance} ({one.reason or f'is at revision {one.revision}'})"
        for one in rollouts
        if not one.ok or one.revision < row.revision
    )

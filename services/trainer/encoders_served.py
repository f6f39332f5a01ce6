"""Waits until every live encoder serves a label, and says who does not, and why."""

from __future__ import annotations

from collections.abc import Sequence

from aeenc import errors
from services.store.registry import LabelRow, Registry, RolloutRow


async def await_all(registry: Registry, row: LabelRow, timeout_s: float) -> list[RolloutRow]:
    """Where each live encoder stands, all of them with the label.

    Raises FailedPrecondition (ENCODERS_BEHIND) naming those that are not, Aborted when the label has moved meanwhile.
    """
    rollouts = await registry.await_rollout(row, timeout_s)
    now = await registry.label(row.space_id, row.name)
    if now is None or now.revision != row.revision:
        raise errors.Aborted(f"label {row.name!r} of space {row.space_id} has moved on meanwhile; look and try again")
    if not rollouts:
        raise errors.FailedPrecondition(
            f"no encoder lives that could serve {row.version}; start one", reason="ENCODERS_BEHIND"
        )
    if behind := _behind(rollouts, row.revision):
        raise errors.FailedPrecondition(
            f"not every encoder serves {row.version} of space {row.space_id} within {timeout_s:g} s: {behind}; mend "
            "them or wait longer, then try again",
            reason="ENCODERS_BEHIND",
        )
    return rollouts


def _behind(rollouts: Sequence[RolloutRow], revision: int) -> str:
    return "; ".join(
        f"{one.instance} ({one.reason or f'is at revision {one.revision}'})"
        for one in rollouts
        if not one.ok or one.revision < revision
    )

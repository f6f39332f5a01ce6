"""`aeenc publish` and `aeenc rollback`: which checkpoint a label names, and whether every encoder has followed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from aeenc.cli.output import EndedBadly, Output, fields_table, output_of, table
from aeenc.cli.targets import client
from aeenc.v1 import registry_pb2

Moved = registry_pb2.PublishResponse | registry_pb2.RollbackResponse
Label = Annotated[str, typer.Option(help="The label to move.")]
Wait = Annotated[float, typer.Option("--wait", min=0, max=60, help="Seconds to wait for every live encoder.")]


def moved_dict(moved: Moved) -> dict[str, Any]:
    """A moved label and its rollout as plain values."""
    label = moved.label
    return {
        "label": label.name,
        "version": label.version,
        "previous_version": label.previous_version,
        "revision": label.revision,
        "space_id": label.space_id,
        "complete": moved.complete,
        "rollouts": [
            {"instance": rollout.instance, "revision": rollout.revision, "ok": rollout.ok, "reason": rollout.reason}
            for rollout in moved.rollouts
        ],
    }


def publish(
    context: typer.Context,
    version: Annotated[str, typer.Argument(help="The checkpoint.")],
    label: Label = "stable",
    wait_s: Wait = 60.0,
    force: Annotated[bool, typer.Option("--force", help="Publish in spite of the quality gate.")] = False,
) -> None:
    """Points a label at a checkpoint and waits until every live encoder serves it."""
    with client(context) as connected:
        connected.registry.labels()  # an unreachable registry is found within --timeout, not --timeout and --wait
        moved = connected.registry.publish(version, label=label, wait_s=wait_s, force=force)
    _show(output_of(context), moved, wait_s)


def rollback(context: typer.Context, label: Label = "stable", wait_s: Wait = 60.0) -> None:
    """Points a label back at the version it named before and waits until every live encoder serves it."""
    with client(context) as connected:
        connected.registry.labels()  # as in publish
        moved = connected.registry.rollback(label=label, wait_s=wait_s)
    _show(output_of(context), moved, wait_s)


def _show(out: Output, moved: Moved, wait_s: float) -> None:
    result = moved_dict(moved)
    rollouts = result["rollouts"]
    told = {name: value for name, value in result.items() if name != "rollouts"}
    rows = [(rollout["instance"], "yes" if rollout["ok"] else f"no: {rollout['reason']}") for rollout in rollouts]
    out.result(result, fields_table(told), *([table(["encoder", "serves it"], rows)] if rows else []))
    if wait_s and not moved.complete:
        behind = [
            f"{rollout['instance']} ({rollout['reason'] or 'no answer'})" for rollout in rollouts if not rollout["ok"]
        ]
        raise EndedBadly(
            f"{moved.label.name} names {moved.label.version}, but not every encoder serves it after {wait_s:g} s: "
            f"{', '.join(behind) or 'none has answered'}"
        )


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("publish")(publish)
    app.command("rollback")(rollback)

"""Shows services, checkpoints, generations and labels, moves labels, and removes what nobody needs.

`aeenc status`, `publish`, `rollback`, `checkpoints`, `labels`, `gc`, and `corpus list`, `activate` and `delete`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from aeenc import values
from aeenc.adapters.status import ServiceReport, ask, report_of
from aeenc.cli.output import (
    EndedBadly,
    Output,
    comparison_dict,
    fields_of,
    fields_table,
    outcome_words,
    output_of,
    shown_time,
    table,
)
from aeenc.cli.targets import client, targets_of
from aeenc.errors import AeencError

if TYPE_CHECKING:  # a command waits for what it uses alone
    from rich.console import RenderableType

    from aeenc import Client


def _row(service: str, target: str, answer: ServiceReport) -> tuple[str, str, str, str]:
    if isinstance(answer, AeencError):
        return service, target, answer.code, answer.message
    lines = [answer["reason"]]
    lines += [f"{label} = {version}" for label, version in answer.get("labels", {}).items()]
    lines += [
        f"{label} of space {space} = {version}"
        for space, labels in answer.get("labels_of_other_spaces", {}).items()
        for label, version in labels.items()
    ]
    lines += [f"versions: {', '.join(answer['versions'])}"] if answer.get("versions") else []
    lines += [
        f"{name}: {corpus['premises']:,} premises, generation {corpus['generation'] or 'none'}"
        for name, corpus in answer.get("corpora", {}).items()
    ]
    lines += [f"oracles: {', '.join(answer['oracles'])}"] if answer.get("oracles") else []
    lines += [f"active runs: {', '.join(answer['active_runs'])}"] if answer.get("active_runs") else []
    lines += [f"run {run} waits: {reason}" for run, reason in answer.get("waiting_runs", {}).items()]
    lines += [f"{name}: {answer[name]}" for name in ("device", "active_job") if answer.get(name)]
    return service, target, answer["state"], "\n".join(line for line in lines if line)


def status(context: typer.Context) -> None:
    """Shows state, versions, labels, corpora, oracles and work of the four services."""
    targets = targets_of(context)
    answers = asyncio.run(ask(targets))
    failed = [answer for answer in answers.values() if isinstance(answer, AeencError)]
    rows = [_row(service, str(getattr(targets, service)), answer) for service, answer in answers.items()]
    shown = table(["service", "target", "state", "about"], rows)
    output_of(context).result(report_of(targets, answers), shown)
    if failed:
        raise failed[0]


STABLE = "stable"
OPTIONAL = {"share", "generation"}  # shown when set
Label = Annotated[str, typer.Option(help="The label to move.")]
Wait = Annotated[float, typer.Option("--wait", min=0, max=60, help="Seconds to wait for every live encoder.")]


def moved_dict(moved: values.Publication | values.Rollback) -> dict[str, Any]:
    """Converts a moved label and its rollout to plain values."""
    label, gate = moved.label, {}
    if isinstance(moved, values.Publication):
        compared = [comparison_dict(one) for one in moved.comparisons]
        gate = {"comparisons": compared, "not_compared": moved.not_compared}
    return {
        **_label_dict(label),
        "complete": moved.complete,
        "generation": moved.generation,
        **({"gate": gate} if gate else {}),
        "rollouts": [
            fields_of(rollout, "instance", "revision=label.revision", "ok", "reason")
            | {"lag": _lag(rollout, label.revision)}
            for rollout in moved.rollouts
        ],
    }


def _gate_shown(gate: dict[str, Any]) -> list[RenderableType]:
    """Says what the quality gate compared, or why nothing; empty where no gate was asked."""
    if not gate.get("comparisons"):
        return [f"not compared: {gate['not_compared']}"] if gate.get("not_compared") else []
    rows = [
        (
            one["version"],
            f"{one['queries']:,}",
            f"{one['candidate_map']:.3f}",
            f"{one['version_map']:.3f}",
            outcome_words(one),
        )
        for one in gate["comparisons"]
    ]
    return [table(["compared with", "queries", "MAP", "its MAP", "outcome"], rows, right=4, whole=("outcome",))]


def _lag(rollout: values.Rollout, revision: int) -> str:
    """Says why an encoder does not serve a revision; empty when it does. Ignores reports on earlier revisions."""
    if (now := rollout.label.revision) < revision:
        at = f"is still at revision {now}" if now else ""
        return ": ".join(part for part in (at, rollout.reason) if part) or "has not answered yet"
    return "" if rollout.ok else rollout.reason or "gives no reason"


def publish(
    context: typer.Context,
    versions: Annotated[list[str], typer.Argument(help="The checkpoint, or the cross-encoders of an ensemble.")],
    label: Label = STABLE,
    wait_s: Wait = 60.0,
    anyway: Annotated[
        bool, typer.Option("--anyway", "--force", help="Publish also what was not shown to be better.")
    ] = False,
    share: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of the calls naming no model, for label canary.")
    ] = None,
    precision: Annotated[
        Literal["float32", "float16", "int8"] | None,
        typer.Option(show_default="the best of all encoders", help="How exactly every encoder computes it."),
    ] = None,
) -> None:
    """Points a label at a checkpoint and waits until every live encoder serves it.

    Label `stable` takes only what is better than what it serves, or what --anyway says; other labels refuse only what
    is worse.

    A checkpoint of mode siamese or dual becomes `stable` as one with its generation, or not at all. Several
    cross-encoders re-rank together.
    """
    connected = client(context)
    _reach_registry(connected)
    moved = connected.registry.publish(
        versions,
        label=label,
        wait_s=wait_s,
        force=anyway,
        only_better=label == STABLE and not anyway,
        share=share,
        precision=precision,
    )
    _show(output_of(context), moved, wait_s, versions)


def rollback(
    context: typer.Context,
    label: Label = STABLE,
    space_id: Annotated[str, typer.Option("--space", help="Its space; default: the trainer's own.")] = "",
    corpus: Annotated[
        str, typer.Option(help="Take back the generation of this corpus that was published with its encoders.")
    ] = "",
    wait_s: Wait = 60.0,
) -> None:
    """Points a label back at the version it named before and waits until every live encoder serves it."""
    connected = client(context)
    _reach_registry(connected)
    moved = connected.registry.rollback(label=label, space_id=space_id, wait_s=wait_s, corpus=corpus)
    was, now = " and ".join(moved.label.previous_versions), " and ".join(moved.label.versions)
    notes = [f"was {was}, now {now}; another rollback returns to {was}"] if was else []
    _show(output_of(context), moved, wait_s, notes=notes)


def checkpoints(context: typer.Context) -> None:
    """Lists checkpoints, newest first; `delete` removes one that nothing needs."""
    found = [checkpoint_dict(one) for one in client(context).trainer.list_checkpoints()]
    columns, apart = _by_space(["version", "labels", "validation map", "bytes"], found)
    rows = [[one["version"], *apart(one), ", ".join(one["labels"]), *_figures(one)] for one in found]
    shown = table(columns, rows, right=2, whole=("version", "space"))
    output_of(context).result({"checkpoints": found}, shown)


def _by_space(columns: list[str], found: Sequence[Mapping[str, Any]]) -> tuple[list[str], Callable[..., list[str]]]:
    """Adds the column of the space after the first, where there are several, and tells what stands there."""
    if len({one["space_id"] for one in found}) < 2:
        return columns, lambda _: []
    return [columns[0], "space", *columns[1:]], lambda one: [one["space_id"]]


def labels(context: typer.Context) -> None:
    """Lists what each label names; `delete` removes one."""
    found = [_label_dict(one) for one in client(context).registry.list_labels()]
    columns, apart = _by_space(["label", "versions", "previous"], found)
    rows = [
        [one["label"], *apart(one), ", ".join(one["versions"]), ", ".join(one["previous_versions"])] for one in found
    ]
    shown = table(columns, rows, whole=("space", "versions", "previous"))
    output_of(context).result({"labels": found}, shown if rows else "no labels")


def _label_dict(label: values.Label) -> dict[str, Any]:
    versions = ("versions", "previous_versions", "revision")
    return fields_of(label, "label=name", *versions, "space_id", "share", "precision")


def delete_label(
    context: typer.Context,
    label: Annotated[str, typer.Argument(help="The label.")],
    space_id: Annotated[str, typer.Option("--space", help="Its space; default: the trainer's own.")] = "",
) -> None:
    """Removes a label. Encoders no longer answer to it; the checkpoint stays."""
    client(context).registry.delete_label(label, space_id=space_id)
    output_of(context).result({"label": label, "deleted": True})


def checkpoint_dict(checkpoint: values.Checkpoint) -> dict[str, Any]:
    """Reads a checkpoint: its version, space, labels, quality and size."""
    return fields_of(checkpoint, "version", "space_id", "labels", "job=job_id", "validation_map", "bytes=size_bytes")


def _figures(checkpoint: dict[str, Any]) -> tuple[str, str]:
    measured = checkpoint["validation_map"]  # 0: it was not, as of a pre-trained encoder
    return f"{measured:.4f}" if measured else "", f"{checkpoint['bytes']:,}"


def delete_checkpoint(context: typer.Context, version: Annotated[str, typer.Argument(help="The checkpoint.")]) -> None:
    """Deletes a checkpoint that no label, tandem, live job or serving corpus needs."""
    client(context).trainer.delete_checkpoint(version)
    output_of(context).result({"version": version, "deleted": True})


def corpora(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(show_default="all, with what serves", help="Only this corpus's generations.")
    ] = "",
) -> None:
    """Lists the corpora with their active generations, or all generations of one, newest first."""
    connected = client(context)
    if name:
        found = list(connected.index.list_generations(name))
    else:
        found = [replace(one.active, corpus=one.corpus) for one in connected.index.list_corpora()]
    listed = [_generation_dict(one) for one in found]
    columns = ["corpus", "generation", "premises", "created", "active", "held by"][: 6 if name else 5]
    rows = [_generation_row(one)[: len(columns)] for one in found]
    shown = table(columns, rows, whole=("generation", "created", "held by"))
    output_of(context).result({"generations" if name else "corpora": listed}, shown if rows else "no corpora")


def _generation_row(one: values.Generation) -> tuple[str, ...]:
    if not one.id:
        return (one.corpus, "none serves", "", "", "")
    active = "yes" if one.active else "no"
    return (one.corpus, one.id, f"{one.premises:,}", shown_time(one.created_at), active, "\n".join(one.held_by))


def _generation_dict(one: values.Generation) -> dict[str, Any]:
    place = ("corpus", "generation=id", "premises", "active", "space_id")
    return fields_of(one, *place, "created_at", "bytes=size_bytes", "held_by")


Generation = Annotated[str, typer.Argument(help="The generation; `aeenc corpus list NAME` lists them.")]


def activate_generation(
    context: typer.Context, name: Annotated[str, typer.Argument(help="The corpus.")], generation: Generation
) -> None:
    """Lets searches see a generation, after a check of every file. The one before stays, and may be activated again."""
    moved = client(context).index.activate(name, generation)
    out = output_of(context)
    for one in moved.replicas:
        if one.behind:
            out.note(f"index {one.instance} still serves {one.generation or 'none'}: {one.reason}")
    behind = [one.instance for one in moved.replicas if one.behind]
    fields = {"generation": moved.active.id, "previous": moved.previous_generation, "premises": moved.active.premises}
    out.result({"corpus": name, **fields, "behind": behind})


def delete_corpus(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The corpus.")],
    generation: Annotated[
        str, typer.Argument(show_default="the whole corpus", help="Only this one; `aeenc corpus list NAME` lists them.")
    ] = "",
    despite: Annotated[
        list[str] | None, typer.Option(help="A holder, such as `run-<id>`, that will lose it; may be repeated.")
    ] = None,
) -> None:
    """Deletes a corpus with all its generations, or one generation that is not active. It cannot be had back.

    Nothing is deleted that somebody holds, such as a live run.
    """
    connected = client(context)
    if generation:
        connected.index.delete(name, generation, despite=despite or ())
    else:
        connected.index.delete_corpus(name, despite=despite or ())
    output_of(context).result({"corpus": name, "generation": generation or "all", "deleted": True})


def gc(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
) -> None:
    """Removes what the sampler's and the trainer's settings no longer keep, and what killed processes have left."""
    connected = client(context)
    services = (connected.sampler, connected.trainer)
    found = [one for service in services for one in service.collect_garbage(dry_run=dry_run)]
    garbage = [fields_of(one, "kind", "id", "reason", "bytes") for one in found]
    total = sum(one.bytes for one in found)
    rows = [(one.kind, one.id, one.reason, f"{one.bytes:,}") for one in found]
    done = "would be removed" if dry_run else "removed"
    output_of(context).result(
        {"garbage": garbage, "bytes": total, "dry_run": dry_run},
        *([table(["kind", "id", "reason", "bytes"], rows, right=1)] if rows else []),
        f"{len(found):,} {done}, {total:,} bytes",
    )


def _reach_registry(connected: Client) -> None:
    """Fails within --timeout where the registry cannot be reached, and not after --timeout and --wait."""
    list(connected.registry.list_labels())


def _show(
    out: Output,
    moved: values.Publication | values.Rollback,
    wait_s: float,
    versions: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> None:
    result = moved_dict(moved)
    rollouts = result["rollouts"]
    apart = {"rollouts", "gate"}
    fields = {name: value for name, value in result.items() if name not in apart and (value or name not in OPTIONAL)}
    rows = [(rollout["instance"], f"no: {rollout['lag']}" if rollout["lag"] else "yes") for rollout in rollouts]
    served = [table(["encoder", "serves it"], rows)] if rows else []
    out.result(result, fields_table(fields), *notes, *_gate_shown(result.get("gate", {})), *served)
    if wait_s and not moved.complete:
        raise EndedBadly(_why_incomplete(result, wait_s, versions))


def _why_incomplete(result: dict[str, Any], wait_s: float, versions: Sequence[str]) -> str:
    label, rollouts, named = result["label"], result["rollouts"], " and ".join(result["versions"])
    behind = [f"{rollout['instance']} ({rollout['lag']})" for rollout in rollouts if rollout["lag"]]
    if versions and result["versions"] != list(versions):
        return f"{label} has moved on to {named} (revision {result['revision']}) meanwhile"
    if behind:
        return f"{label} names {named}, but not every encoder serves it within {wait_s:g} s: {', '.join(behind)}"
    if rollouts:
        return f"{label} was moved again meanwhile, to revision {result['revision']}"
    return f"{label} names {named}, but no encoder is alive to serve it"

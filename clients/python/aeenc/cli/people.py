"""What people judge: queues, trees, tasks, their log, agreement, and the commands by which adjudicators decide."""

from __future__ import annotations

import getpass
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from aeenc import values
from aeenc.cli.output import fields_of, fields_table, output_of, shown_time, table
from aeenc.cli.targets import client
from aeenc.errors import InvalidArgument
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, Verdict
from aeenc.people import StateName

PAIRS_SHOWN = 5  # of people who agree least

RunId = Annotated[str, typer.Argument(help="A run whose oracle is a queue.", metavar="RUN")]
Annotator = Annotated[str, typer.Option(envvar="AEENC_ANNOTATOR", help="Who does it.", show_default="your login")]
Ids = Annotated[list[str] | None, typer.Option(metavar="ID", help="A premise's id; repeatable.")]


def queues(
    context: typer.Context,
    annotator: Annotated[
        str, typer.Option(envvar="AEENC_ANNOTATOR", help="Whose own numbers to show.", show_default="your login")
    ] = "",
) -> None:
    """Lists the queues of people: tasks that wait, are held, decided, in conflict and done, and answers an hour."""
    name = annotator or getpass.getuser()
    found = client(context).people.list_queues(name)
    columns = ["waiting", "free", "leased", "decided", "conflicts", "settled", "mine", "mine_hour", "answers_hour"]
    rows = [
        {"queue": queue.name, "run": run, **fields_of(counts, *columns)}
        for queue in found
        for run, counts in [("", queue.total), *((one.run_id, one) for one in queue.runs)]
    ]
    # With short heads, the runs below their queue, and a person's own numbers in lines, 80 columns hold all.
    heads = {
        "waiting": "waits",
        "free": "free",
        "leased": "held",
        "decided": "decided",
        "conflicts": "conflict",
        "settled": "done",
        "answers_hour": "hour",
    }
    cells = [[f"  {row['run']}" if row["run"] else row["queue"], *(row[one] for one in heads)] for row in rows]
    shown = table(["queue, run", *heads.values()], cells, right=len(heads), whole=("queue, run",))
    mine = [
        Text(f"{name} in queue {row['queue']}: {row['mine']} answers, {row['mine_hour']} in the last hour")
        for row in rows
        if row["mine"] and not row["run"]
    ]
    output_of(context).result({"annotator": name, "queues": rows}, *([shown, *mine] if rows else [Text("no queues")]))


def tree(
    context: typer.Context,
    run: RunId,
    hypothesis: Annotated[str, typer.Argument(help="The id of a hypothesis of the run.")],
) -> None:
    """Draws a tree as it is: what explains each node, and the nodes that wait for people."""
    found = client(context).people.get_tree(run, hypothesis)
    drawn: dict[str, Tree] = {}
    children = {(node.parent_id, node.text) for node in found.nodes}
    for node in found.nodes:
        held = f", held by {', '.join(node.holders)}" if node.holders else ""
        note = "" if node.state is values.TaskState.SETTLED else f"  [{node.state.name.lower()}{held}]"
        note = f"  [written by {node.author}]{note}" if node.author else note
        line = Text(f"{node.text}{note}", style="bold" if node.accepted else "")
        drawn[node.node_id] = drawn[node.parent_id].add(line) if node.parent_id else Tree(line)
        for premise in node.accepted:
            if (node.node_id, premise.text) not in children:
                drawn[node.node_id].add(Text(f"{premise.text}{'  [leaf]' if premise.leaf else ''}"))
    nodes = [
        {
            **fields_of(node, "node=node_id", "parent=parent_id", "text", "author", "state", "task=task_id"),
            "accepted": [fields_of(one, "id=premise_id", "text", "leaf") for one in node.accepted],
            "holders": list(node.holders),
            "answers": [_answer_dict(answer) for answer in node.answers],
        }
        for node in found.nodes
    ]
    result = {"run": run, "hypothesis": hypothesis, "finished": found.finished, "nodes": nodes}
    output_of(context).result(result, drawn[found.nodes[0].node_id])


def tasks(
    context: typer.Context,
    run: RunId,
    state: Annotated[StateName | None, typer.Option(help="Only tasks in this state.")] = None,
) -> None:
    """Lists the tasks of a run: where they stand, who answered, and on what people disagree."""
    found = [_task_dict(task) for task in client(context).people.list_tasks(run, state=state)]
    shown = [line for task in found for line in _lines(task)]
    output_of(context).result({"tasks": found}, *(shown or [Text("no tasks")]))


def retrieve_again(
    context: typer.Context,
    run: RunId,
    hypothesis: Annotated[str, typer.Option(help="Only tasks of this tree.", show_default="all")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be retrieved again.")] = False,
    annotator: Annotator = "",
) -> None:
    """Lets a run retrieve by the version that its label names now: later nodes, and tasks that nobody has begun."""
    name = annotator or getpass.getuser()
    done = client(context).people.retrieve_again(run, name, hypothesis_id=hypothesis, dry_run=dry_run)
    result = {"run": run, "version": done.model_version, "tasks": list(done.task_ids), "dry_run": dry_run}
    verb = "would be" if dry_run else "are"
    output_of(context).result(
        result, Text(f"{len(done.task_ids)} tasks {verb} retrieved again by {done.model_version}")
    )


def changes(
    context: typer.Context,
    run: RunId,
    task: Annotated[str, typer.Option(help="Only changes of this task.", show_default="all")] = "",
) -> None:
    """Lists what people have done with the tasks of a run, oldest first: the audit trail."""
    found = [_change_dict(change) for change in client(context).people.list_changes(run, task_id=task)]
    columns = ["seq", "at", "change", "person", "query", "task", "detail"]
    rows = [
        [one["seq"], shown_time(datetime.fromisoformat(one["at"])), *(one[column] for column in columns[2:])]
        for one in found
    ]
    shown = table(columns, rows, whole=("at", "task"))
    output_of(context).result({"changes": found}, shown if found else Text("no changes"))


def agreement(context: typer.Context, run: RunId) -> None:
    """Tells how far the annotators of a run agree, and how they did on control items."""
    found = client(context).people.get_agreement(run)
    measures = ("cohen_kappa", "fleiss_kappa", "krippendorff_alpha", "positive_agreement", "edge_f1")
    figures = fields_of(found, *measures, "candidates", "annotators")
    # Without two answers to one task there are neither, while the table below has those who answered.
    renamed = {"candidates": "candidates_in_common", "annotators": "annotators_compared"}
    common = {renamed.get(name, name): figure for name, figure in figures.items()}
    names = [report.annotator for report in found.reports]
    reports = [_report_dict(report, names) for report in found.reports]
    columns = ["annotator", "answers", "last_hour", "late", "controls_right", "median_s", "refused"]
    shown = [table([c.replace("_", " ") for c in columns], [[one[c] for c in columns] for one in reports], right=6)]
    pairs = [(figure, one["annotator"], other) for one in reports for other, figure in one["agrees_with"].items()]
    if apart := sorted(pair for pair in pairs if pair[1] < pair[2])[:PAIRS_SHOWN]:
        rows = [[one, other, f"{figure:.3f}"] for figure, one, other in apart]
        shown.append(table(["least agreement", "with", "positive agreement"], rows, right=1))
    controls = [_control_dict(one) for one in found.controls]
    if controls:
        titles = ["control item", "answers", "right", "mistakes"]
        rows = [[one["query"], one["answers"], one["right"], "; ".join(one["mistakes"])] for one in controls]
        shown.append(table(titles, rows))
    output_of(context).result({**figures, "reports": reports, "controls": controls}, fields_table(common), *shown)


def adjudicate(
    context: typer.Context,
    run: RunId,
    task: Annotated[str, typer.Argument(help="A task in conflict; `aeenc tasks RUN --state conflict` lists them.")],
    explains: Ids = None,
    refuses: Ids = None,
    abstain: Ids = None,
    annotator: Annotator = "",
) -> None:
    """Decides a conflict: names each premise in conflict as explaining, refused, or (abstain) never to learn from."""
    verdicts: dict[str, Verdict] = {}
    for ids, judgement in ((explains, EXPLAINS), (refuses, REFUSES), (abstain, ABSTAINS)):
        for premise_id in ids or ():
            if premise_id in verdicts:
                raise InvalidArgument(f"{premise_id} is named twice; decide it once")
            verdicts[premise_id] = Verdict(judgement)
    answer_id = client(context).people.adjudicate(run, task, verdicts, annotator or getpass.getuser())
    output_of(context).result({"run": run, "task": task, "answer": answer_id})


def close(
    context: typer.Context,
    run: RunId,
    task: Annotated[str, typer.Argument(help="A task that nobody will answer any more; `aeenc tasks RUN` lists them.")],
    reason: Annotated[str, typer.Option(help="Why; kept in the log.")] = "",
    annotator: Annotator = "",
) -> None:
    """Closes a task: the answers that there are decide it, and what they leave open is never learned from."""
    closed = client(context).people.close(run, task, annotator or getpass.getuser(), reason=reason)
    shown = _task_dict(closed)
    output_of(context).result(shown, *_lines(shown))


def _change_dict(change: values.TaskEvent) -> dict[str, Any]:
    answer = change.answer
    verdicts = (*answer.verdicts, *answer.additions) if answer else ()
    overlap = f"overlap {change.overlap}" if change.overlap else ""
    return {
        **fields_of(change, "seq", "at", "change=kind", "person", "task=task_id", "query"),
        "detail": change.reason or overlap or change.model_version or (answer.note if answer else ""),
        "answer": answer.answer_id if answer else "",
        "former_answer": change.former_answer_id,
        "verdicts": {verdict.premise_id: _word(verdict) for verdict in verdicts},
    }


def _lines(task: dict[str, Any]) -> list[Text]:
    """Formats a task for a person, with ids that can be copied whole."""
    people = ", ".join(answer["annotator"] for answer in task["answers"])
    lines = [Text(f"{task['task']}  {task['state']:<8}  {task['query']}  ({people or 'nobody yet'})")]
    for answer in task["answers"]:
        who = answer["annotator"]
        lines += [Text(f"    {one['id']}  {one['text']}  (added by {who})") for one in answer["additions"]]
        lines += [Text(f"    {text}  (written by {who})") for text in answer["written"]]
    lines += [Text(f"    {c['id']}  {c['text']}  ({c['said']})", style="yellow") for c in task["conflicts"]]
    return lines


def _task_dict(task: values.JudgedTask) -> dict[str, Any]:
    texts = {one.premise.id: one.premise.text for one in task.task.candidates}
    texts |= {verdict.premise_id: verdict.text for answer in task.answers for verdict in answer.additions}
    words_of = {
        answer.annotator: {verdict.premise_id: _word(verdict) for verdict in (*answer.verdicts, *answer.additions)}
        for answer in task.answers
    }
    return {
        "task": task.task.task_id,
        "state": task.state.name,
        "query": task.task.query,
        "answers": [_answer_dict(answer) for answer in task.answers],
        "conflicts": [
            {
                "id": premise_id,
                "text": texts[premise_id],
                "said": ", ".join(f"{who}: {words.get(premise_id, 'unseen')}" for who, words in words_of.items()),
            }
            for premise_id in task.conflicts
        ],
        "adjudicator": task.decision.annotator,
    }


def _answer_dict(answer: values.Answer) -> dict[str, Any]:
    return {
        **fields_of(answer, "answer=answer_id", "annotator", "late"),
        "in_sight_ms": {one.premise_id: one.in_sight_ms for one in answer.verdicts if one.in_sight_ms},
        "additions": [fields_of(one, "id=premise_id", "text") for one in answer.additions],
        **fields_of(answer, "written", "intermediates", "inference"),
        "alternatives": [list(one.premise_ids) for one in answer.alternatives],
        "node_verdict": "" if not answer.node_verdict else answer.node_verdict.name.lower(),
    }


def _report_dict(report: values.AnnotatorReport, names: Sequence[str]) -> dict[str, Any]:
    agrees = zip(names, report.positive_agreement, strict=False)
    return {
        **fields_of(report, "annotator", "answers", "last_hour=answers_hour", "late"),
        "controls_right": f"{report.control_correct} of {report.control_verdicts}",
        "median_s": round(report.median_elapsed.total_seconds(), 1),
        "refused": "" if math.isnan(report.refused_share) else f"{report.refused_share:.0%}",
        "agrees_with": {name: figure for name, figure in agrees if not math.isnan(figure)},
    }


def _control_dict(control: values.ControlReport) -> dict[str, Any]:
    return {
        "query": control.query,
        "answers": control.answers,
        "right": f"{control.correct} of {control.verdicts}",
        "mistakes": [f"{one.right.text} ({_word(one.right)}; {one.people} otherwise)" for one in control.mistakes],
    }


def _word(verdict: values.Verdict) -> str:
    return verdict.judgement.name.lower().replace("_", " ")

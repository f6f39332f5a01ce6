"""The output of commands: one JSON object for programs; tables, and progress on stderr, for people.

Only results go to stdout. With --json, notes and errors go to stderr, one JSON object a line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

import typer

from aeenc import values
from aeenc.errors import AeencError

if TYPE_CHECKING:  # rich is for results: a command that fails, or has one for a program, need not wait for it
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.progress import ProgressColumn, Task
    from rich.table import Table

_KEY = "aeenc.output"
PROTOCOLS = ("strict", "paper")
WORD = 12  # letters

Report = Callable[[int, int, str], None]


# Codes that a terminal obeys, or that turn the order of letters: facts come from others, and may hold them.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """Replaces what a terminal would obey instead of showing it."""
    return _OBEYED.sub("\ufffd", text)


class Visible:
    """Something that rich draws, with its texts made `visible`; colours are rich's own."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields what the console draws."""
        from rich.segment import Segment

        for segment in console.render(self._renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


class EndedBadly(AeencError):
    """Long work (a run, a job, a rollout) started but failed, was cancelled or stayed incomplete."""

    default_reason = "ENDED_BADLY"


@dataclass(frozen=True)
class Output:
    """The output of this invocation, for a program (`as_json`) or for a person."""

    as_json: bool = False

    def result(self, values: Mapping[str, Any], *shown: RenderableType) -> None:
        """Writes a result to stdout: `values` for a program, `shown` (default: the values) for a person."""
        if self.as_json:
            typer.echo(json.dumps(values))
            return
        from rich.console import Console

        console = Console(highlight=False, markup=False, emoji=False)  # a text of others may have brackets and colons
        for renderable in shown or (fields_table(values),):
            console.print(Visible(renderable), crop=False)  # an id that is cut at the edge is worth nothing

    def note(self, text: str) -> None:
        """Writes a note to stderr: a line for a person, {"note": …} for a program."""
        typer.echo(json.dumps({"note": text}) if self.as_json else visible(text), err=True)

    def error(self, failure: AeencError) -> None:
        """Writes to stderr, in one line, why the command failed, with the request id for the service's log."""
        problem = {"status": failure.code, "message": " ".join(failure.message.split())}
        if failure.request_id:
            problem["request_id"] = failure.request_id
        line = " ".join(str(failure).split())
        typer.echo(json.dumps({"error": problem}) if self.as_json else f"error: {visible(line)}", err=True)

    @contextmanager
    def on_interrupt(self, remedy: str) -> Iterator[None]:
        """Notes how to go on when the body is interrupted by Ctrl-C."""
        try:
            yield
        except KeyboardInterrupt:
            self.note(f"interrupted; {remedy}")
            raise

    @contextmanager
    def progress(self, text: str, unit: str) -> Iterator[Report]:
        """Shows a progress bar on stderr. Call the yielded function with (done, total, text), from any thread."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            _rate(unit),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), disable=self.as_json) as bar:
            task = bar.add_task(text, total=None)

            def report(done: int, total: int, now: str) -> None:
                bar.update(task, completed=done, total=total or None, description=now or text)

            try:
                yield report
            finally:
                if bar.tasks[0].total is None and not bar.tasks[0].completed:  # there was nothing to do
                    bar.update(task, visible=False)


def _rate(unit: str) -> ProgressColumn:
    """A column of units per second."""
    from rich.progress import ProgressColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            if not speed and (elapsed_s := task.finished_time or task.elapsed):  # all came in one report
                speed = task.completed / elapsed_s
            return Text(f"{speed:,.0f} {unit}/s" if speed else "")

    return Rate()


def remember(context: typer.Context, output: Output) -> None:
    """Keeps the output of this invocation."""
    context.meta[_KEY] = output


def output_of(context: typer.Context) -> Output:
    """Returns the output of this invocation."""
    output: Output = context.meta.get(_KEY, Output())
    return output


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str = "",
    right: int = 0,
    whole: Collection[str] = (),
) -> Table:
    """Makes a table of texts without markup; aligns the last `right` columns right.

    The columns `whole`, of ids and times, are never broken over lines, so that what stands there can be copied. A
    terminal too narrow for these and a word of the others gets longer lines.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    cells = [[str(row[place]).split("\n") for row in (columns, *rows)] for place in range(len(columns))]
    widths = [max(cell_len(line) for lines in column for line in lines) for column in cells]
    least = sum(3 + (width if name in whole else min(width, WORD)) for name, width in zip(columns, widths, strict=True))
    made = Table(title=Text(title) if title else None, title_justify="left")
    if whole and least + 1 > Console().width:
        made.width = least + 1
    for place, name in enumerate(columns):
        justify: Literal["left", "right"] = "right" if place >= len(columns) - right else "left"
        width = widths[place] if name in whole else None
        made.add_column(name, justify=justify, overflow="fold", min_width=width, no_wrap=name in whole)
    for row in rows:
        made.add_row(*(Text(str(cell)) for cell in row))
    return made


def fields_table(values: Mapping[str, Any]) -> Table:
    """Makes a table with one field of a result per line; leaves empty ones out."""
    from rich.table import Table
    from rich.text import Text

    made = Table(show_header=False, box=None, pad_edge=False)
    for name, value in values.items():
        if value not in ("", None, []):
            text = f"{value:,.4g}" if isinstance(value, float) else str(value)
            text = ", ".join(map(str, value)) if isinstance(value, list) else text
            made.add_row(Text(name.replace("_", " "), style="bold"), Text(text))
    return made


def fields_of(value: object, *fields: str) -> dict[str, Any]:
    """Reads fields of a value as plain ones: `name`, or `other name=path.to.field`.

    An enum becomes its name in lower case, a tuple a list, a time its ISO text, and NaN and infinity, which JSON lacks,
    None.
    """
    paths = [(name, path or name) for name, _, path in (field.partition("=") for field in fields)]
    return {name: _plain(attrgetter(path)(value)) for name, path in paths}


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def shown_time(at: datetime) -> str:
    """Writes a point in time for a person: to the second, by this machine's clock."""
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}"


_OUTCOMES = {"better": "better", "no_difference": "no difference shown", "worse": "worse"}


def comparison_dict(compared: values.GateComparison) -> dict[str, Any]:
    """Converts what a version was compared with to plain values."""
    figures = ("candidate_map", "version_map", "p_value", "p_better")
    return fields_of(compared, "version", "queries", *figures, "outcome")


def outcome_words(compared: Mapping[str, Any]) -> str:
    """Describes the outcome of a `comparison_dict`, such as `better (+.334, p .0001)`; p of the change's direction."""
    if compared["outcome"] not in _OUTCOMES:
        return "too few"
    change = compared["candidate_map"] - compared["version_map"]
    p_value = compared["p_better" if change > 0 else "p_value"]
    shown = f"{p_value:.{4 if p_value < 0.001 else 3}f}".removeprefix("0")
    return f"{_OUTCOMES[compared['outcome']]} ({change:+.3f}, p {shown})".replace("0.", ".", 1)


def metrics_table(before: Mapping[str, Any], after: Mapping[str, Any]) -> Table:
    """Makes a table of both protocols of two reports, with the change; `report_dict` makes the reports."""
    from aeenc.evaluation.metrics import METRIC_FIELDS  # other commands need no numpy

    columns = ["metric", *(f"{protocol} {what}" for protocol in PROTOCOLS for what in ("before", "after", "change"))]
    rows = []
    for name in METRIC_FIELDS:
        row = [name]
        for protocol in PROTOCOLS:
            old, new = before[protocol][name], after[protocol][name]
            row += [f"{old:.3f}", f"{new:.3f}", f"{new - old:+.3f}"]
        rows.append(row)
    return table(columns, rows, right=len(columns) - 1)

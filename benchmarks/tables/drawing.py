"""The figures of docs/results as PNG."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables.table_text import MeasuredRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS, PAPER = "#3b6ea5", "#d1495b"
KINDS = {"TP": "#2a9d8f", "FN": "#e9a23b", "FP": "#8a8d91"}
DPI = 150


def panels(count: int, size: tuple[float, float], *, sharey: bool = False) -> tuple[Figure, Any]:
    """A figure of a size in inches, and its axes (count,) side by side."""
    from matplotlib.figure import Figure  # takes longer than all else that a caller without pictures imports

    figure = Figure(figsize=size)
    axes = figure.subplots(1, count, squeeze=False, sharey=sharey)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def keep(figure: Figure, path: Path, **layout: Any) -> None:
    """Writes a picture."""
    figure.tight_layout(**layout)
    figure.savefig(path, dpi=DPI)


def draw_table1(rows: Sequence[MeasuredRow], split: str, source: str, path: Path) -> None:
    """MAP and Hit@10 of protocol paper, row by row, with what the paper prints."""
    from matplotlib.lines import Line2D

    rows = rows[::-1]
    figure, axes = panels(2, (11, 1.4 + 0.32 * len(rows)), sharey=True)
    for axis, metric in zip(axes, ("MAP", "Hit@10"), strict=True):
        for place, row in enumerate(rows):
            values = row.values("paper", metric)
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            mean = statistics.mean(values)
            axis.barh(place, mean, xerr=spread or None, color=OURS, height=0.62)
            axis.text(max(mean, row.paper.get(metric, 0.0)) + 0.018, place, f"{mean:.3f}", va="center", fontsize=8)
            if metric in row.paper:
                axis.plot(row.paper[metric], place, "D", color=PAPER, markersize=6)
        axis.set_xlabel(f"{metric}, protocol paper")
        axis.set_xlim(0, max([0.6, *(max(row.values("paper", metric)) for row in rows)]) * 1.15)
    axes[0].set_yticks(range(len(rows)), [row.title for row in rows], fontsize=8)
    handles = [
        Line2D([], [], color=OURS, linewidth=6, label=f"here, {split} split"),
        Line2D([], [], color=PAPER, marker="D", linestyle="", label=source),
    ]
    figure.legend(handles=handles, loc="upper right", ncols=2, frameon=False, fontsize=8)
    keep(figure, path, rect=(0, 0, 1, 1 - 0.35 / (1.4 + 0.32 * len(rows))))


def draw_distributions(measures: Mapping[str, Mapping[str, NDArray[np.float64]]], path: Path) -> None:
    """A panel for each measure, with the distributions of TP, FN and FP; `measures[measure][kind]` (n,)."""
    figure, axes = panels(len(measures), (3.4 * len(measures), 3.2))
    for axis, (measure, by_kind) in zip(axes, measures.items(), strict=True):
        for kind, values in by_kind.items():
            drawn = {"alpha": 0.4, "color": KINDS[kind], "label": f"{kind} ({len(values):,})"}
            axis.hist(values.clip(0, 1), np.linspace(0, 1, 41), density=True, histtype="stepfilled", **drawn)
            axis.axvline(float(values.mean()), color=KINDS[kind], linestyle="--", linewidth=1)
        axis.set_xlabel(measure)
        axis.legend(frameon=False, fontsize=7)
    axes[0].set_ylabel("density")
    keep(figure, path)


def draw_stages(points: Mapping[str, tuple[float, float]], quality: str, path: Path) -> None:
    """Draws the cost and quality of each way to retrieve: (median milliseconds of one query, quality) by name."""
    figure, [axis] = panels(1, (6, 3.4))
    axis.plot(*zip(*points.values(), strict=True), "o", color=OURS)
    qualities = [at for _, at in points.values()]
    apart, height = (max(qualities) - min(qualities)) / 14, float("-inf")
    for name, (ms, at) in sorted(points.items(), key=lambda one: one[1][1]):
        height = max(at, height + apart)  # above the label before, so that none covers another
        axis.annotate(name, (ms, height), xytext=(8, 0), textcoords="offset points", va="center", fontsize=8)
    axis.set_xlabel("milliseconds, median of one query")
    axis.set_ylabel(quality)
    axis.set_xlim(0, 1.6 * max(ms for ms, _ in points.values()))
    axis.margins(y=0.15)
    keep(figure, path)

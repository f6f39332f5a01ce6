"""A tree drawn: as text for a terminal, in Graphviz's language DOT, and as SVG.

The SVG is laid out here, so that nothing needs to be installed to look at it. In both pictures the hypothesis stands to
the left and its premises to the right of it.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from html import escape

from aeenc.trees.tree import ROOT, Tree

_DOT_HEAD = """  graph [rankdir=LR, nodesep=0.15]
  node [shape=box, style="rounded,filled", fillcolor=white, fontname="sans-serif", fontsize=11]
  edge [dir=back, color=gray40]"""
# Pixels.
BOX_WIDTH, COLUMN_GAP, ROW_GAP, MARGIN, PADDING = 250, 46, 10, 16, 8
LINE_HEIGHT, FONT_SIZE = 16, 12
LINE_CHARACTERS = 32  # in a box, in a wide sans-serif font; half as many capitals or ideographs
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FILL = {"root": "#fff3c4", "inner": "#e8eef7", "leaf": "#ffffff", "marked": "#d9f2d9"}


def draw(tree: Tree, *, width: int = 100, marked: Collection[str] = ()) -> str:
    """Draws the tree as text, the hypothesis first. Premises whose text is in `marked` get a check mark."""
    lines = textwrap.wrap(tree.hypothesis, width)
    lines += _below(tree, ROOT, "", width, marked)
    return "\n".join(lines)


def _below(tree: Tree, label: str, indent: str, width: int, marked: Collection[str]) -> list[str]:
    lines = []
    children = tree.children.get(label, ())
    for position, child in enumerate(children):
        last = position == len(children) - 1
        text = tree.texts[child]
        mark = "✓ " if text in marked else ""
        first, rest = indent + ("└─ " if last else "├─ "), indent + ("   " if last else "│  ")
        wrapped = textwrap.wrap(mark + text, max(width - len(first), 20)) or [""]
        lines += [first + wrapped[0], *(rest + line for line in wrapped[1:])]
        lines += _below(tree, child, rest, width, marked)
    return lines


def to_dot(tree: Tree, *, width: int = 36, marked: Collection[str] = ()) -> str:
    """Draws the tree as a `digraph`. A premise of two conclusions is one node. Texts in `marked` are green."""
    lines = [f"digraph {_quoted(tree.id)} {{", _DOT_HEAD]
    drawn: set[str] = set()
    waiting = [ROOT]
    while waiting:
        label = waiting.pop(0)
        if label in drawn:
            continue
        drawn.add(label)
        lines.append(f"  {_quoted(label)} [label={_dot_label(tree.texts[label], width)}{_look(tree, label, marked)}]")
        for child in tree.children.get(label, ()):
            lines.append(f"  {_quoted(label)} -> {_quoted(child)}")
            waiting.append(child)
    return "\n".join([*lines, "}", ""])


def _look(tree: Tree, label: str, marked: Collection[str]) -> str:
    if label == ROOT:
        return ', fillcolor="#fff3c4"'
    if tree.texts[label] in marked:
        return ', fillcolor="#d9f2d9"'
    return ', fillcolor="#e8eef7"' if label in tree.children else ""


def _dot_label(text: str, width: int) -> str:
    lines = textwrap.wrap(text, width) or [""]
    return '"' + "\\n".join(_escaped(line) for line in lines) + '"'


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


@dataclass(frozen=True)
class _Box:
    """One node: its text in lines, its top left corner, and the boxes of its premises."""

    lines: tuple[str, ...]
    kind: str
    left: int
    top: float
    premises: tuple[_Box, ...]

    @property
    def height(self) -> int:
        return len(self.lines) * LINE_HEIGHT + 2 * PADDING

    @property
    def middle(self) -> float:
        return self.top + self.height / 2

    def all(self) -> Iterator[_Box]:
        """Yields this box and all boxes to its right."""
        yield self
        for premise in self.premises:
            yield from premise.all()


def to_svg(tree: Tree, *, marked: Collection[str] = ()) -> str:
    """Draws the tree as one SVG document. Boxes whose text is in `marked` are green."""
    root, _ = _placed(tree, ROOT, MARGIN, MARGIN, marked)
    boxes = list(root.all())
    width = max(box.left for box in boxes) + BOX_WIDTH + MARGIN
    height = max(box.top + box.height for box in boxes) + MARGIN
    size = f'width="{width}" height="{height:.0f}" viewBox="0 0 {width} {height:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="{FONT_SIZE}">',
            f"<title>{_text(tree.hypothesis)}</title>",
            '<g fill="none" stroke="#7a7a7a">',
            *(_line(box, premise) for box in boxes for premise in box.premises),
            "</g>",
            *(_drawn(box) for box in boxes),
            "</svg>",
            "",
        ]
    )


def _placed(tree: Tree, label: str, left: int, top: float, marked: Collection[str]) -> tuple[_Box, float]:
    """Lays out a node with its subtree; returns its box and the height of all."""
    text = tree.texts[label]
    lines = tuple(_wrapped(text))
    kind = "marked" if text in marked else "root" if label == ROOT else "inner" if label in tree.children else "leaf"
    own = _Box(lines, kind, left, top, ())
    premises: list[_Box] = []
    bottom = top
    for child in tree.children.get(label, ()):
        start = bottom + ROW_GAP if premises else top
        box, height = _placed(tree, child, left + BOX_WIDTH + COLUMN_GAP, start, marked)
        premises.append(box)
        bottom = start + height
    if not premises:
        return own, own.height
    middle = (premises[0].middle + premises[-1].middle) / 2
    own_top = max(top, middle - own.height / 2)
    return _Box(lines, kind, left, own_top, tuple(premises)), max(bottom, own_top + own.height) - top


def _wrapped(text: str) -> list[str]:
    wide = text.isupper() or any(unicodedata.east_asian_width(character) in "FW" for character in text)
    return textwrap.wrap(text, LINE_CHARACTERS // 2 if wide else LINE_CHARACTERS) or [""]


def _line(box: _Box, premise: _Box) -> str:
    start, end = box.left + BOX_WIDTH, premise.left
    bend = (start + end) / 2
    path = f"M{start} {box.middle:.1f} C{bend:.0f} {box.middle:.1f} {bend:.0f} {premise.middle:.1f}"
    return f'<path d="{path} {end} {premise.middle:.1f}"/>'


def _drawn(box: _Box) -> str:
    frame = (
        f'<rect x="{box.left}" y="{box.top:.1f}" width="{BOX_WIDTH}" height="{box.height}" rx="6" '
        f'fill="{_FILL[box.kind]}" stroke="#4a4a4a"/>'
    )
    first = box.top + PADDING + FONT_SIZE
    spans = (
        f'<tspan x="{box.left + PADDING}" y="{first + number * LINE_HEIGHT:.1f}">{_text(line)}</tspan>'
        for number, line in enumerate(box.lines)
    )
    return f"{frame}<text>{''.join(spans)}</text>"


def _text(text: str) -> str:
    return escape(_NOT_IN_XML.sub("\ufffd", text), quote=False)

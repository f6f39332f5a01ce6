"""A tree drawn: as text for a terminal, and as SVG.

The SVG is laid out here, so that nothing needs to be installed to look at it. In it the hypothesis stands to the left
and its premises to the right of it.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass, replace
from html import escape

from aeenc.trees.tree import ROOT, Tree

# Pixels.
BOX_WIDTH, COLUMN_GAP, ROW_GAP, MARGIN, PADDING = 250, 46, 10, 16, 8
LINE_HEIGHT, FONT_SIZE = 16, 12
LINE_CHARACTERS = 32  # in a box, in a wide sans-serif font; half as many capitals or ideographs
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def draw(tree: Tree, *, width: int = 100, marked: Collection[str] = ()) -> str:
    """Draws the tree as text, the hypothesis first. Premises whose text is in `marked` get a check mark.

    What explains a premise of two conclusions stands below the first of them.
    """
    lines = textwrap.wrap(tree.hypothesis, width)
    drawn: set[str] = set()
    waiting = _level(tree, ROOT, "")
    while waiting:
        label, indent, is_last = waiting.pop()
        again = label in drawn and label in tree.children
        drawn.add(label)
        mark = "✓ " if tree.texts[label] in marked else ""
        first, rest = indent + ("└─ " if is_last else "├─ "), indent + ("   " if is_last else "│  ")
        text = f"{mark}{tree.texts[label]}{' (as above)' if again else ''}"
        wrapped = textwrap.wrap(text, max(width - len(first), 20)) or [""]
        lines += [first + wrapped[0], *(rest + line for line in wrapped[1:])]
        waiting += [] if again else _level(tree, label, rest)
    return "\n".join(lines)


def _level(tree: Tree, label: str, indent: str) -> list[tuple[str, str, bool]]:
    """Lists the premises of a label, the last one first, with the indent and whether each is the last."""
    children = tree.children.get(label, ())[::-1]
    return [(child, indent, position == 0) for position, child in enumerate(children)]


def _fill(tree: Tree, label: str) -> str:
    return "#fff3c4" if label == ROOT else "#e8eef7" if label in tree.children else "#ffffff"


@dataclass(frozen=True)
class _Box:
    """One node: its text in lines, its colour, and its top left corner."""

    lines: tuple[str, ...]
    colour: str
    left: int
    top: float

    @property
    def height(self) -> int:
        return len(self.lines) * LINE_HEIGHT + 2 * PADDING

    @property
    def middle(self) -> float:
        return self.top + self.height / 2


def to_svg(tree: Tree) -> str:
    """Draws the tree as one SVG document. A premise of two conclusions is one box."""
    boxes = _placed(tree)
    width = max(box.left for box in boxes.values()) + BOX_WIDTH + MARGIN
    height = max(box.top + box.height for box in boxes.values()) + MARGIN
    size = f'width="{width}" height="{height:.0f}" viewBox="0 0 {width} {height:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="{FONT_SIZE}">',
            f"<title>{_text(tree.hypothesis)}</title>",
            '<g fill="none" stroke="#7a7a7a">',
            *(_line(box, boxes[child]) for label, box in boxes.items() for child in tree.children.get(label, ())),
            "</g>",
            *(_drawn(box) for box in boxes.values()),
            "</svg>",
            "",
        ]
    )


def _placed(tree: Tree) -> dict[str, _Box]:
    """Lays out the nodes from the root on, each to the right of the first conclusion that it is a premise of."""
    below: dict[str, list[str]] = {ROOT: []}
    boxes: dict[str, _Box] = {}  # with tops that count from the top of their subtrees
    waiting = [(ROOT, MARGIN)]
    while waiting:
        label, left = waiting.pop()
        boxes[label] = _Box(tuple(_wrapped(tree.texts[label])), _fill(tree, label), left, 0.0)
        for child in tree.children.get(label, ()):
            if child not in below:
                below[label].append(child)
                below[child] = []
        waiting += [(child, left + BOX_WIDTH + COLUMN_GAP) for child in reversed(below[label])]
    heights, starts = dict[str, float](), dict[str, float]()  # of subtrees; starts count from that of the conclusion
    for label in reversed(boxes):
        bottom = 0.0
        for child in below[label]:
            starts[child] = bottom + ROW_GAP if child != below[label][0] else 0.0
            bottom = starts[child] + heights[child]
        if below[label]:
            middles = [starts[child] + boxes[child].middle for child in below[label]]
            middle = (middles[0] + middles[-1]) / 2
            boxes[label] = replace(boxes[label], top=max(0.0, middle - boxes[label].height / 2))
        heights[label] = max(bottom, boxes[label].top + boxes[label].height)
    starts[ROOT] = float(MARGIN)
    for label in list(boxes):
        for child in below[label]:
            starts[child] += starts[label]
        boxes[label] = replace(boxes[label], top=boxes[label].top + starts[label])
    return boxes


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
        f'fill="{box.colour}" stroke="#4a4a4a"/>'
    )
    first = box.top + PADDING + FONT_SIZE
    spans = (
        f'<tspan x="{box.left + PADDING}" y="{first + number * LINE_HEIGHT:.1f}">{_text(line)}</tspan>'
        for number, line in enumerate(box.lines)
    )
    return f"{frame}<text>{''.join(spans)}</text>"


def _text(text: str) -> str:
    return escape(_NOT_IN_XML.sub("\ufffd", text), quote=False)

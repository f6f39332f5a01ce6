"""A tree drawn for a terminal, with box characters and wrapped lines."""

from __future__ import annotations

import textwrap
from collections.abc import Collection

from aeenc.trees.tree import ROOT, Tree


def draw(tree: Tree, *, width: int = 100, marked: Collection[str] = ()) -> str:
    """The tree as text, the hypothesis first. Premises whose text is in `marked` get a check mark."""
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

"""A tree in Graphviz's language DOT: one box a node, the hypothesis to the left, arrows from its premises."""

from __future__ import annotations

import textwrap
from collections.abc import Collection

from aeenc.trees.tree import ROOT, Tree

_HEAD = """  graph [rankdir=LR, nodesep=0.15]
  node [shape=box, style="rounded,filled", fillcolor=white, fontname="sans-serif", fontsize=11]
  edge [dir=back, color=gray40]"""


def to_dot(tree: Tree, *, width: int = 36, marked: Collection[str] = ()) -> str:
    """The tree as a `digraph`. A premise of two conclusions is one node. Those whose text is in `marked` are green."""
    lines = [f"digraph {_quoted(tree.id)} {{", _HEAD]
    drawn: set[str] = set()
    waiting = [ROOT]
    while waiting:
        label = waiting.pop(0)
        if label in drawn:
            continue
        drawn.add(label)
        lines.append(f"  {_quoted(label)} [label={_wrapped(tree.texts[label], width)}{_look(tree, label, marked)}]")
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


def _wrapped(text: str, width: int) -> str:
    lines = textwrap.wrap(text, width) or [""]
    return '"' + "\\n".join(_escaped(line) for line in lines) + '"'


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")

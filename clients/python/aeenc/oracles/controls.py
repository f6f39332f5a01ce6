"""Control items from gold trees: tasks with known answers, mixed into people's queues to see who judges with care.

    {"query": …, "explains": […], "refuses": […], "path": […]}

A query's gold premises explain it. The premises to refuse come from other trees and share no content word with the
query, with its gold premises, or with any tree that holds it: whoever accepts one has not looked. Items are easy on
purpose: one about which experts could argue measures nobody.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass

from aeenc.errors import InvalidArgument
from aeenc.trees import ROOT, Dataset, Tree

_WORD = re.compile(r"[^\W\d_]{4,}")  # short words are mostly articles, prepositions, forms of "be"


@dataclass(frozen=True)
class ControlItem:
    """A query, premises that explain it, others that do not, and the texts from the root to the query's parent."""

    query: str
    explains: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    path: tuple[str, ...] = ()


def control_items(dataset: Dataset, split: str, *, count: int, candidates: int = 9, seed: int = 0) -> list[ControlItem]:
    """Draws at most `count` items of `candidates` premises each; the same seed draws the same items.

    Skips queries with `candidates` gold premises or more, and those with too few others.
    Raises NotFound for an unknown split, InvalidArgument for fewer than two candidates or when no query fits.
    """
    if candidates < 2:
        raise InvalidArgument.field("candidates", f"is {candidates}; give 2 or more: one explains and one does not")
    drawing = random.Random(seed)  # noqa: S311 -- draws a sample, protects nothing
    gold = {query.text: query.gold for query in dataset.queries(split)}
    paths, near = _surroundings(dataset.trees(split))
    words = {text: _words(text) for texts in near.values() for text in texts}
    others = sorted(set(words) - gold.keys())
    found: list[ControlItem] = []
    for query in drawing.sample(list(gold), len(gold)):
        explains = gold[query]
        if len(found) == count or len(explains) >= candidates:
            continue
        known = frozenset[str]().union(*(words[text] for text in near[query]))
        unlike = [text for text in drawing.sample(others, len(others)) if words[text] and not words[text] & known]
        wanted = candidates - len(explains)
        if len(unlike) >= wanted:
            found.append(ControlItem(query, explains, tuple(unlike[:wanted]), paths[query]))
    if not found:
        raise InvalidArgument(
            f"no query of split {split!r} has {candidates} candidates with a known answer; give fewer candidates"
        )
    return found


def _surroundings(trees: Iterable[Tree]) -> tuple[dict[str, tuple[str, ...]], dict[str, set[str]]]:
    """Finds, for each query, the path to it in the first tree that holds it, and the texts of all trees that do."""
    paths: dict[str, tuple[str, ...]] = {}
    near: dict[str, set[str]] = {}
    for tree in trees:
        used = {tree.texts[label] for label in (*tree.children, *tree.leaves)}
        path_to: dict[str, tuple[str, ...]] = {ROOT: ()}  # the path to each label
        for label in reversed(tree.upward):
            text, path = tree.texts[label], path_to[label]
            for child in tree.children.get(label, ()):
                path_to.setdefault(child, (*path, text))
            if label in tree.children:
                paths.setdefault(text, path)
                near.setdefault(text, set()).update(used)
    return paths, near


def _words(text: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(text))

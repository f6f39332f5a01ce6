"""Folds of a split: directories that each hold back a part of its trees, to train without them and to tune on them.

    DIR ──► OUT/fold-0 … fold-4, each with split `train` less its fold, the fold as `held-out`, other splits as they are

Trees that share a query, or where one has another's query as a premise, are in one fold. Facts are shared by most
trees and tie none together: they are candidates for every query anyway.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from aeenc.errors import InvalidArgument
from aeenc.trees.dataset import FACTS_FILE, Dataset, split_files
from aeenc.trees.files import tree_lines
from aeenc.trees.tree import Tree

HELD_OUT = "held-out"


def folds_of(trees: Sequence[Tree], number: int, seed: int = 0) -> list[list[int]]:
    """Deals trees into folds of nearly as many queries each; lists the places of each fold's trees, ascending.

    Connected trees are dealt together, the largest groups first and equal ones in an order drawn from the seed, to the
    fold with the fewest queries. Raises
    InvalidArgument where fewer than two folds are asked for, or more than there are groups of connected trees.
    """
    import numpy as np  # which no other call of the SDK's trees needs

    groups = connected(trees)
    if not 2 <= number <= len(groups):
        raise InvalidArgument(
            f"the number of folds must be between 2 and {len(groups)}, the groups of trees that share no query; "
            f"got {number}"
        )
    folds: list[list[int]] = [[] for _ in range(number)]
    sizes = [0] * number
    queries = [len({query for at in group for query in _queries(trees[at])}) for group in groups]
    drawn = np.random.default_rng(seed).permutation(len(groups)).tolist()
    for n in sorted(drawn, key=lambda n: -queries[n]):
        least = sizes.index(min(sizes))
        folds[least] += groups[n]
        sizes[least] += queries[n]
    return [sorted(fold) for fold in folds]


def unseen_folds(trees: Sequence[Tree], number: int, seed: int = 0) -> list[list[int]]:
    """Draws folds of about 1/`number` of the trees each, of which every connected group has a leaf that no tree beside
    the fold has; lists the places of each fold's trees, ascending.

    Leaves are drawn, and all trees that are connected with one of theirs are held back, as long as there is room. Folds
    may have trees in common. Raises InvalidArgument for fewer than two, or where no leaf leaves room for training.
    """
    import numpy as np

    if number < 2:
        raise InvalidArgument(f"the number of folds must be 2 or more, got {number}")
    groups, room = connected(trees), len(trees) // number
    with_leaf: dict[str, set[int]] = {}
    for n, group in enumerate(groups):
        for at in group:
            for label in trees[at].leaves:
                with_leaf.setdefault(trees[at].texts[label], set()).add(n)
    folds = []
    for draw in range(number):
        held: set[int] = set()
        for leaf in np.random.default_rng([seed, draw]).permutation(sorted(with_leaf)).tolist():
            if sum(len(groups[n]) for n in held | with_leaf[leaf]) <= room:
                held |= with_leaf[leaf]
        if not held:
            raise InvalidArgument(f"no leaf is only in {room} of {len(trees)} trees; ask for fewer folds")
        folds.append(sorted(at for n in held for at in groups[n]))
    return folds


def write_folds(
    dataset: Dataset, to: Path, *, split: str = "train", number: int = 5, seed: int = 0, unseen: bool = False
) -> list[Path]:
    """Writes a directory in EntailmentBank's layout for each fold of a split; returns them in order.

    `to` must exist. In each, the split has the trees of the other folds, and split `held-out` those of the fold, which
    are `unseen_folds` if asked for.
    Raises InvalidArgument for a dataset that has a split `held-out`: nothing would keep it.
    """
    if HELD_OUT in dataset.splits:
        raise InvalidArgument(
            f"{dataset.directory} has a split {HELD_OUT!r} already; make folds of the directory that it is a fold of"
        )
    folds = (unseen_folds if unseen else folds_of)(dataset.trees(split), number, seed)
    written = [to / f"fold-{n}" for n in range(number)]
    for directory, fold in zip(written, folds, strict=True):
        held_out = {_name(dataset.trees(split)[at]) for at in fold}
        for task in ("task_1", "task_2"):
            for path in split_files(dataset.directory, task):
                target = directory / "dataset" / task / path.name
                target.parent.mkdir(parents=True, exist_ok=True)
                if path.stem != split:
                    shutil.copyfile(path, target)
                    continue
                lines = [(line, _name(tree) in held_out) for line, tree in tree_lines(path)]
                for file, is_held_out in ((target.with_stem(HELD_OUT), True), (target, False)):
                    chosen = "".join(line for line, held in lines if held == is_held_out)
                    file.write_text(chosen, encoding="utf-8", newline="")
        if (facts := dataset.directory / FACTS_FILE).is_file():
            (directory / FACTS_FILE).parent.mkdir(parents=True)
            shutil.copyfile(facts, directory / FACTS_FILE)
    return written


def _name(tree: Tree) -> tuple[str, str]:
    """Tells a tree from others: ids repeat, and those of one id and one hypothesis are connected."""
    return tree.id, tree.hypothesis


def connected(trees: Sequence[Tree]) -> list[list[int]]:
    """Groups the places of trees that are connected by a query, in order of their first tree."""
    queries = {query for tree in trees for query in _queries(tree)}
    group = list(range(len(trees)))

    def root(at: int) -> int:
        while group[at] != at:
            group[at] = group[group[at]]
            at = group[at]
        return at

    first: dict[str, int] = {}
    for at, tree in enumerate(trees):
        for text in queries & set(tree.texts.values()):
            one, other = sorted((root(at), root(first.setdefault(text, at))))
            group[other] = one
    members: dict[int, list[int]] = {}
    for at in range(len(trees)):
        members.setdefault(root(at), []).append(at)
    return list(members.values())


def _queries(tree: Tree) -> set[str]:
    return {tree.texts[label] for label in tree.children}

"""How many of a tree's leaves a list of premises has: Recall@k and AllCorrect@k, by exact and by normalised text.

The same fact stands in more than one form in EntailmentBank's files: `a / b` in one is `a; b` in another. A normalised
text has neither case nor punctuation nor articles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from aeenc.errors import InvalidArgument
from aeenc.trees import Tree

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = re.compile(r"[^\w\s]")


def normalised(text: str) -> str:
    """Returns the words of a text, lower-cased, without articles; a sign of punctuation ends a word."""
    return " ".join(_ARTICLES.sub(" ", _PUNCTUATION.sub(" ", text.lower())).split())


@dataclass(frozen=True)
class LeafRecall:
    """The mean share of a tree's distinct leaves that its list has, and the share of trees whose list has them all."""

    recall: float
    all_correct: float


def leaf_recall(
    trees: Sequence[Tree], lists: Sequence[Sequence[str]], text_of: Callable[[str], str] = normalised
) -> LeafRecall:
    """Measures a list of premise texts for each tree; `text_of` makes equal what counts as one text.

    Raises InvalidArgument for no trees, and for another number of lists.
    """
    if not trees or len(trees) != len(lists):
        raise InvalidArgument(f"there are {len(trees)} trees and {len(lists)} lists; give a list for each tree")
    shares = []
    for tree, texts in zip(trees, lists, strict=True):
        leaves = {text_of(tree.texts[label]) for label in tree.leaves}
        shares.append(len(leaves & {text_of(text) for text in texts}) / len(leaves))
    return LeafRecall(float(np.mean(shares)), float(np.mean(np.array(shares) == 1)))

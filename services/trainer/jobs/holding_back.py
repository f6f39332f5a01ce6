"""Holds back whole trees of judged pairs, to measure on them what a job gains.

A query that was explained and its premises are a tree of one step; such steps are one tree where they share a query,
as in folds (`aeenc.trees.folds`). Shared facts connect nothing: they are candidates for every query anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aeenc.evaluation.metrics import FEWEST
from aeenc.trees.folds import connected
from aeenc.trees.tree import ROOT, Step, Tree
from services.corpus.generation import Premises
from services.trainer.evaluation.protocol import EvaluationQuery
from services.trainer.jobs.training_set import REFUSED, JudgedPair

SHARE = 0.2  # of the hypotheses
LEAST = 15  # hypotheses
MOST = 0.5  # of the hypotheses


@dataclass(frozen=True)
class HeldBack:
    """Gold queries of the trees that were held back, and the pairs that remain to learn from."""

    queries: list[EvaluationQuery]
    pairs: list[JudgedPair]


def hold_back(judged: Sequence[JudgedPair], further: Sequence[JudgedPair], premises: Premises, seed: int) -> HeldBack:
    """Draws trees from judged pairs, and leaves out all pairs of their nodes, also from further ones.

    Whole trees are drawn in an order of the seed until they hold a fifth of the explained hypotheses, at least LEAST,
    at most half. Nothing is held back where that gives fewer than FEWEST queries: too few for a test. Gold are the
    accepted premises that the generation has and nobody refused.
    """
    accepted: dict[str, dict[str, None]] = {}
    refused = {(pair.query, _text(pair, premises)) for pair in judged if pair.sign in REFUSED}
    for pair in judged:
        if pair.sign == "POSITIVE":
            accepted.setdefault(pair.query, {})[_text(pair, premises)] = None
    drawn = _drawn(accepted, seed)
    gold = {query: [text for text in accepted[query] if text in premises.ordinal_by_text] for query in sorted(drawn)}
    gold = {query: [text for text in texts if (query, text) not in refused] for query, texts in gold.items()}
    queries = [EvaluationQuery(query, tuple(texts)) for query, texts in gold.items() if {*texts} - {query}]
    if len(queries) < FEWEST:
        return HeldBack([], [*judged, *further])
    # A fact of other trees, too, stays a premise to learn; asked as a query, it is left out with the tree.
    nodes = drawn | {text for query in drawn for text in accepted[query]}
    pairs = (*judged, *further)
    kept = [pair for pair in pairs if pair.query not in nodes and _text(pair, premises) not in drawn]
    return HeldBack(queries, kept)


def _text(pair: JudgedPair, premises: Premises) -> str:
    """Returns a premise's text; empty where the generation does not know its id."""
    ordinal = None if pair.premise else premises.ordinal_by_id.get(pair.premise_id)
    return pair.premise if ordinal is None else premises[ordinal].text


def _drawn(accepted: dict[str, dict[str, None]], seed: int) -> set[str]:
    """Draws whole trees, and returns their queries."""
    steps = sorted(accepted)
    trees = []
    for query in steps:
        sentences = {f"p{n}": text for n, text in enumerate(accepted[query])}
        trees.append(Tree(query, query, sentences, (Step(tuple(sentences), ROOT, query),)))
    groups = [[steps[at] for at in tree] for tree in connected(trees)]
    premises = {text for texts in accepted.values() for text in texts}
    hypotheses = [sum(query not in premises for query in group) or 1 for group in groups]  # a circle has no root
    total = sum(hypotheses)
    most = int(MOST * total)
    wanted = min(max(LEAST, round(SHARE * total)), most)
    drawn: set[str] = set()
    count = 0
    for at in np.random.default_rng(seed).permutation(len(groups)).tolist():
        if count < wanted and count + hypotheses[at] <= most:
            count += hypotheses[at]
            drawn.update(groups[at])
    return drawn

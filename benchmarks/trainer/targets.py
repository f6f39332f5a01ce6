"""Weights of Retrieve for other targets than single steps: `make bench NAME=targets`.

    make bench NAME=targets ARGS='--only train'   fits them on one half of train, measures on the other, both ways
    make bench NAME=targets ARGS='--only dev'     measures the published ones by three seeds; half an hour

Two targets: the leaves of whole trees by the hypothesis alone, and facts alone. The weights for single steps stand
beside. Trains two encoders without a half each, and three with all, unless they were trained before: an hour. Needs
EntailmentBank in `data/entailmentbank` or in AEENC_BENCH_DATA.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from aeenc import Client, Fusion, Retrieval
from aeenc.cli.learning.jobs import TRAINING_SPLIT
from aeenc.evaluation import gold_of
from aeenc.trainer import gold_tree
from aeenc.trees import HELD_OUT, Dataset, Tree
from benchmarks.harness.rows import Rows
from benchmarks.tables.by_tree import FACTS, Precisions, fact_precisions_of, group_of, p_by_tree, whole_trees
from benchmarks.tables.quality import (
    SEEDS,
    SPLIT,
    Folds,
    by_seeds,
    figure,
    folds,
    held_out_queries,
    of_trees,
    premises_of,
    timed,
)
from benchmarks.tables.table_rows import ORDERED, OURS
from services.index.ranking.fusion import Prior
from services.index.values import Explanation, SearchHits
from services.tuning.out_of_fold import HeldOut, OutOfFold, Weights
from services.tuning.words import ranks_in

PARTS = ("train", "dev")
# Found on train, out of fold (docs/experiments/retrieval.md).
WHOLE_TREES = Retrieval(
    "hybrid",
    Fusion(
        lexical_weight=0.27,
        features={
            "first": 3.596,
            "rank": 0.0051,
            "iterative": 0.7425,
            "query_covered": -6.4398,
            "premise_covered": 0.2062,
            "length": 0.0004,
            "words_given_others": 3.3567,
            "left_by_others": -2.1765,
            "vectors_given_others": 1.5968,
            "words_given_many": -2.244,
            "left_by_many": 4.6047,
            "vectors_given_many": 2.1185,
        },
    ),
    prior=0.35,
    negative_feedback=0.2,
)
FACTS_ALONE = Retrieval(
    "hybrid",
    Fusion(
        lexical_weight=0.22,
        features={
            "first": 5.2524,
            "rank": 0.3635,
            "iterative": 0.4445,
            "query_covered": -10.8729,
            "premise_covered": 1.9888,
            "length": 0.0999,
            "words_given_others": 6.371,
            "left_by_others": 2.0313,
            "vectors_given_others": 3.2429,
            "words_given_many": -3.7627,
            "left_by_many": 6.1364,
            "vectors_given_many": -1.6073,
        },
    ),
    prior=0.15,
    negative_feedback=0.11,
)


def explained_by_facts(dataset: Dataset) -> Iterator[tuple[str, list[str]]]:
    """Yields train's explanations as far as they are facts: what a corpus without the conclusions of trees knows."""
    facts = set(dataset.facts.values())
    for query in dataset.queries(TRAINING_SPLIT):
        if found := [text for text in query.gold if text in facts]:
            yield query.text, found


def explain_by_facts(client: Client, corpus: str, dataset: Dataset) -> None:
    """Replaces all explanations of a corpus by these."""
    ids = {candidate.text: candidate.id for candidate in dataset.candidates()}
    found = [(query, [ids[text] for text in gold]) for query, gold in explained_by_facts(dataset)]
    client.index.put_explanations(corpus, found, replace=True)


def of_hypotheses(fold: Dataset, held: HeldOut, ordinal: Mapping[str, int]) -> HeldOut:
    """The held-out queries that are hypotheses, their gold the leaves of the trees."""
    gold: dict[str, set[int]] = {}
    for tree in map(gold_tree, fold.trees(HELD_OUT)):
        gold.setdefault(tree.hypothesis, set()).update(ordinal[one] for one in tree.leaves if one != tree.hypothesis)
    kept = [n for n, text in enumerate(held.texts) if gold.get(text)]
    texts = [held.texts[n] for n in kept]
    return HeldOut(texts, [sorted(gold[text]) for text in texts], held.vectors[kept], held.prior)


def of_facts(fold: Dataset, held: HeldOut, ordinal: Mapping[str, int]) -> HeldOut:
    """The held-out queries with facts alone as gold, by a prior of facts; other gold premises are not judged."""
    facts = {ordinal[one] for one in fold.facts.values()}
    prior = Prior.over([Explanation(*one) for one in explained_by_facts(fold)], ordinal)
    gold, others = ([[n for n in own if (n in facts) is kept] for own in held.gold] for kept in (True, False))
    return replace(held, gold=gold, prior=prior, unjudged=others)


def weights_of(retrieval: Retrieval) -> tuple[Weights, Mapping[str, float]]:
    """The weights of a mode hybrid, and those of its features."""
    fusion = retrieval.fusion or Fusion()
    return Weights(fusion.lexical_weight or 0.0, retrieval.prior, retrieval.negative_feedback), fusion.features or {}


def by_tree(trees: Sequence[Tree], ranked: Mapping[str, SearchHits], texts: Sequence[str]) -> Precisions:
    """AllCorrect@25 and Recall@25 of each tree (n, 2), from its hypothesis alone."""
    alone = [whole_trees([one], {one.hypothesis: ranked[one.hypothesis].ordinals}, texts) for one in trees]
    return np.array([(one.all_correct_at_25, one.recall_at_25) for one in alone])


def by_fact(fold: Dataset, held: HeldOut, ranked: Mapping[str, SearchHits]) -> Precisions:
    """The average precision of each held-out query over its gold facts; NaN for one that has none."""
    gold = dict(zip(held.texts, held.gold, strict=True))
    ranks = [ranks_in(ranked[text], gold[text]) if text in gold else () for text, _ in gold_of(fold, HELD_OUT)]
    return fact_precisions_of(fold, HELD_OUT, ranks)


def train(rows: Rows, running: Folds) -> None:
    """Features fitted for each target on the other half, beside the published ones for single steps; p by groups."""
    texts, premises = premises_of(running)
    ordinal = {text: n for n, text in enumerate(texts)}
    over = [Dataset.load(directory) for directory in running.directories.values()]
    versions = [running.version_without(name) for name in running.directories]
    held = held_out_queries(running, over, texts, versions)
    measured = OutOfFold(texts, premises, held)
    steps = dict(zip(measured.queries, measured.ordered(*weights_of(ORDERED)), strict=True))
    trees = [tree for fold in over for tree in fold.trees(HELD_OUT)]
    group = group_of(trees)

    def learned(target: str, published: Retrieval, parts: Sequence[HeldOut]) -> dict[str, SearchHits]:
        measured = OutOfFold(texts, premises, parts)
        found = measured.learn(weights_of(published)[0])
        print(f"{target}, features for all of train: {json.dumps(dict(found.features))}", flush=True)
        return dict(zip(measured.queries, found.rankings, strict=True))

    def tell(row: str, least: float, queries: Sequence[str], found: Precisions, before: Precisions) -> None:
        groups = np.array([group[text] for text in queries])
        rows.at_least(f"{row} of train, out of fold", float(found.mean()), "", least, float(before.mean()))
        rows.at_most(f"{row}: p by groups of trees", p_by_tree(groups, found, before), "", 0.01)

    pairs = [*zip(over, held, strict=True)]
    found = learned("whole trees", WHOLE_TREES, [of_hypotheses(*pair, ordinal) for pair in pairs])
    asked = [tree for tree in trees if tree.hypothesis in found]
    values = [by_tree(asked, ranked, texts).T for ranked in (found, steps)]
    for name, least, *two in zip(("AllCorrect@25", "Recall@25"), (0.44, 0.73), *values, strict=True):
        tell(f"whole trees: {name}", least, [tree.hypothesis for tree in asked], *two)

    found = learned("facts alone", FACTS_ALONE, [of_facts(*pair, ordinal) for pair in pairs])
    values = [np.concatenate([by_fact(*pair, ranked) for pair in pairs]) for ranked in (found, steps)]
    has_fact = ~np.isnan(values[0])
    queries = [text for text, kept in zip(measured.queries, has_fact, strict=True) if kept]
    tell("facts alone: MAP", 0.55, queries, *[one[has_fact] for one in values])


def dev(rows: Rows, running: Folds) -> None:
    """Each target by its published weights, beside those for single steps; three seeds, and the time of a query."""
    steps, trees = by_seeds(running, OURS, SEEDS, (ORDERED, WHOLE_TREES))
    by_facts = replace(running, whole=replace(running.whole, explain=explain_by_facts))
    (facts,) = by_seeds(by_facts, OURS, SEEDS, (FACTS_ALONE,))
    for name, least in (("AllCorrect@25", 0.51), ("Recall@25", 0.77)):
        rows.at_least(f"whole trees: {SPLIT} {name}", of_trees(trees, name), "", least, of_trees(steps, name))
    rows.at_least(f"facts alone: {SPLIT} MAP", figure(facts, FACTS), "", 0.605, figure(steps, FACTS))
    ways = {"single steps": ORDERED, "whole trees": WHOLE_TREES, "facts alone": FACTS_ALONE}
    for name, took in timed(running.whole, ways).items():
        rows.note(f"one query, {name}: median", float(np.median(took)), "ms")


def main() -> None:
    """Measures the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    given = parser.parse_args()
    rows = Rows.of("targets", given.only, PARTS)
    with folds(kind="half") as running:
        for part in given.only:
            {"train": train, "dev": dev}[part](rows, running)
    rows.finish()


if __name__ == "__main__":
    main()

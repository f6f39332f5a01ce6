"""Systems that are not trained, measured without a service: TF-IDF, and BM25 as the protocol's reference has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc.evaluation import UNRANKED, metrics_of
from aeenc.trees import Dataset
from benchmarks.tables.by_tree import BY_QUERY, by_query, whole_trees
from benchmarks.tables.table_text import deeper_metrics
from services.index.lexical.bm25 import LexicalIndex, best
from services.index.values import LexicalSettings
from services.trainer.evaluation.protocol import EvaluationQuery, GoldStandard, Ranks, Report

DEPTH = 1000
Mask = NDArray[np.bool_]
Ranking = Callable[[str, Mask], Ranks]  # a query's text and the premises allowed to ordinals, best first


def tf_idf(dataset: Dataset, split: str) -> dict[str, Any]:
    """TF-IDF by scikit-learn with its defaults, fitted on the candidates."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer()
    premises = vectorizer.fit_transform([candidate.text for candidate in dataset.candidates()])

    def rank(text: str, allowed: Mask) -> Ranks:
        scores = (premises @ vectorizer.transform([text]).T).toarray()[:, 0]
        order = np.argsort(-scores, kind="stable")
        return order[allowed[order]]

    return _ranked(dataset, split, rank)


def bm25(dataset: Dataset, split: str) -> dict[str, Any]:
    """BM25 (Lucene's, k1 1.5, b .75, English stop words) without stems."""
    index = _index(dataset)
    return _ranked(
        dataset, split, lambda text, allowed: best(index.scores(index.terms(text)), len(allowed), allowed).ordinals
    )


def iterative_bm25(dataset: Dataset, split: str) -> dict[str, Any]:
    """Iterative BM25 (Chia et al. 2020) over the same words; the first 1,000, the first premise's words in full."""
    index = _index(dataset)
    return _ranked(dataset, split, lambda text, allowed: index.iterate(index.terms(text), DEPTH, allowed).ordinals)


def _index(dataset: Dataset) -> LexicalIndex:
    texts = [candidate.text for candidate in dataset.candidates()]
    return LexicalIndex.of(texts, LexicalSettings(words="words", first_scale=1.0))


def _ranked(dataset: Dataset, split: str, rank: Ranking) -> dict[str, Any]:
    """Ranks the candidates for each query, and for each tree's hypothesis, without its own text and with it."""
    ordinals = {candidate.text: ordinal for ordinal, candidate in enumerate(dataset.candidates())}
    rows = len(ordinals)

    def ranked(text: str, own: int | None) -> Ranks:
        return rank(text, np.arange(rows) != (-1 if own is None else own))

    standard = GoldStandard.of([EvaluationQuery(one.text, one.gold) for one in dataset.queries(split)], ordinals)
    strict, paper = [], []
    for query, own, gold, kept in zip(standard.queries, standard.own, standard.gold, standard.kept, strict=True):
        paper.append(_positions(ranked(query.text, None), gold, rows))
        strict.append(paper[-1] if own is None else _positions(ranked(query.text, own), kept, rows))
    trees = dataset.trees(split)
    found = {tree.hypothesis: ranked(tree.hypothesis, ordinals.get(tree.hypothesis)) for tree in trees}
    level = whole_trees(trees, found, list(ordinals))
    report = Report.of(standard, strict, None, candidates=rows)
    told: dict[str, Any] = {name: getattr(report, name) for name in ("candidates", "queries", "pairs")}
    told["strict"] = report.strict.to_dict() | deeper_metrics(strict)
    told["paper"] = metrics_of(paper).to_dict() | deeper_metrics(paper)
    told[BY_QUERY] = by_query(dataset, split, strict)
    told["trees"] = {"hypothesis_alone": {"Recall@25": level.recall_at_25, "AllCorrect@25": level.all_correct_at_25}}
    return told


def _positions(found: Ranks, gold: Ranks, rows: int) -> Ranks:
    """The ranks of gold ordinals in a list of ordinals; UNRANKED for those that it lacks."""
    ranks = np.full(rows, UNRANKED, dtype=np.int64)
    ranks[found] = np.arange(1, len(found) + 1)
    return ranks[gold]

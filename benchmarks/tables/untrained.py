"""Systems that are not trained, measured without a service: TF-IDF, and BM25 as the protocol's reference has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc.evaluation import UNRANKED
from aeenc.trees import Dataset
from benchmarks.tables.by_tree import BY_QUERY, by_query
from benchmarks.tables.table_text import deeper_metrics
from services.index.lexical.bm25 import LexicalIndex, Terms, best
from services.index.values import LexicalSettings
from services.trainer.evaluation.protocol import EvaluationQuery, GoldStandard, Ranks, Report, evaluate

DEPTH = 1000
Mask = NDArray[np.bool_]


def tf_idf(dataset: Dataset, split: str) -> dict[str, Any]:
    """TF-IDF by scikit-learn with its defaults, fitted on the candidates."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts, queries, ordinals = _asked(dataset, split)
    vectorizer = TfidfVectorizer()
    premises = vectorizer.fit_transform(texts).toarray()
    vectors = vectorizer.transform([query.text for query in queries]).toarray()
    return _told(evaluate(queries, vectors, premises, ordinals), dataset, split)


def bm25(dataset: Dataset, split: str) -> dict[str, Any]:
    """BM25 (Lucene's, k1 1.5, b .75, English stop words) without stems."""

    def rank(index: LexicalIndex, terms: Terms, allowed: Mask | None) -> Ranks:
        return best(index.scores(terms), len(index.tables.norms), allowed).ordinals

    return _ranked(dataset, split, rank)


def iterative_bm25(dataset: Dataset, split: str) -> dict[str, Any]:
    """Iterative BM25 (Chia et al. 2020) over the same words; the first 1,000, the first premise's words in full."""

    def rank(index: LexicalIndex, terms: Terms, allowed: Mask | None) -> Ranks:
        return index.iterate(terms, DEPTH, allowed).ordinals

    return _ranked(dataset, split, rank)


def _ranked(dataset: Dataset, split: str, rank: Callable[[LexicalIndex, Terms, Mask | None], Ranks]) -> dict[str, Any]:
    texts, queries, ordinals = _asked(dataset, split)
    index = LexicalIndex.of(texts, LexicalSettings(words="words", first_scale=1.0))
    standard = GoldStandard.of(queries, ordinals)
    strict, paper = [], []
    for query, own, gold, kept in zip(standard.queries, standard.own, standard.gold, standard.kept, strict=True):
        terms = index.terms(query.text)
        found = rank(index, terms, None)
        paper.append(_positions(found, gold, len(texts)))
        if own is None:
            strict.append(paper[-1])
            continue
        allowed = np.ones(len(texts), dtype=bool)
        allowed[own] = False
        strict.append(_positions(rank(index, terms, allowed), kept, len(texts)))
    return _told(Report.of(standard, strict, paper, candidates=len(texts)), dataset, split)


def _asked(dataset: Dataset, split: str) -> tuple[list[str], list[EvaluationQuery], dict[str, int]]:
    """The texts of the candidates, the queries, and the ordinal of each text."""
    texts = [candidate.text for candidate in dataset.candidates()]
    queries = [EvaluationQuery(query.text, query.gold) for query in dataset.queries(split)]
    return texts, queries, {text: ordinal for ordinal, text in enumerate(texts)}


def _told(report: Report, dataset: Dataset, split: str) -> dict[str, Any]:
    told = report.to_dict()
    told["strict"] |= deeper_metrics(report.strict_ranks)
    told["paper"] |= deeper_metrics(report.paper_ranks)
    told[BY_QUERY] = by_query(dataset, split, report.strict_ranks)
    return told


def _positions(found: Ranks, gold: Ranks, rows: int) -> Ranks:
    """The ranks of gold ordinals in a list of ordinals; UNRANKED for those that it lacks."""
    ranks = np.full(rows, UNRANKED, dtype=np.int64)
    ranks[found] = np.arange(1, len(found) + 1)
    return ranks[gold]

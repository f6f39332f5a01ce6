"""Graded re-ranking as in TextGraphs-15, beside the paper's figures. `make textgraphs DATA=dir`.

    TF-IDF, BM25, I-BM25 tuned on train, where the data has one
    I-BM25 ──► first 200 ─► regression cross-encoders, one for each seed ─► the sum of their ranks
               (its oracle NDCG bounds them)

Everything runs on a fleet of its own, through the RPCs; jobs have idempotency keys, so that what was trained once on
these files with these settings is found again. `--only words` trains nothing; `--weights` adds an ensemble with I-BM25
itself, by the weighted sum of ranks. docs/results/seeds.md keeps the table. The paper's figures (Kalyan et al. 2021)
are NDCG on dev by the shared task's measure (Thayaparan et al. 2021), as are the first two columns: gain 2^r - 1, and a
rated fact that a list lacks stands at rank 10^6. Each system's list is written as `predict.txt` for the task's scorer.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import aeenc
from aeenc.cli.corpus import ensure_corpus
from aeenc.cli.learning.jobs import TRAINING_SPLIT
from aeenc.evaluation import (
    UNRANKED,
    GradedMetrics,
    RatedDataset,
    Source,
    average_precision,
    gold_of,
    graded_metrics_of,
    load_data,
    recall_by_grade,
    splits_in,
    strict_gold,
)
from benchmarks.harness.kept_fleet import ended_job, kept_fleet
from benchmarks.harness.rows import ROOT
from benchmarks.seeds.page import keep_table
from benchmarks.tables.drawing import keep, panels
from services.index.lexical.bm25 import LexicalIndex, best
from services.index.values import STANDARD_WORDS, LexicalSettings
from services.tuning.words import measured_on, tune

HOME = ROOT / ".aeenc" / "bench" / "textgraphs"
LENGTH = 200
TEXTS = 16  # a call
RELEVANT = 0.5  # between the targets of a binary cross-encoder
PICTURE_LENGTHS = (1, 2, 5, 10, 20, 50, 100, 200)
COLUMNS = ("system", "TextGraphs", "oracle", "NDCG", "NDCG exp", "MAP", "paper (dev; as TextGraphs)")
PAPER = {
    "TF-IDF": ".5130",
    "I-BM25 tuned": ".6785",
    "I-BM25": ".6669",
    "cross-encoder": ".7353 DistilBERT, .7541 SciBERT, .7679 BERT",
    "ensemble": ".7801 four BERT, .7836 with SciBERT",
}

Orders = dict[str, list[str]]  # by query, the texts of premises, best first
Gold = Mapping[str, Mapping[str, float]]


@dataclass
class Ladder:
    """A running fleet over rated facts or gold trees, and the queries of one split that are asked."""

    client: aeenc.Client
    dataset: Source
    corpus: str
    gold: dict[str, Mapping[str, float]]

    def retrieved(self, *, by: Sequence[str] = ()) -> Orders:
        """The first 200 of iterative BM25, re-ranked by cross-encoders if some are named."""
        return {query: list(scores) for query, scores in self.scored(by=by).items()}

    def scored(self, *, by: Sequence[str] = ()) -> dict[str, dict[str, float]]:
        """As `retrieved`, with the score of each premise, best first."""
        found: dict[str, dict[str, float]] = {}
        texts = list(self.gold)
        for start in range(0, len(texts), TEXTS):
            part = texts[start : start + TEXTS]
            answer = self.client.index.retrieve(
                self.corpus,
                part,
                k=LENGTH,
                mode="iterative_lexical",
                rerank=LENGTH if by else 0,
                rerank_versions=by,
                timeout_s=1800,
            )
            found |= {text: {hit.text: hit.score for hit in hits} for text, hits in zip(part, answer, strict=True)}
        return found

    def tf_idf(self) -> Orders:
        """The first 200 by scikit-learn's TF-IDF with its defaults."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        texts = [candidate.text for candidate in self.dataset.candidates()]
        vectorizer = TfidfVectorizer()
        premises, found = vectorizer.fit_transform(texts), {}
        for query in self.gold:
            scores = (premises @ vectorizer.transform([query]).T).toarray().ravel()
            order = [n for n in np.lexsort((np.arange(len(texts)), -scores)) if texts[n] != query]
            found[query] = [texts[n] for n in order[:LENGTH]]
        return found

    def by_words(self, settings: LexicalSettings, *, iterative: bool) -> Orders:
        """The first 200 by BM25 or iterative BM25 with such settings, of which a fleet has but one."""
        texts = np.array([candidate.text for candidate in self.dataset.candidates()])
        index, found = LexicalIndex.of(texts.tolist(), settings), {}
        for query in self.gold:
            terms, others = index.terms(query), texts != query
            hits = index.iterate(terms, LENGTH, others) if iterative else best(index.scores(terms), LENGTH, others)
            found[query] = texts[hits.ordinals].tolist()
        return found

    @property
    def graded(self) -> bool:
        """Whether people rated the premises, and did not only accept or refuse them."""
        return isinstance(self.dataset, RatedDataset)

    def train(self, seed: int, **fields: object) -> str:
        """The version of a regression cross-encoder over the first 200, trained unless it was before.

        Its targets are the ratings where there are some.
        """
        told = json.dumps(fields, sort_keys=True)
        fields = {"targets": "grades" if self.graded else "binary", **fields}
        return ended_job(
            self.client,
            f"the job of seed {seed} has failed",
            corpus=self.corpus,
            data_sets=["own"],
            split=TRAINING_SPLIT,
            mode="cross_encoder",
            candidates="iterative_lexical",
            seed=seed,
            idempotency_key=f"seeds-{seed}-{self.corpus}-{told}",
            **fields,
        ).version

    def serve(self, versions: Sequence[str]) -> None:
        """Has the encoder serve cross-encoders, each under a label of its own."""
        for number, version in enumerate(versions):
            for label in (f"rank-{number}",) if number else ("stable", "rank-0"):
                if not self.client.registry.publish(version, label=label, wait_s=120, force=True).complete:
                    raise SystemExit(f"the encoder does not serve {version}")


def two_stages(relevant: Mapping[str, Mapping[str, float]], rated: Mapping[str, Mapping[str, float]]) -> Orders:
    """Premises that the first stage calls relevant (from .5 on), by the second stage's rating; then the others."""
    found: Orders = {}
    for query, first in relevant.items():
        taken = [text for text, score in first.items() if score >= RELEVANT]
        left = [text for text, score in first.items() if score < RELEVANT]
        found[query] = sorted(taken, key=lambda text: -rated[query][text]) + left
    return found


def fused(systems: Sequence[Orders], weights: Sequence[float]) -> Orders:
    """Orders each query's premises by the weighted sum of their ranks; one that a list lacks stands behind its last."""
    found: Orders = {}
    for query in systems[0]:
        ranks = [{text: rank for rank, text in enumerate(system[query], start=1)} for system in systems]
        sums: dict[str, float] = dict.fromkeys((text for own in ranks for text in own), 0.0)
        for own, weight in zip(ranks, weights, strict=True):
            for text in sums:
                sums[text] += weight * own.get(text, len(own) + 1)
        found[query] = sorted(sums, key=sums.__getitem__)
    return found


def variants(running: Ladder, epochs: int, version: str) -> dict[str, Orders]:
    """What the paper tried in vain, with seed 0, beside cross-encoder 0, `version`: other negatives, and two stages.

    The second stage predicts the rating, or a distribution over ratings.
    """
    found = {}
    for negatives in ("none", "random"):
        if negatives == "none" and not running.graded:
            continue  # without irrelevant ones there is nothing to tell apart
        trained = running.train(0, epochs=epochs, negatives=negatives)
        running.serve([version, trained])
        found[f"seed 0, negatives {negatives}"] = running.retrieved(by=[trained])
    if running.graded:
        relevant = running.train(0, epochs=epochs, targets="binary")
        shares = running.train(0, epochs=epochs, targets="grade_distribution")
        running.serve([version, relevant, shares])
        found["seed 0, distribution"] = running.retrieved(by=[shares])
        first = running.scored(by=[relevant])
        found["two stages"] = two_stages(first, running.scored(by=[version]))
        found["two stages, distribution"] = two_stages(first, running.scored(by=[shares]))
    return found


def ranks_in(orders: Orders, gold: Gold) -> list[list[int]]:
    """The ranks of each query's graded premises."""
    found = []
    for query, grades in gold.items():
        rank = {text: n for n, text in enumerate(orders[query], start=1)}
        found.append([rank.get(text, UNRANKED) for text in grades])
    return found


def graded_quality(orders: Orders, gold: Gold) -> GradedMetrics:
    """NDCG, its oracle, and recall by grade."""
    return graded_metrics_of(ranks_in(orders, gold), [list(grades.values()) for grades in gold.values()])


def average_precisions(orders: Orders, gold: Gold) -> list[float]:
    """The average precision of each query; a grade above 0 is gold."""
    return [
        average_precision(np.array([rank for rank, grade in zip(ranks, grades.values(), strict=True) if grade]))
        for ranks, grades in zip(ranks_in(orders, gold), gold.values(), strict=True)
    ]


@contextmanager
def ladder(directory: Path, split: str, *, most: int = 0, seed: int = 0, home: Path = HOME) -> Iterator[Ladder]:
    """A fleet over the data of a directory; asks at most `most` queries of the split, drawn (0: all)."""
    dataset = load_data(directory)
    gold = dict(strict_gold(gold_of(dataset, split)))
    if most and most < len(gold):
        drawn = np.sort(np.random.default_rng(seed).permutation(len(gold))[:most])
        gold = dict([*gold.items()][n] for n in drawn)
    os.environ["AEENC_TRAINER_DATA_SETS"] = json.dumps({"own": str(directory.resolve())})
    os.environ["AEENC_INDEX_ENCODE_TIMEOUT_S"] = "1800"  # 3,200 pairs a call, on a CPU
    with kept_fleet(home / directory.resolve().name, directory) as client:
        yield Ladder(client, dataset, ensure_corpus(client, dataset), gold)


def write_predictions(orders: Orders, dataset: Source, split: str, path: Path) -> None:
    """Writes lists as lines `qid<TAB>uuid`, best first, which the task's scorer reads. It compares lower-case ids."""
    ids = {one.text: (one.id, *one.aliases) for one in dataset.candidates()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for query, text in dataset.hypotheses(split):
            for uuid in (uuid for premise in orders.get(text, ()) for uuid in ids[premise]):
                file.write(f"{query.lower()}\t{uuid}\n")


def draw_recall(orders: Orders, gold: Gold, path: Path) -> None:
    """Draws recall by list length, one line for each grade (the paper's Figure 1), and says where."""
    grades = [list(told.values()) for told in gold.values()]
    figure, [axis] = panels(1, (6, 4))
    for grade, recalls in recall_by_grade(ranks_in(orders, gold), grades, PICTURE_LENGTHS).items():
        axis.plot(PICTURE_LENGTHS, recalls, marker="o", markersize=3, label=f"grade {grade:g}")
    axis.set_xscale("log")
    axis.set_xticks(PICTURE_LENGTHS, [str(length) for length in PICTURE_LENGTHS])
    axis.set_xlabel("length of the list")
    axis.set_ylabel("recall")
    axis.set_ylim(0, 1)
    axis.legend(frameon=False, fontsize=8)
    keep(figure, path)
    print(f"recall of I-BM25 by list length and grade: {path}")


def main() -> None:
    """Prints the table and draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a directory of TextGraphs-2021, or in EntailmentBank's layout")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--queries", type=int, default=0, help="ask at most so many queries, drawn; 0: all")
    parser.add_argument("--seeds", type=int, default=3, help="cross-encoders of the ensemble")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--only", choices=["words", "all"], default="all")
    parser.add_argument("--trials", type=int, default=60, help="settings of I-BM25 to try on 500 queries of train")
    parser.add_argument("--weights", type=float, nargs="+", help="of I-BM25, then of each cross-encoder")
    parser.add_argument("--variants", action="store_true", help="also other negatives, and two stages on ratings")
    given = parser.parse_args()
    if given.weights and len(given.weights) != given.seeds + 1:
        raise SystemExit(f"--weights needs {given.seeds + 1}, of I-BM25 and {given.seeds} cross-encoders")
    tuned = None
    if TRAINING_SPLIT in splits_in(given.data):
        tuned = tune(measured_on(given.data, TRAINING_SPLIT, "iterative", 500, 0), trials=given.trials, seed=0)
    elif given.only == "all":
        raise SystemExit(f"{given.data} has no split {TRAINING_SPLIT}, which all but words need; add --only words")
    with ladder(given.data, given.split, most=given.queries) as running:
        first = running.retrieved()
        systems = {
            "TF-IDF": running.tf_idf(),
            "BM25": running.by_words(STANDARD_WORDS, iterative=False),
            "I-BM25": first,
        }
        if tuned:
            systems["I-BM25 tuned"] = running.by_words(tuned, iterative=True)
        if given.only == "all":
            versions = [running.train(seed, epochs=given.epochs) for seed in range(given.seeds)]
            running.serve(versions)
            single = {f"cross-encoder {n}": running.retrieved(by=[one]) for n, one in enumerate(versions)}
            systems |= {**single, f"ensemble of {len(versions)}": running.retrieved(by=versions)}
            if given.weights:
                shares = " + ".join(f"{one:g}" for one in given.weights)
                systems[f"weighted ensemble, {shares}"] = fused([first, *single.values()], given.weights)
            if given.variants:
                systems |= variants(running, given.epochs, versions[0])
        dataset, gold = running.dataset, running.gold
    written = HOME / f"predictions-{given.data.resolve().name}-{given.split}"
    rows: list[list[str | float]] = []
    for name, order in systems.items():
        told, precisions = graded_quality(order, gold), average_precisions(order, gold)
        figures = [told.ndcg_textgraphs, told.oracle_ndcg_textgraphs, told.ndcg_linear, told.ndcg_exponential]
        paper = next((figures for start, figures in PAPER.items() if name.startswith(start)), "")
        rows.append([name, *figures, float(np.mean(precisions)), paper])
        write_predictions(order, dataset, given.split, written / name / "predict.txt")
    about = f"{given.split}: {len(gold)} queries, the first {LENGTH} premises."
    if tuned:
        settings = (f"{name} {value}" for name, value in asdict(tuned).items())
        about += f" I-BM25 tuned on {TRAINING_SPLIT}: {', '.join(settings)}."
    keep_table("textgraphs", given.data, about, COLUMNS, rows)
    print(f"for the task's scorer: {written}/SYSTEM/predict.txt")
    draw_recall(first, gold, HOME / f"recall-{given.data.resolve().name}-{given.split}.png")


if __name__ == "__main__":
    main()

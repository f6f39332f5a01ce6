"""Analogies carried to explanation: does a premise differ from its hypothesis as known premises of its relation do?

    make bench NAME=prototypes          EntailmentBank (AEENC_BENCH_DATA); some minutes

Exploratory. The pre-trained encoder ranks; its first 50 premises are ordered again by cosine + w x term. The term is
the score by analogy with p gold pairs of train whose premise has the candidate's relation, told by
a cue such as "is a kind of". w is tuned on queries of train whose premises give no prototypes; dev is measured once for
each row and seed. Two controls: pairs of any relation, and pairs whose premises were swapped among them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aeenc.cli.learning.evaluation import strict_gold
from aeenc.cli.learning.jobs import gold_of
from aeenc.evaluation import UNRANKED, analogy_scores, average_precision, shifts
from benchmarks.harness.checkpoints import base_checkpoint, embedded
from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.rows import ROOT, Rows
from services.store.artifacts import ArtifactStore

LENGTH = 50
RELATIONS = {  # the first cue that is found counts
    "kind": r"\bis an? (kind|type|form) of\b|\bare (kinds|types) of\b",
    "means": r"\bmeans?\b|\bis similar to\b|\bis the same as\b",
    "if": r"^(if|when|as)\b|\bthen\b",
    "part": r"\b(is|are) (a )?parts? of\b|\bcontains?\b|\bmade of\b",
    "cause": r"\bcauses?\b|\brequires?\b|\bneeds?\b|\bused (for|to)\b",
    "can": r"\bcan\b|\bmay\b",
}
WEIGHTS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
Pair = tuple[str, str]
Gold = Mapping[str, Sequence[str]]


def relation_of(premise: str) -> str:
    """The relation that a premise states; "other" without a cue."""
    return next((name for name, cue in RELATIONS.items() if re.search(cue, premise)), "other")


@dataclass
class Texts:
    """Vectors of all texts, and the premises that are ranked."""

    vectors: Mapping[str, NDArray[np.float32]]
    premises: Sequence[str]
    matrix: NDArray[np.float32]
    relations: Sequence[str]

    @classmethod
    def of(cls, premises: Sequence[str], queries: Sequence[str]) -> Texts:
        """Encodes with the pre-trained encoder."""
        texts = list(dict.fromkeys([*premises, *queries]))
        rows = embedded(base_checkpoint(ArtifactStore(ROOT / ".aeenc" / "bench" / "encoder")), texts)
        vectors = dict(zip(texts, rows, strict=True))
        matrix = np.stack([vectors[text] for text in premises])
        return cls(vectors, premises, matrix, [relation_of(text) for text in premises])

    def shifts_of(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        """The unit shifts of pairs (query, premise)."""
        return shifts(*(np.stack([self.vectors[pair[side]] for pair in pairs]) for side in (0, 1)))


@dataclass
class Prototypes:
    """Pairs by relation, drawn with a seed; a query's own pairs are left out when it is asked."""

    texts: Texts
    known: Mapping[str, tuple[NDArray[np.str_], NDArray[np.float64]]]  # queries and shifts

    @classmethod
    def drawn(cls, texts: Texts, gold: Gold, most: int, seed: int, control: str = "") -> Prototypes:
        """Draws at most so many of each relation; `control`: "any" relation, or premises "swapped" within one."""
        generator = np.random.default_rng(seed)
        by_relation: dict[str, list[Pair]] = {}
        for query, premises in gold.items():
            for premise in premises:
                by_relation.setdefault(relation_of(premise), []).append((query, premise))
        everything = [pair for pairs in by_relation.values() for pair in pairs]
        found = {}
        for name, known in by_relation.items():
            pairs = everything if control == "any" else known
            taken = [pairs[n] for n in generator.permutation(len(pairs))[:most]]
            queries, told = zip(*taken, strict=True)
            if control == "swapped":
                told = told[1:] + told[:1]
            found[name] = np.array(queries), texts.shifts_of(list(zip(queries, told, strict=True)))
        return cls(texts, found)

    def scores(self, query: str, found: NDArray[np.int64]) -> NDArray[np.float64]:
        """Scores premises, given by number, against a query."""
        scores = np.zeros(len(found))
        relations = np.array([self.texts.relations[n] for n in found])
        for name in set(relations.tolist()) & self.known.keys():
            queries, known = self.known[name]
            others = known[queries != query]
            if len(others):
                here = relations == name
                rows = self.texts.matrix[found[here]]
                scores[here] = analogy_scores(others, self.texts.vectors[query], rows)
        return scores


@dataclass
class Lists:
    """The first 50 premises of each query without its own text: numbers, cosines, and ranks of all gold premises."""

    gold: Gold
    found: Mapping[str, tuple[NDArray[np.int64], NDArray[np.float64]]]
    beyond: Mapping[str, list[int]]

    @classmethod
    def of(cls, texts: Texts, gold: Gold) -> Lists:
        """Ranks all premises for each query."""
        place = {text: n for n, text in enumerate(texts.premises)}
        found, beyond = {}, {}
        for query, premises in gold.items():
            cosines = (texts.matrix @ texts.vectors[query]).astype(float)
            if query in place:
                cosines[place[query]] = -np.inf
            order = np.argsort(-cosines, kind="stable")
            ranks = np.empty(len(order), dtype=int)
            ranks[order] = np.arange(1, len(order) + 1)
            found[query] = order[:LENGTH], cosines[order[:LENGTH]]
            told = [int(ranks[place[text]]) if text in place else int(UNRANKED) for text in premises]
            beyond[query] = [rank for rank in told if rank > LENGTH]
        return cls(gold, found, beyond)

    def map(self, texts: Texts, terms: Mapping[str, NDArray[np.float64]], weight: float) -> float:
        """Strict MAP after the first 50 are ordered by cosine + weight x term."""
        values = []
        for query, premises in self.gold.items():
            numbers, cosines = self.found[query]
            order = numbers[np.argsort(-(cosines + weight * terms[query]), kind="stable")]
            wanted = set(premises)
            ranks = [n for n, number in enumerate(order, start=1) if texts.premises[number] in wanted]
            values.append(average_precision(np.array(sorted(ranks + self.beyond[query]))))
        return float(np.mean(values))


def terms_of(lists: Lists, prototypes: Prototypes) -> dict[str, NDArray[np.float64]]:
    """The term of each query's first premises."""
    return {query: prototypes.scores(query, found) for query, (found, _) in lists.found.items()}


def halves(gold: Gold, seed: int) -> tuple[Gold, Gold]:
    """Draws a half of the queries, and those of the others that share no gold premise with it."""
    names = [*gold]
    side = np.random.default_rng(seed).permutation(len(names)) < len(names) // 2
    first = {name: gold[name] for name, here in zip(names, side, strict=True) if here}
    known = {premise for premises in first.values() for premise in premises}
    second = {name: gold[name] for name in names if name not in first and not known & set(gold[name])}
    return first, second


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", default="dev")
    parser.add_argument("--numbers", nargs="+", type=int, default=[10, 30, 100, 300], help="prototypes of a relation")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    dataset = entailmentbank()
    train, asked = (
        {query: list(premises) for query, premises in strict_gold(gold_of(dataset, split))}
        for split in ("train", given.split)
    )
    premises = list(dict.fromkeys(candidate.text for candidate in dataset.candidates()))
    known = [text for gold in (train, asked) for query, told in gold.items() for text in (query, *told)]
    texts = Texts.of(premises, known)
    dev = Lists.of(texts, asked)
    nothing = {query: np.zeros(len(found)) for query, (found, _) in dev.found.items()}
    rows = Rows(Path(__file__).stem)
    before = dev.map(texts, nothing, 0.0)
    rows.note(f"cosine alone, {given.split}: strict MAP of {len(asked)} queries", before, "")
    for control, name in (("", "of the relation"), ("any", "of any relation"), ("swapped", "premises swapped")):
        for number in given.numbers:
            maps, chosen = [], []
            for seed in range(given.seeds):
                giving, tuned = halves(train, seed)
                own = Lists.of(texts, dict([*tuned.items()][:400]))
                terms = terms_of(own, Prototypes.drawn(texts, giving, number, seed, control))
                weight = max(WEIGHTS, key=partial(own.map, texts, terms))
                maps.append(
                    dev.map(texts, terms_of(dev, Prototypes.drawn(texts, train, number, seed, control)), weight)
                )
                chosen.append(weight)
            told = f"w {', '.join(f'{one:g}' for one in chosen)}; sd {np.std(maps):.4f}"
            rows.note(f"{number} pairs {name} ({told})", float(np.mean(maps)), "", before)
    rows.finish()


if __name__ == "__main__":
    main()

"""Agreement of an oracle with gold trees: whether to trust it, before a run does.

A query's gold premises are put before the oracle among the premises of other trees that share most words with them.
Those count as wrong, although trees are incomplete: a few of them explain, too, and the precision is a lower bound.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from aeenc.errors import InvalidArgument
from aeenc.evaluation.strata import words
from aeenc.oracle import EXPLAINS, REFUSES, Candidate, Oracle, Task, ask
from aeenc.trees import Dataset


@dataclass(frozen=True)
class GoldTask:
    """A task and the ids of its candidates that explain the query."""

    task: Task
    gold: frozenset[str]


@dataclass(frozen=True)
class GoldAgreement:
    """The verdicts of an oracle by the gold's. `open_gold` and `open_other` were abstained from or not looked at."""

    tasks: int
    accepted_gold: int
    accepted_other: int
    refused_gold: int
    refused_other: int
    open_gold: int
    open_other: int

    @property
    def precision(self) -> float:
        """The share of gold among what the oracle accepts; NaN when it accepts nothing."""
        return _ratio(self.accepted_gold, self.accepted_gold + self.accepted_other)

    @property
    def recall(self) -> float:
        """The share of the gold that the oracle accepts; what it leaves open counts as missed."""
        return _ratio(self.accepted_gold, self.accepted_gold + self.refused_gold + self.open_gold)

    @property
    def wrong_refusals(self) -> float:
        """The share of gold among what the oracle refuses: these would become wrong hard negatives."""
        return _ratio(self.refused_gold, self.refused_gold + self.refused_other)

    @property
    def decided(self) -> float:
        """The share of candidates that the oracle decides."""
        return _ratio(self._decided, self._decided + self.open_gold + self.open_other)

    @property
    def kappa(self) -> float:
        """Cohen's kappa of oracle and gold over the decided candidates; NaN where chance alone would agree."""
        n = self._decided
        if not n:
            return math.nan
        observed = (self.accepted_gold + self.refused_other) / n
        accepted, gold = self.accepted_gold + self.accepted_other, self.accepted_gold + self.refused_gold
        chance = (accepted * gold + (n - accepted) * (n - gold)) / n**2
        return math.nan if chance == 1 else (observed - chance) / (1 - chance)

    @property
    def _decided(self) -> int:
        return self.accepted_gold + self.accepted_other + self.refused_gold + self.refused_other


def gold_tasks(dataset: Dataset, split: str, *, count: int, candidates: int = 10, seed: int = 0) -> list[GoldTask]:
    """Draws `count` queries of a split with `candidates` candidates each; the same seed draws the same tasks.

    All gold premises of a query are among its candidates. Raises NotFound for an unknown split, InvalidArgument for
    fewer than one query or two candidates, and when no query fits.
    """
    if count < 1 or candidates < 2:
        raise InvalidArgument(f"queries ({count}) must be at least 1 and candidates ({candidates}) at least 2")
    drawing = random.Random(seed)  # noqa: S311 -- draws a sample, protects nothing
    queries = [query for query in dataset.queries(split) if len(query.gold) < candidates]
    if not queries:
        problem = f"no query of split {split!r} has under {candidates} gold premises"
        raise InvalidArgument(f"{problem}; give more candidates, or another split")
    texts = {candidate.text: candidate.id for candidate in dataset.candidates()}
    alike = _closest(texts)
    tasks = []
    for number, query in enumerate(drawing.sample(queries, min(count, len(queries))), start=1):
        others = alike((query.text, *query.gold), candidates - len(query.gold))
        shown = [*query.gold, *others]
        drawing.shuffle(shown)
        offered = tuple(Candidate(texts[text], text, rank, 0.0) for rank, text in enumerate(shown, start=1))
        task = Task(f"gold-{number}", "", query.text, (), (), offered)
        tasks.append(GoldTask(task, frozenset(texts[text] for text in query.gold)))
    return tasks


async def agreement_with_gold(oracle: Oracle, tasks: Sequence[GoldTask]) -> GoldAgreement:
    """Asks an oracle task by task and counts. Raises as the oracle does."""
    counts: Counter[str] = Counter()
    for one in tasks:
        verdicts = await ask(oracle, one.task)
        for premise_id, verdict in verdicts.items():
            judged = {EXPLAINS: "accepted", REFUSES: "refused"}.get(verdict.judgement, "open")
            counts[f"{judged}_{'gold' if premise_id in one.gold else 'other'}"] += 1
    names = ("accepted_gold", "accepted_other", "refused_gold", "refused_other", "open_gold", "open_other")
    return GoldAgreement(len(tasks), *(counts[name] for name in names))


def _closest(texts: Iterable[str]) -> Callable[[Sequence[str], int], list[str]]:
    """Makes a search for the texts that share most words with given ones, rare words first; without these ones."""
    holders: defaultdict[str, list[str]] = defaultdict(list)
    for text in texts:
        for word in words(text):
            holders[word].append(text)

    def closest(given: Sequence[str], count: int) -> list[str]:
        scores: Counter[str] = Counter()
        for word in sorted(words(" ".join(given))):
            for text in holders[word]:
                scores[text] += round(1e6 / len(holders[word]))  # integers: the order must not hang on rounding
        ranked = sorted((-score, text) for text, score in scores.items() if text not in given)
        return [text for _, text in ranked[:count]]

    return closest


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else math.nan

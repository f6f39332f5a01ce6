"""Turns judged pairs into a training set over one generation. Pure numpy, without torch and Redis.

Pairs that may not be learned from are dropped here and counted: those of other splits, contradictory ones, a premise as
its own explanation.

Before, whole trees of the pairs may be held back, to measure on them what a job gains. A query that was explained and
its premises are a tree of one step; such steps are one tree where they share a query, as in folds
(`aeenc.trees.folds`). Shared facts connect nothing: they are candidates for every query anyway.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import FailedPrecondition
from aeenc.evaluation.metrics import FEWEST
from aeenc.trees.folds import connected
from aeenc.trees.tree import ROOT, Step, Tree
from services.corpus.generation import Generation, PremiseRecord, Premises
from services.trainer.evaluation.protocol import EvaluationQuery

OwnText = Literal["EXCLUDED", "NEGATIVE"]
# Of other splits or held out; judged positive and refused; a text as its own explanation.
DropReason = Literal["OTHER_SPLIT", "BOTH_WAYS", "OWN_TEXT"]
# CONTRADICTED is refused, too; natural language inference separates it from merely unrelated premises. NEUTRAL is
# neither positive nor refused; only the classification of inferences learns from it.
Sign = Literal["POSITIVE", "NEGATIVE", "CONTRADICTED", "NEUTRAL", "SKIPPED"]
Ordinals = NDArray[np.int64]
Pairs = NDArray[np.int64]  # rows of (example, ordinal), (p, 2)

CANDIDATES = 200  # premises of a retrieved ranking that a cross-encoder learns to re-rank
REFUSED: frozenset[Sign] = frozenset({"NEGATIVE", "CONTRADICTED"})
SHARE = 0.2  # of the hypotheses, to hold back
LEAST = 15  # hypotheses
MOST = 0.5  # of the hypotheses


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """A pair as training needs it. `split` is that of the query's trees, `premise_split` that of the premise's.

    They are empty if unknown: a run knows the trees of its hypotheses, not those of the premises that it finds. `grade`
    is that of a positive pair, above 0; 0 if none was told. `question_class` is that of a question and its answers;
    empty for none.
    """

    query: str
    premise_id: str
    premise: str
    sign: Sign
    split: str = ""
    premise_split: str = ""
    grade: float = 0.0
    question_class: str = ""


@dataclass(frozen=True)
class Example:
    """One query with the ordinals of its positive and refused premises, and the `grades` of the positive ones.

    `excluded` premises are neither positive nor negative, and `neutral` ones are among them; `contradicted` are refused
    ones that contradict the query. `question_class` is the last one told of the query; empty for none.
    """

    query: str
    positives: Ordinals
    refused: Ordinals
    excluded: Ordinals
    contradicted: Ordinals
    grades: NDArray[np.float64]
    neutral: Ordinals
    question_class: str = ""


@dataclass(frozen=True)
class TrainingSet:
    """Examples with a positive, refused or neutral premise, in order of first appearance.

    `outside` holds the texts of premises that the generation lacks, whose ordinals follow its own; they can be positive
    or refused. `excluded` (n,) marks premises that no query may learn from, because they stand only in other splits.
    `dropped_for` counts the pairs that may not be learned from.
    """

    examples: list[Example]
    outside: list[str]
    excluded: NDArray[np.bool_]
    dropped_for: Mapping[DropReason, int]

    @property
    def dropped(self) -> int:
        """The number of pairs that may not be learned from."""
        return sum(self.dropped_for.values())

    @property
    def positives(self) -> int:
        """The number of positive pairs."""
        return sum(len(example.positives) for example in self.examples)

    @property
    def negatives(self) -> int:
        """The number of refused pairs."""
        return sum(len(example.refused) for example in self.examples)

    def pairs(self, ordinals_of: Callable[[Example], Ordinals]) -> Pairs:
        """Lists (example, ordinal) for each ordinal that the function selects, ordered by example."""
        named = [ordinals_of(example) for example in self.examples]
        rows = np.repeat(np.arange(len(named)), [len(ordinals) for ordinals in named])
        return np.stack([rows, np.concatenate(named) if named else rows], axis=1).astype(np.int64)

    def triplets(self) -> NDArray[np.int64]:
        """Lists P(q) x N(q) of every query: rows of (example, positive ordinal, refused ordinal), (t, 3)."""
        rows = [
            np.stack(np.meshgrid([n], example.positives, example.refused, indexing="ij"), axis=-1).reshape(-1, 3)
            for n, example in enumerate(self.examples)
        ]
        return np.concatenate(rows) if rows else np.empty((0, 3), dtype=np.int64)


def as_stored(pairs: Iterable[JudgedPair], generation: Generation) -> Iterable[JudgedPair]:
    """Gives pairs the texts that stand for those of their premises in a generation."""
    if not generation.is_folded:
        return pairs
    return (replace(pair, premise=generation.stored(pair.premise)) for pair in pairs)


def build_training_set(
    pairs: Iterable[JudgedPair],
    premises: Sequence[PremiseRecord],
    split: str,
    held_out: Set[str] = frozenset(),
    *,
    own_text: OwnText = "EXCLUDED",
    validation: Set[str] = frozenset(),
) -> TrainingSet:
    """Builds the training set of pairs over a generation's premises.

    With a `split`, a text that stands only in trees of other splits is never learned from, as query or as premise;
    neither is a text of `held_out`, except where trees of the split itself have it. A run may have found its query as a
    premise: where nobody knows that premise's splits, the query is held out, too. Without a `split`, no pair of a query
    of `validation` is learned from: those queries choose the epoch and judge the result. A pair judged both positive
    and refused, in different runs or by different annotators, is excluded. Of several grades of a pair the highest
    counts; a positive pair without one has grade 1. With `own_text` NEGATIVE, a query's own text is a refused premise
    where it is a premise at all, whatever was judged. Raises FailedPrecondition for a pair without a text whose id the
    generation lacks.
    """
    known = premises if isinstance(premises, Premises) else Premises.of(premises)
    ordinal_of = lru_cache(maxsize=None)(known.ordinal_by_text.get)  # the pairs' texts; no table of all premises
    excluded = ~known.passing(frozenset({"facts", split})) if split else np.zeros(len(known), dtype=bool)
    outside: dict[str, int] = {}
    judged: dict[str, dict[int, set[Sign]]] = defaultdict(lambda: defaultdict(set))
    grades: dict[tuple[str, int], float] = {}
    classes: dict[str, str] = {}
    dropped: Counter[DropReason] = Counter()
    for pair in pairs:
        text, own, ordinal = pair.premise, ordinal_of(pair.query), ordinal_of(pair.premise)
        if ordinal is None and not text:
            ordinal = _known(known.ordinal_by_id, pair)
            text = known[ordinal].text
        in_other_splits = any(one is not None and excluded[one] for one in (own, ordinal))
        is_held_out = (pair.query in held_out and (pair.split != split or _may_be_found(pair, own, known, split))) or (
            text in held_out and pair.premise_split != split
        )
        is_held_out = is_held_out if split else pair.query in validation
        if in_other_splits or is_held_out or text == pair.query:
            dropped["OWN_TEXT" if text == pair.query else "OTHER_SPLIT"] += 1
            continue
        if ordinal is None:
            ordinal = outside.setdefault(text, len(premises) + len(outside))
        judged[pair.query][ordinal].add(pair.sign)
        if pair.question_class:
            classes[pair.query] = pair.question_class
        if pair.grade:
            grades[pair.query, ordinal] = max(pair.grade, grades.get((pair.query, ordinal), 0.0))
    examples = []
    for query, signs in judged.items():
        own = ordinal_of(query)
        own = outside.get(query) if own is None else own
        if own is not None:
            signs[own] = {"NEGATIVE" if own_text == "NEGATIVE" else "SKIPPED"}
        own_grades = {ordinal: grades.get((query, ordinal), 1.0) for ordinal in signs}
        example = _example(query, signs, own_grades, classes.get(query, ""))
        dropped["BOTH_WAYS"] += sum("POSITIVE" in found and bool(REFUSED & found) for found in signs.values())
        if len(example.positives) or len(example.refused) or len(example.neutral):
            examples.append(example)
    found = (ordinal_of(text) for text in (held_out if split else ()))
    excluded[[own for own in found if own is not None and not known[own].splits]] = True
    return TrainingSet(examples, list(outside), excluded, dropped)


def _may_be_found(pair: JudgedPair, own: int | None, premises: Premises, split: str) -> bool:
    """Whether a run may have found the query as a premise, so that nothing tells that trees of the split have it."""
    return own is not None and pair.premise_split != split and not premises[own].splits


def _known(by_id: Mapping[str, int], pair: JudgedPair) -> int:
    ordinal = by_id.get(pair.premise_id)
    if ordinal is None:
        raise FailedPrecondition(
            f"premise {pair.premise_id!r} of query {pair.query[:80]!r} is not in the corpus's generation, and the pair "
            "has no text; import it with its text, or activate a generation that has the premise",
            reason="UNKNOWN_PREMISE",
        )
    return ordinal


def _example(query: str, signs: dict[int, set[Sign]], grades: dict[int, float], question_class: str) -> Example:
    def where(holds: Callable[[set[Sign]], bool]) -> Ordinals:
        return np.array([n for n, found in signs.items() if holds(found)], dtype=np.int64)

    positives = where(lambda found: "POSITIVE" in found and not REFUSED & found)
    refused = where(lambda found: "POSITIVE" not in found and bool(REFUSED & found))
    contradicted = where(lambda found: "POSITIVE" not in found and REFUSED & found == {"CONTRADICTED"})
    undecided = set(signs) - set(positives.tolist()) - set(refused.tolist())
    excluded = np.array(sorted(undecided), dtype=np.int64)
    neutral = where(lambda found: found == {"NEUTRAL"})
    own_grades = np.array([grades[int(n)] for n in positives])
    return Example(query, positives, refused, excluded, contradicted, own_grades, neutral, question_class)


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

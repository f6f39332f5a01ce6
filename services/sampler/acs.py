"""Active contrastive sampling (Algorithm 2 of the paper, corrected), as pure state: no clock, no network, no storage.

The result is defined breadth-first per tree, so that neither batching nor concurrency can change it:

- one visited set per tree, holding texts; a node is expanded once, at its smallest depth, under the parent that comes
  first in (depth, order, rank);
- a level is expanded once all its nodes are judged, in the order of its nodes and of their candidates' ranks;
- P' and N' of every node are kept (lines 7-8 of the print merge N' only);
- a query's candidates are its k nearest premises without itself and without its ancestors in the tree. The k nearest
  are a property of the query, so that what one tree has asked about a query holds in every other tree of the run.

Oracles are taken to judge a premise by the query. One that decides by the path is answered for by the first path asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from services.sampler.negatives import NegativeFilter, Reason, Sieve

ROOT = 0
ROUNDS = 8  # how often a conditioned node is retrieved for, at most


class Ruling(Enum):
    """What the run knows of a (query, premise) pair. REFUSED (recorded as a negative), FILTERED (recorded as skipped)
    and REFUSED_UNKEPT (not recorded) come from a refusal, and nothing else does.
    """

    EXPLAINS = "E"
    LEAF = "L"
    REFUSED = "R"
    REFUSED_UNKEPT = "r"
    FILTERED = "F"
    SKIPPED = "S"

    @property
    def accepted(self) -> bool:
        """Whether the premise explains the query."""
        return self in {Ruling.EXPLAINS, Ruling.LEAF}

    @property
    def refused(self) -> bool:
        """Whether the oracle saw the premise and refused it."""
        return self in {Ruling.REFUSED, Ruling.REFUSED_UNKEPT, Ruling.FILTERED}


@dataclass(frozen=True)
class Rules:
    """The limits of a run; 0 means no limit, except for `max_depth`, where 0 expands the root only."""

    k: int = 20
    max_depth: int = 8
    max_judgements: int = 0
    max_negatives_per_query: int = 0
    max_nodes_per_tree: int = 0
    positives_only: bool = False
    conditioned: bool = False
    negatives: NegativeFilter = field(default_factory=NegativeFilter)

    @property
    def worst_case(self) -> int:
        """The most candidates that one node can put before the oracle."""
        return self.k * (ROUNDS if self.conditioned else 1)


@dataclass(frozen=True)
class Candidate:
    """A premise retrieved for a query: rank from 1 among the query's k nearest, score a cosine."""

    id: str
    text: str
    rank: int
    score: float


@dataclass(frozen=True)
class Node:
    """A query in a tree. Ordinals count from 0, the root, in breadth-first order; the root's parent is -1."""

    ordinal: int
    text: str
    premise_id: str = ""
    parent: int = -1
    depth: int = 0


@dataclass(frozen=True)
class Accepted:
    """A premise that explains a node's query. A leaf is not expanded."""

    id: str
    text: str
    rank: int
    leaf: bool


@dataclass(frozen=True)
class Result:
    """What judging a node gave its tree. A failed node accepted only what was known already: it was never answered."""

    accepted: tuple[Accepted, ...] = ()
    failed: bool = False


@dataclass
class Tree:
    """One hypothesis and the nodes found below it so far. `depth` is the level in work."""

    index: int
    hypothesis_id: str
    nodes: list[Node]
    results: dict[int, Result] = field(default_factory=dict)
    depth: int = 0

    def pending(self) -> list[Node]:
        """The nodes of the current level that wait for their judgement, in order."""
        return [node for node in self.nodes if node.depth == self.depth and node.ordinal not in self.results]

    def path(self, node: Node) -> tuple[str, ...]:
        """The texts from the root to the node's parent."""
        texts: list[str] = []
        while node.parent >= ROOT:
            node = self.nodes[node.parent]
            texts.append(node.text)
        return tuple(reversed(texts))

    def next_level(self, rules: Rules) -> list[Node]:
        """The nodes of the next level, given that the current one is judged. Empty when the tree is finished."""
        if self.depth >= rules.max_depth:
            return []
        visited = {node.text for node in self.nodes}
        room = rules.max_nodes_per_tree - len(self.nodes) if rules.max_nodes_per_tree else None
        found: list[Node] = []
        for parent in self.nodes:
            if parent.depth != self.depth:
                continue
            for premise in self.results[parent.ordinal].accepted:
                if premise.leaf or premise.text in visited or (room is not None and len(found) >= room):
                    continue
                visited.add(premise.text)
                ordinal = len(self.nodes) + len(found)
                found.append(Node(ordinal, premise.text, premise.id, parent.ordinal, self.depth + 1))
        return found


@dataclass(frozen=True)
class Outcome:
    """What a node's judgement adds to the run: the tree's result, the pairs to record, and what is now known.

    `filtered` are refusals that are not to be learned from, each with the reason.
    """

    result: Result
    positives: tuple[Candidate, ...] = ()
    negatives: tuple[Candidate, ...] = ()
    filtered: tuple[tuple[Candidate, Reason], ...] = ()
    skipped: tuple[Candidate, ...] = ()
    known: Mapping[str, Ruling] = field(default_factory=dict)


def choose(path: Sequence[str], query: str, nearest: Iterable[Candidate]) -> list[Candidate]:
    """The candidates of a node: the query's nearest premises without itself and its ancestors, best first."""
    excluded = {query, *path}
    return [candidate for candidate in nearest if candidate.text not in excluded]


def settle(
    query: str,
    candidates: Sequence[Candidate],
    nearest: Sequence[Candidate],
    known: Mapping[str, Ruling],
    answered: Mapping[str, Ruling],
    rules: Rules,
) -> Outcome:
    """What a node's judgement means, from what the run knew of its query and what was answered now."""
    rulings = {**known, **answered}
    accepted: list[Accepted] = []
    positives: list[Candidate] = []
    for candidate in candidates:
        ruling = rulings.get(candidate.id)
        if ruling is not None and ruling.accepted:
            accepted.append(Accepted(candidate.id, candidate.text, candidate.rank, ruling is Ruling.LEAF))
            if candidate.id in answered:
                positives.append(candidate)
    negatives: list[Candidate] = []
    filtered: list[tuple[Candidate, Reason]] = []
    if not rules.positives_only:
        negatives, filtered = _refused(query, candidates, nearest, rulings, rules)
        rulings.update((candidate.id, Ruling.REFUSED) for candidate in negatives)
        rulings.update((candidate.id, Ruling.FILTERED) for candidate, _ in filtered)
    skipped = tuple(candidate for candidate in candidates if answered.get(candidate.id) is Ruling.SKIPPED)
    return Outcome(Result(tuple(accepted)), tuple(positives), tuple(negatives), tuple(filtered), skipped, known=rulings)


def _refused(
    query: str,
    candidates: Sequence[Candidate],
    nearest: Sequence[Candidate],
    rulings: Mapping[str, Ruling],
    rules: Rules,
) -> tuple[list[Candidate], list[tuple[Candidate, Reason]]]:
    """The refusals to record now: as negatives, best first and capped, and as filtered ones.

    An ancestor of which nothing is known takes a place among the capped, and so does what is left out because of it. So
    the trees in which a query occurs agree on which are kept, in whatever order they are judged, and no query keeps
    more than `max_negatives_per_query` in the whole run.
    """
    usable = {candidate.id for candidate in candidates}
    ruled = [(candidate, rulings.get(candidate.id)) for candidate in nearest]
    sieve = Sieve(
        rules.negatives,
        query,
        [(c.text, c.score) for c, ruling in ruled if ruling is not None and ruling.accepted],
        [(c.text, c.score) for c, ruling in ruled if ruling is None and c.id not in usable],
    )
    negatives: list[Candidate] = []
    filtered: list[tuple[Candidate, Reason]] = []
    most = rules.max_negatives_per_query or len(rulings) + len(nearest)
    room = most - sum(ruling is Ruling.REFUSED for ruling in rulings.values())
    places = 0
    for candidate, ruling in ruled:
        if candidate.id not in usable:
            places += ruling is None or ruling.refused
        elif ruling is not None and ruling.refused:
            reason, for_good = sieve.reason(candidate.text, candidate.rank, candidate.score)
            places += reason is None or not for_good
            if reason is not None:
                if ruling is Ruling.REFUSED_UNKEPT:
                    filtered.append((candidate, reason))
            elif ruling is not Ruling.REFUSED and places <= most and len(negatives) < room:
                negatives.append(candidate)
    return negatives, filtered


def affordable(trees: Sequence[Tree], rules: Rules, judgements: int) -> tuple[list[Tree], bool]:
    """The first trees that can be worked on together without the budget being spent out of order; and if that is safe.

    `trees` are the unfinished ones in order, `judgements` what is stored. Without a budget: all. With one: those whose
    worst cases, nodes in the air included, it covers together; in whatever order they are asked, nothing is cut off.
    If it does not cover the first one either: that one alone, whose level has to be asked in order (not safe).
    """
    if not rules.max_judgements:
        return list(trees), True
    left = rules.max_judgements - judgements
    if left <= 0:
        return [], True
    chosen: list[Tree] = []
    for tree in trees:
        left -= _most_nodes_left(tree, rules, left) * rules.worst_case
        if left < 0:
            break
        chosen.append(tree)
    return (chosen, True) if chosen else (list(trees[:1]), False)


def _most_nodes_left(tree: Tree, rules: Rules, enough: int) -> int:
    """The most nodes of a tree that may still be judged; counted up to more than `enough`."""
    level = [node for node in tree.nodes if node.depth == tree.depth]
    found = len(level) - sum(node.ordinal in tree.results for node in level)
    below = sum(
        len(tree.results[node.ordinal].accepted) if node.ordinal in tree.results else rules.worst_case for node in level
    )
    for _ in range(tree.depth, rules.max_depth):
        found += below
        below *= rules.worst_case
        if not below or found > enough:
            break
    if rules.max_nodes_per_tree:
        found = min(found, rules.max_nodes_per_tree - len(tree.results))
    return found

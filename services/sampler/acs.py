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

ROOT = 0


class Ruling(Enum):
    """What the run knows of a (query, premise) pair. Only REFUSED and REFUSED_UNKEPT come from a refusal."""

    EXPLAINS = "E"
    LEAF = "L"
    REFUSED = "R"
    REFUSED_UNKEPT = "r"
    SKIPPED = "S"

    @property
    def accepted(self) -> bool:
        """Whether the premise explains the query."""
        return self in {Ruling.EXPLAINS, Ruling.LEAF}

    @property
    def refused(self) -> bool:
        """Whether the oracle saw the premise and refused it."""
        return self in {Ruling.REFUSED, Ruling.REFUSED_UNKEPT}


@dataclass(frozen=True)
class Rules:
    """The limits of a run; 0 means no limit, except for `max_depth`, where 0 expands the root only."""

    k: int = 20
    max_depth: int = 8
    max_judgements: int = 0
    max_negatives_per_query: int = 0
    max_nodes_per_tree: int = 0
    positives_only: bool = False


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
    """What judging a node gave its tree. A failed node accepted nothing, because the oracle never answered it."""

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
    """What a node's judgement adds to the run: the tree's result, the pairs to record, and what is now known."""

    result: Result
    positives: tuple[Candidate, ...]
    negatives: tuple[Candidate, ...]
    skipped: tuple[Candidate, ...]
    known: dict[str, Ruling]


def choose(path: Sequence[str], query: str, nearest: Iterable[Candidate]) -> list[Candidate]:
    """The candidates of a node: the query's nearest premises without itself and its ancestors, best first."""
    excluded = {query, *path}
    return [candidate for candidate in nearest if candidate.text not in excluded]


def settle(
    candidates: Sequence[Candidate],
    nearest: Sequence[Candidate],
    known: Mapping[str, Ruling],
    answered: Mapping[str, Ruling],
    rules: Rules,
) -> Outcome:
    """What a node's judgement means, from what the run knew of its query and what was answered now.

    Negatives are kept best first. An excluded ancestor takes a place among them, so that the trees in which a query
    occurs agree on which are kept, and no query keeps more than `max_negatives_per_query` in the whole run.
    """
    rulings = {**known, **answered}
    usable = {candidate.id for candidate in candidates}
    accepted: list[Accepted] = []
    positives: list[Candidate] = []
    negatives: list[Candidate] = []
    skipped: list[Candidate] = []
    places = 0
    for candidate in nearest:
        ruling = rulings.get(candidate.id) if candidate.id in usable else None
        if ruling is not None and ruling.accepted:
            leaf = ruling is Ruling.LEAF
            accepted.append(Accepted(candidate.id, candidate.text, candidate.rank, leaf))
            if candidate.id in answered:
                positives.append(candidate)
        elif candidate.id not in usable or (ruling is not None and ruling.refused):
            places += 1
            within = not rules.max_negatives_per_query or places <= rules.max_negatives_per_query
            if ruling is Ruling.REFUSED_UNKEPT and within and not rules.positives_only:
                negatives.append(candidate)
                rulings[candidate.id] = Ruling.REFUSED
        if answered.get(candidate.id) is Ruling.SKIPPED:
            skipped.append(candidate)
    return Outcome(Result(tuple(accepted)), tuple(positives), tuple(negatives), tuple(skipped), rulings)


def affordable(trees: Sequence[Tree], rules: Rules, judgements: int) -> list[Tree]:
    """The first trees that can be worked on together without the budget being spent out of order.

    `trees` are the unfinished ones in order. Without a budget: all. With one: those whose worst cases it covers
    together, and at least the first, whose level is asked in order until the budget is spent.
    """
    if not rules.max_judgements:
        return list(trees)
    left = rules.max_judgements - judgements
    if left <= 0:
        return []
    if not rules.max_nodes_per_tree:
        return list(trees[:1])
    chosen: list[Tree] = []
    for tree in trees:
        left -= (rules.max_nodes_per_tree - len(tree.results)) * rules.k
        if chosen and left < 0:
            break
        chosen.append(tree)
    return chosen

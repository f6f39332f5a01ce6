"""Active contrastive sampling (Algorithm 2 of the paper, corrected), as pure state: no clock, no network, no storage.

The result is defined breadth-first per tree, so neither batching nor concurrency can change it:

- one visited set per tree, holding texts; a node is expanded once, at its smallest depth, under the parent that comes
  first in (depth, order, rank);
- a level is expanded once all its nodes are judged, in the order of its nodes and of their candidates' ranks;
- P' and N' of every node are kept (lines 7-8 of the print merge N' only);
- a query's candidates are the first k of its nearest premises without itself and without its ancestors in the tree.
  Their order depends on the query alone, so an answer about a query in one tree holds in every other tree of the run.
- a premise that an oracle adds, because it is missing among the candidates, is accepted in every tree of the run that
  asks this query, after the candidates. Where it is the query or an ancestor it is left out, as a candidate is.
  The same holds for an intermediate conclusion that it writes, but it is no premise: no pair comes of it;
- what people accept of a judged node later explains it from then on, and is expanded like all else. The level in work
  goes back to the one below that node; what was judged stays judged, and no text is expanded twice. What they take back
  explains it no longer: what hangs on nothing else is cut, and not asked unless they accept it again;
- a pair says what was answered; which refusals are negatives is decided where pairs are read (`negatives`).

An oracle is assumed to judge a premise by the query. If it decides by the path, the first path asked decides for all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from services.sampler.acs.negatives import NegativeFilter, Reason

if TYPE_CHECKING:  # values, and behind them gRPC
    from aeenc.oracle import Candidate
    from aeenc.values import Answer

ROOT = 0
ADDED = 0  # the rank of a premise that was not retrieved: an oracle has added it
ROUNDS = 8  # at most; only a conditioned node has more than one
MAX_REACH = 1000  # the index returns no more; above k = 1,000 - max_depth, a deep node may see fewer than k


class PairState(Enum):
    """What a run knows of a (query, premise) pair. SKIPPED is whatever is no clear yes or no: see `oracles.answers`.

    All that tells states or judgements apart is an exhaustive match, so that mypy names each place for a new one.
    """

    EXPLAINS = "E"
    LEAF = "L"
    REFUSED = "R"
    SKIPPED = "S"

    @property
    def accepted(self) -> bool:
        """Whether the premise explains the query."""
        return self is PairState.EXPLAINS or self is PairState.LEAF


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
    def reach(self) -> int:
        """How many premises are looked up for a query: k are left when all its ancestors are among them."""
        return max(self.k, min(self.k + self.max_depth, MAX_REACH))

    @property
    def leaves_out(self) -> bool:
        """Whether some refusals may be no negatives."""
        has_filter = bool(self.max_negatives_per_query) or self.negatives != NegativeFilter()
        return has_filter and not self.positives_only


@dataclass(frozen=True)
class Node:
    """A query in a tree. Ordinals count from 0, the root, as nodes are found, parents first; the root's parent is -1.

    An intermediate that somebody wrote has an author instead of a premise id.
    """

    ordinal: int
    text: str
    premise_id: str = ""
    parent: int = -1
    depth: int = 0
    author: str = ""


@dataclass(frozen=True)
class AcceptedPremise:
    """A premise that explains a node's query. A leaf is not expanded.

    An intermediate, a conclusion in somebody's own words that needs an explanation itself, has an author instead of an
    id, and no pair comes of it.
    """

    id: str
    text: str
    rank: int
    leaf: bool
    author: str = ""


@dataclass(frozen=True)
class Result:
    """The tree's share of a judged node. A failed node was never answered: it accepted only what was known before.

    `version` is the encoder version that its candidates were retrieved with; empty: it was not noted.
    """

    accepted: tuple[AcceptedPremise, ...] = ()
    failed: bool = False
    version: str = ""


@dataclass(frozen=True)
class Growth:
    """A node's new result, the new nodes below it after a change of mind, and the level in work from then on.

    `cut` are the nodes that hang on nothing from then on, `reopened` how many more unjudged ones hang than before,
    this node left out.
    """

    ordinal: int
    result: Result
    nodes: tuple[Node, ...]
    depth: int
    cut: frozenset[int] = frozenset()
    reopened: int = 0


@dataclass
class Tree:
    """One hypothesis and the nodes found below it so far. `depth` is the level in work.

    `cut` nodes are not asked: what explained a node with them was taken back, there and above, and nothing else
    accepts them. `question` and `answer` stand behind the hypothesis. They change nothing here.
    """

    index: int
    hypothesis_id: str
    nodes: list[Node]
    results: dict[int, Result] = field(default_factory=dict)
    depth: int = 0
    question: str = ""
    answer: str = ""
    cut: frozenset[int] = frozenset()

    def pending(self) -> list[Node]:
        """The nodes of the current level that still have to be judged, in order."""
        level = [node for node in self.nodes if node.depth == self.depth and node.ordinal not in self.results]
        return [node for node in level if node.ordinal not in self.cut]

    def path(self, node: Node) -> tuple[str, ...]:
        """The texts from the root to the node's parent."""
        texts: list[str] = []
        while node.parent >= ROOT:
            node = self.nodes[node.parent]
            texts.append(node.text)
        return tuple(reversed(texts))

    def next_level(self, rules: Rules) -> list[Node]:
        """The nodes of the next level, given that the current one is judged. Empty when the tree is finished."""
        level = [node for node in self.nodes if node.depth == self.depth and node.ordinal not in self.cut]
        return self._children([(node, self.results[node.ordinal]) for node in level], rules)

    def growth(
        self, ordinal: int, accepted: Sequence[AcceptedPremise], rules: Rules, refused: Collection[str] = ()
    ) -> Growth | None:
        """The effect of what was accepted, or refused (ids), after a node was judged.

        None if it is not judged, or nothing is new.
        """
        before = self.results.get(ordinal)
        if before is None:
            return None
        node, known = self.nodes[ordinal], {premise.text for premise in before.accepted}
        excluded = {node.text, *self.path(node), *known}
        no_leaves = {one.text for one in accepted if not one.leaf}
        held = [one for one in before.accepted if one.id not in refused]
        kept = (replace(one, leaf=one.leaf and one.text not in no_leaves) for one in held)
        result = replace(before, accepted=(*kept, *(one for one in accepted if one.text not in excluded)))
        if result == before:
            return None
        # The level below opens once this one is judged, and that below a cut node once the node hangs again.
        opens = node.depth < self.depth and ordinal not in self.cut
        return self._growth(ordinal, result, self._children([(node, result)], rules) if opens else [])

    def judged(self, ordinal: int, result: Result) -> Growth:
        """The effect of a node's first result. It opens again what was cut and is accepted here."""
        if not self.cut:
            return Growth(ordinal, result, (), self.depth)
        return self._growth(ordinal, result, ())

    def _growth(self, ordinal: int, result: Result, nodes: Sequence[Node]) -> Growth:
        cut = cut_nodes(self.nodes, {**self.results, ordinal: result})
        again = [self.nodes[one] for one in self.cut - cut]
        depth = min([self.depth, *(one.depth for one in (*nodes, *again))])
        unjudged = {one.ordinal for one in self.nodes if one.ordinal not in self.results} - {ordinal}
        return Growth(ordinal, result, tuple(nodes), depth, cut, len(unjudged & self.cut) - len(unjudged & cut))

    def grow(self, growth: Growth) -> None:
        """Takes a growth in."""
        self.results[growth.ordinal] = growth.result
        self.nodes.extend(growth.nodes)
        self.depth, self.cut = growth.depth, growth.cut

    @property
    def deeper(self) -> bool:
        """Whether nodes stand below the level in work: those of a tree that has grown."""
        return any(node.depth > self.depth for node in self.nodes)

    def _children(self, parents: Iterable[tuple[Node, Result]], rules: Rules) -> list[Node]:
        visited = {node.text for node in self.nodes}
        room = rules.max_nodes_per_tree - len(self.nodes) if rules.max_nodes_per_tree else None
        found: list[Node] = []
        for parent, result in parents:
            for premise in result.accepted if parent.depth < rules.max_depth else ():
                if premise.leaf or premise.text in visited or (room is not None and len(found) >= room):
                    continue
                visited.add(premise.text)
                ordinal = len(self.nodes) + len(found)
                found.append(Node(ordinal, premise.text, premise.id, parent.ordinal, parent.depth + 1, premise.author))
        return found


def cut_nodes(nodes: Sequence[Node], results: Mapping[int, Result]) -> frozenset[int]:
    """The nodes of a tree that no node which hangs on the root accepts."""
    by_text = {node.text: node.ordinal for node in nodes}
    left, todo = {node.ordinal for node in nodes} - {ROOT}, [ROOT]
    while todo:
        result = results.get(todo.pop(), Result())
        found = {by_text.get(premise.text) for premise in result.accepted} & left
        left -= found
        todo += [one for one in found if one is not None]
    return frozenset(left)


@dataclass(frozen=True)
class Known:
    """What a run knows of a query: its pairs by premise id, and what was written or said of it.

    `premises` are those of `states`, as they were retrieved, or added by somebody (rank ADDED, no score); `vectors`
    names the query vector that gave each its score. `statements` are what remote oracles said beside verdicts; what
    people say stays with their tasks.
    """

    states: Mapping[str, PairState] = field(default_factory=dict)
    premises: Mapping[str, Candidate] = field(default_factory=dict)
    written: tuple[AcceptedPremise, ...] = ()
    statements: tuple[Answer, ...] = ()
    vectors: Mapping[str, str] = field(default_factory=dict)

    @property
    def added(self) -> list[Candidate]:
        """The premises that were added."""
        return [one for one in self.premises.values() if one.rank == ADDED]

    def left_out(self, query: str, rules: Rules) -> dict[str, Reason]:
        """Why refused premises of the query are no negatives by the rules of a run, by premise id."""
        if not rules.leaves_out:
            return {}
        by_state: dict[PairState, list[Candidate]] = defaultdict(list)
        for name, state in self.states.items():
            by_state[state].append(self.premises[name])
        accepted = (*by_state[PairState.EXPLAINS], *by_state[PairState.LEAF])
        refused = by_state[PairState.REFUSED]
        return rules.negatives.left_out(query, accepted, refused, rules.max_negatives_per_query, self.vectors)


@dataclass(frozen=True)
class Outcome:
    """The effect of a judged node on the run: the tree's result, the premises judged now, and what is now known."""

    result: Result
    judged: tuple[Candidate, ...] = ()
    known: Known = field(default_factory=Known)


def choose(path: Sequence[str], query: str, nearest: Iterable[Candidate], k: int) -> list[Candidate]:
    """The candidates of a node: the first k of the query's nearest premises without itself and its ancestors."""
    excluded = {query, *path}
    return [candidate for candidate in nearest if candidate.text not in excluded][:k]

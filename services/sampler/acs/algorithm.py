"""Active contrastive sampling (Algorithm 2 of the paper, corrected), as pure state: no clock, no network, no storage.

The result is defined breadth-first per tree, so neither batching nor concurrency can change it:

- one visited set per tree, holding texts; a node is expanded once, at its smallest depth, under the parent that comes
  first in (depth, order, rank);
- a level is expanded once all its nodes are judged, in the order of its nodes and of their candidates' ranks;
- P' and N' of every node are kept (lines 7-8 of the print merge N' only);
- a query's candidates are the first k of its nearest premises without itself and without its ancestors in the tree.
  Their order depends on the query alone, so an answer about a query in one tree holds in every other tree of the run.
  Runs that began before this rule drop ancestors from the k nearest, and put fewer than k before the oracle;
- a premise that an oracle adds, because it is missing among the candidates, is accepted in every tree of the run that
  asks this query, after the candidates. Where it is the query or an ancestor it is left out, as a candidate is.
  The same holds for an intermediate conclusion that it writes, but it is no premise: no pair comes of it;
- what people accept of a judged node later explains it from then on, and is expanded like all else. The level in work
  goes back to the one below that node; what was judged stays judged, and no text is expanded twice. What they take back
  explains it no longer: what hangs on nothing else is cut, and not asked unless they accept it again;
- whether a refusal is kept is decided by what the run knows of the premises up to its rank, and up to rank k at least.
  A tree that looks further, because it dropped ancestors, changes nothing for the others.

An oracle is assumed to judge a premise by the query. If it decides by the path, the first path asked decides for all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cache
from typing import Any, Literal

from services.sampler.acs.negatives import NegativeFilter, Reason, RefusalFilter

ROOT = 0
ADDED = 0  # the rank of a premise that was not retrieved: an oracle has added it
ROUNDS = 8  # at most; only a conditioned node has more than one
NodeVerdict = Literal["", "COMPLETE", "PREMISE_MISSING", "NOT_EXPLAINABLE"]
MAX_REACH = 1000  # the index returns no more; above k = 1,000 - max_depth, a deep node may see fewer than k


class PairState(Enum):
    """The state of a (query, premise) pair in a run, read from a verdict.

    Only a refusal becomes REFUSED (recorded as a negative), FILTERED (recorded as skipped) or REFUSED_UNKEPT (not
    recorded). An abstention becomes SKIPPED, and so does everything that is missing, unseen or unclear.
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
        return self is PairState.EXPLAINS or self is PairState.LEAF

    @property
    def refused(self) -> bool:
        """Whether the oracle saw the premise and refused it."""
        return self in {PairState.REFUSED, PairState.REFUSED_UNKEPT, PairState.FILTERED}


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


@dataclass(frozen=True)
class RetrievedPremise:
    """A premise retrieved for a query: rank from 1 among the query's nearest, score a cosine.

    Rank ADDED: an oracle has added it, and nothing has scored it.
    """

    id: str
    text: str
    rank: int
    score: float


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

    An intermediate that somebody wrote has an author instead of an id, and no pair comes of it.
    """

    id: str
    text: str
    rank: int
    leaf: bool
    author: str = ""


@dataclass(frozen=True)
class Intermediate:
    """A conclusion in somebody's own words that explains a query and needs an explanation itself."""

    text: str
    author: str


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What somebody says of a query beside verdicts on its candidates.

    `written` are facts in their own words, which no corpus has, and `intermediates` are such as become nodes.
    `inference` says how the query follows, `node_verdict` whether anything is missing. Each of `alternatives` (ids)
    explains the query by itself.
    """

    annotator: str = ""
    note: str = ""
    written: tuple[str, ...] = ()
    inference: str = ""
    node_verdict: NodeVerdict = ""
    intermediates: tuple[str, ...] = ()
    alternatives: tuple[tuple[str, ...], ...] = ()

    @property
    def empty(self) -> bool:
        """Whether it says nothing."""
        return not any(value for name, value in self.parts().items() if name != "annotator")

    def parts(self) -> dict[str, Any]:
        """Its fields, of an answer that is more than a statement, too."""
        return {one.name: getattr(self, one.name) for one in fields(Statement)}


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
    """A judged node's result after a change of mind, the new nodes below it, and the level in work from then on.

    `cut` are the nodes that hang on nothing from then on, `reopened` how many more unjudged ones hang than before.
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
        nodes = self._children([(node, result)], rules) if opens else []
        cut = cut_nodes(self.nodes, {**self.results, ordinal: result})
        again = [self.nodes[one] for one in self.cut - cut]
        depth = min([self.depth, *(one.depth for one in (*nodes, *again))])
        unjudged = {one.ordinal for one in self.nodes if one.ordinal not in self.results}
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
    """What a run knows of a query: the states of its pairs by premise id, and what was added, written or said of it.

    What people say stays with their tasks.
    """

    states: Mapping[str, PairState] = field(default_factory=dict)
    added: tuple[RetrievedPremise, ...] = ()
    written: tuple[Intermediate, ...] = ()
    statements: tuple[Statement, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """The effect of a judged node on the run: the tree's result, the pairs to record, and what is now known.

    `filtered` holds refusals that training must not learn from, each with the reason.
    """

    result: Result
    positives: tuple[RetrievedPremise, ...] = ()
    negatives: tuple[RetrievedPremise, ...] = ()
    filtered: tuple[tuple[RetrievedPremise, Reason], ...] = ()
    skipped: tuple[RetrievedPremise, ...] = ()
    known: Known = field(default_factory=Known)


def choose(path: Sequence[str], query: str, nearest: Iterable[RetrievedPremise], k: int) -> list[RetrievedPremise]:
    """The candidates of a node: the first k of the query's nearest premises without itself and its ancestors."""
    excluded = {query, *path}
    return [candidate for candidate in nearest if candidate.text not in excluded][:k]


def conclude(
    query: str,
    candidates: Sequence[RetrievedPremise],
    nearest: Sequence[RetrievedPremise],
    known: Known,
    answered: Mapping[str, PairState],
    rules: Rules,
) -> Outcome:
    """Concludes a node from what the run knew of its query and what was answered now.

    `candidates` are those retrieved, then those added that this tree may have; `known.added` are all that were added.
    """
    states = {**known.states, **answered}
    accepted: list[AcceptedPremise] = []
    positives: list[RetrievedPremise] = []
    for candidate in candidates:
        state = states.get(candidate.id)
        if state is not None and state.accepted:
            accepted.append(AcceptedPremise(candidate.id, candidate.text, candidate.rank, state is PairState.LEAF))
            if candidate.id in answered:
                positives.append(candidate)
    negatives: list[RetrievedPremise] = []
    filtered: list[tuple[RetrievedPremise, Reason]] = []
    if not rules.positives_only:
        said = [one.text for one in known.added]
        negatives, filtered = _refused(query, candidates, nearest, states, rules, said)
        states.update((candidate.id, PairState.REFUSED) for candidate in negatives)
        states.update((candidate.id, PairState.FILTERED) for candidate, _ in filtered)
    skipped = tuple(candidate for candidate in candidates if answered.get(candidate.id) is PairState.SKIPPED)
    after = replace(known, states=states)
    return Outcome(Result(tuple(accepted)), tuple(positives), tuple(negatives), tuple(filtered), skipped, after)


def _refused(
    query: str,
    candidates: Sequence[RetrievedPremise],
    nearest: Sequence[RetrievedPremise],
    states: Mapping[str, PairState],
    rules: Rules,
    added: Sequence[str],
) -> tuple[list[RetrievedPremise], list[tuple[RetrievedPremise, Reason]]]:
    """The refusals to record now: as negatives, best first and capped, and as filtered ones.

    What says the same as an added premise (`added`: their texts) is a rewording; without a score it sets no margin.

    Each is decided by the premises up to its rank, and up to rank k at least. One of which nothing is known, such as an
    ancestor, takes one of the capped places, and so does what is left out because of it; what is known to be refused is
    decided again in every tree. All trees in which a query occurs therefore keep the same refusals, in whatever order
    they are judged, and no query keeps more than `max_negatives_per_query` in the whole run.
    """
    usable = {candidate.id for candidate in candidates}
    ruled = [(candidate, states.get(candidate.id)) for candidate in nearest]

    @cache
    def refusals_to(rank: int) -> RefusalFilter:
        within = [(one, state) for one, state in ruled if one.rank <= rank]
        return RefusalFilter(
            rules.negatives,
            query,
            [(one.text, one.score) for one, state in within if state is not None and state.accepted],
            [(one.text, one.score) for one, state in within if state is None and one.id not in usable],
            added,
        )

    negatives: list[RetrievedPremise] = []
    filtered: list[tuple[RetrievedPremise, Reason]] = []
    most = rules.max_negatives_per_query or len(states) + len(nearest)
    room = most - sum(state is PairState.REFUSED for state in states.values())
    places = 0
    for candidate, state in ruled:
        if state is None:
            places += candidate.id not in usable
        elif state.refused:
            refusals = refusals_to(max(rules.k, candidate.rank))
            reason, for_good = refusals.reason(candidate.text, candidate.rank, candidate.score)
            places += reason is None or not for_good
            if reason is not None:
                if state is PairState.REFUSED_UNKEPT:
                    filtered.append((candidate, reason))
            elif state is not PairState.REFUSED and places <= most and len(negatives) < room:
                negatives.append(candidate)
    return negatives, filtered

"""Active contrastive sampling (Algorithm 2 of the paper, corrected), as pure state: no clock, no network, no storage.

The result is defined breadth-first per tree, so neither batching nor concurrency can change it:

- one visited set per tree, holding texts; a node is expanded once, at its smallest depth, under the parent that comes
  first in (depth, order, rank);
- a level is expanded once all its nodes are judged, in the order of its nodes and of their candidates' ranks;
- P' and N' of every node are kept (lines 7-8 of the print merge N' only);
- a query's candidates are the first k of its nearest premises without itself and without its ancestors in the tree.
  Their order depends on the query alone, so an answer about a query in one tree holds in every other tree of the run.
- a premise that an oracle adds, because it is missing among the candidates, is accepted in every tree of the run that
  asks this query, after the candidates. Where it is the query, an ancestor or not accessible it is left out, as a
  candidate is.
  The same holds for an intermediate conclusion that it writes, but it is no premise: no pair comes of it;
- what people accept of a judged node later explains it from then on, and is expanded like all else. The level in work
  goes back to the one below that node; what was judged stays judged, and no text is expanded twice. What they take back
  explains it no longer: what hangs on nothing else is cut, and not asked unless they accept it again;
- a pair says what was answered; which refusals are negatives is decided where pairs are read (`sampling.left_out`).

An oracle is assumed to judge a premise by the query. If it decides by the path, the first path asked decides for all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from aeenc.trees import EVERYTHING, Accessible
from aeenc.values import Judgement, NodeVerdict

if TYPE_CHECKING:  # and behind it gRPC
    from aeenc.oracle import Candidate, Task
    from aeenc.values import Answer, RunConfig, Verdict

PairSign = Literal["POSITIVE", "NEGATIVE", "SKIPPED"]

ROOT = 0
MAX_ANNOTATOR = 256  # characters; it stands in every pair
ADDED = 0  # the rank of a premise that was not retrieved: an oracle has added it
ROUNDS = 8  # at most, of retrieval; only a conditioned node has more than one
FINAL = frozenset({NodeVerdict.COMPLETE, NodeVerdict.NOT_EXPLAINABLE})  # nothing more is asked then
MAX_REACH = 1000  # the index returns no more; above k = 1,000 - max_depth, a deep node may see fewer than k
# Whether a premise explains the query by a judgement; None: that is open. Of judgements that all accept, all refuse or
# all leave open, the first of these that anybody gave holds.
JUDGEMENTS = {
    Judgement.EXPLAINS: True,
    Judgement.DOES_NOT_EXPLAIN: False,
    Judgement.ABSTAIN: None,
    Judgement.UNSEEN: None,
}
SIGNS: dict[bool | None, PairSign] = {True: "POSITIVE", False: "NEGATIVE", None: "SKIPPED"}


def explains(verdict: Verdict) -> bool | None:
    """Whether a premise explains the query by a verdict; None: that is open, as by one that a newer contract has."""
    return JUDGEMENTS.get(verdict.judgement)


def reach(config: RunConfig) -> int:
    """How many premises are looked up for a query: k are left when all its ancestors are among them."""
    return max(config.k, min(config.k + (config.max_depth or 0), MAX_REACH))


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
    accepts them. Those that were `begun` before stay in work until nobody has begun them. `question` and `answer` stand
    behind the hypothesis. They change nothing here. What is `within` may explain the hypothesis.
    """

    index: int
    hypothesis_id: str
    nodes: list[Node]
    results: dict[int, Result] = field(default_factory=dict)
    depth: int = 0
    question: str = ""
    answer: str = ""
    cut: frozenset[int] = frozenset()
    within: Accessible = EVERYTHING
    begun: frozenset[int] = frozenset()

    def accessible(self, node: Node) -> Accessible:
        """What may explain a node: a premise by what stands before itself, where that holds of the hypothesis."""
        while self.within.before_id and node.author:  # its author's words stand nowhere
            node = self.nodes[node.parent]
        before = self.within.before_id and node.premise_id
        return replace(self.within, before_id=before) if before else self.within

    def pending(self) -> list[Node]:
        """The nodes of the current level that still have to be judged, and cut ones that were begun, in order."""
        level = {node.ordinal for node in self.nodes if node.depth == self.depth}
        asked = (level - self.cut) | (self.begun & self.cut)
        return [node for node in self.nodes if node.ordinal in asked and node.ordinal not in self.results]

    def path(self, node: Node) -> tuple[str, ...]:
        """The texts from the root to the node's parent."""
        texts: list[str] = []
        while node.parent >= ROOT:
            node = self.nodes[node.parent]
            texts.append(node.text)
        return tuple(reversed(texts))

    def next_level(self, config: RunConfig) -> list[Node]:
        """The nodes of the next level, given that the current one is judged. Empty when the tree is finished."""
        level = [node for node in self.nodes if node.depth == self.depth and node.ordinal not in self.cut]
        return self._children([(node, self.results[node.ordinal]) for node in level], config)

    def growth(self, ordinal: int, amendment: Amendment, config: RunConfig) -> Growth | None:
        """The effect of an amendment after a node was judged.

        None if it is not judged, or nothing is new.
        """
        before = self.results.get(ordinal)
        if before is None:
            return None
        node, known = self.nodes[ordinal], {premise.text for premise in before.accepted}
        excluded = {node.text, *self.path(node), *known}
        accepted, no_leaves = amendment.accepted, {one.text for one in amendment.accepted if not one.leaf}
        held = [one for one in before.accepted if one.id not in amendment.refused]
        kept = (replace(one, leaf=one.leaf and one.text not in no_leaves) for one in held)
        result = replace(before, accepted=(*kept, *(one for one in accepted if one.text not in excluded)))
        if result == before:
            return None
        # The level below opens once this one is judged, and that below a cut node once the node hangs again.
        opens = node.depth < self.depth and ordinal not in self.cut
        return self._growth(ordinal, result, self._children([(node, result)], config) if opens else [])

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

    def _children(self, parents: Iterable[tuple[Node, Result]], config: RunConfig) -> list[Node]:
        visited = {node.text for node in self.nodes}
        room = config.max_nodes_per_tree - len(self.nodes) if config.max_nodes_per_tree else None
        found: list[Node] = []
        for parent, result in parents:
            for premise in result.accepted if parent.depth < (config.max_depth or 0) else ():
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
class KnownPair:
    """What a run knows of a query and a premise, as it was retrieved or added (rank ADDED, no score).

    `explains` is None where that is open. `vector` names the query vector that gave its score; empty: none was noted.
    """

    explains: bool | None
    leaf: bool
    premise: Candidate
    vector: str = ""


def known_by(verdict: Verdict, premise: Candidate, vector: str = "") -> KnownPair:
    """What a run knows by a verdict."""
    does = explains(verdict)
    return KnownPair(does, bool(does and verdict.leaf), premise, vector)


def accepted(premise: Candidate, leaf: bool) -> AcceptedPremise:
    """A premise that explains a query."""
    return AcceptedPremise(premise.id, premise.text, premise.rank, leaf)


@dataclass(frozen=True)
class Known:
    """What a run knows of a query: its pairs by premise id, and what was written or said of it.

    `statements` are what remote oracles said beside verdicts; what people say stays with their tasks. `within` names
    what was accessible to the node that the last verdict on a node was given for.
    """

    pairs: Mapping[str, KnownPair] = field(default_factory=dict)
    written: tuple[AcceptedPremise, ...] = ()
    statements: tuple[Answer, ...] = ()
    within: str = ""


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


@dataclass(frozen=True)
class NodeAnswer:
    """An oracle's answer about one task: a verdict on each candidate asked about.

    `added` are premises that explain the query and were not asked about; `verdicts` has theirs, too. `unknown` counts
    verdicts on other premises. `written` are intermediate conclusions. Until it is admitted, a remote oracle's
    `statement`, whatever it says beside verdicts, may hold anything, and the premises that it adds are only `proposed`
    (ids).
    """

    task_id: str
    verdicts: Mapping[str, Verdict]
    annotator: str
    unknown: int = 0
    note: str = ""
    added: tuple[Candidate, ...] = ()
    written: tuple[AcceptedPremise, ...] = ()
    statement: Answer | None = None
    proposed: tuple[str, ...] = ()
    node_verdict: NodeVerdict = NodeVerdict.UNSPECIFIED  # of people; a remote oracle's is in its statement


@dataclass(frozen=True)
class Amendment:
    """What explains a judged node after people have changed their minds, by the revision of its task.

    `refused` are candidates (ids) that do not explain it now.
    """

    node_id: str
    accepted: tuple[AcceptedPremise, ...]
    task_id: str
    revision: int
    refused: frozenset[str] = frozenset()


@dataclass(frozen=True)
class NodeRound:
    """A node in one round of retrieval; a run that is not conditioned has one round a node.

    `candidates` are those of all rounds so far. `accepted` (ids) is what this round was conditioned on, `version` the
    encoder version that retrieved last. A budget has `reserved` so many verdicts for it before it was withdrawn.
    `barred` (ids) is what other trees have accepted and is not accessible here. A node that was `settled` elsewhere
    takes over all that explains it, whichever round found it there.
    """

    tree: Tree
    node: Node
    known: Known = field(default_factory=Known)
    candidates: Sequence[Candidate] = ()
    asked: Sequence[Candidate] = ()
    accepted: tuple[str, ...] = ()
    round: int = 0
    version: str = ""
    reserved: int = 0
    retrievals: int = 1
    barred: frozenset[str] = frozenset()
    settled: bool = False

    @property
    def node_id(self) -> str:
        """Names the node in tasks and pairs."""
        return f"{self.tree.index}-{self.node.ordinal}"

    @property
    def part(self) -> str:
        """Names the round by what it asks: a repeated commit finds the same name, other questions get another."""
        return f"{self.round}:{hashlib.sha256(' '.join(c.id for c in self.asked).encode()).hexdigest()[:16]}"

    @property
    def vector(self) -> str:
        """Names the query vector of this round's scores: of one version, conditioned on the same premises."""
        on = hashlib.sha256(" ".join(self.accepted).encode()).hexdigest()[:8] if self.accepted else ""
        return f"{self.version} {on}".rstrip()

    @property
    def within(self) -> str:
        """Names what is accessible to the node."""
        one = self.tree.accessible(self.node)
        return hashlib.sha256(repr((one.before_id, one.only_ids)).encode()).hexdigest()[:16]

    def after(self, known: Known, answer: NodeAnswer | None) -> tuple[NodeRound, NodeAnswer | None]:
        """The round with what is known now, and its answer without what people have amended since it was asked."""
        newer = {one for one, now in known.pairs.items() if self.known.pairs.get(one) != now}
        if answer is not None and newer:
            answer = replace(
                answer,
                verdicts={one: verdict for one, verdict in answer.verdicts.items() if one not in newer},
                added=tuple(one for one in answer.added if one.id not in newer),
            )
        return replace(self, known=known), answer

    def explaining(self, known: Known) -> list[Candidate]:
        """The premises of this tree that are known to explain the query: candidates best first, then those added."""
        return [one for one in self._with_added(known) if one.id in known.pairs and known.pairs[one.id].explains]

    def outcome(self, answer: NodeAnswer | None) -> Outcome:
        """The outcome of the round; without an answer nothing had to be asked."""
        known, answered = self.known, answer.verdicts if answer else {}
        if answer:
            judged, vector = (*(one for one in self.candidates if one.id in answered), *answer.added), self.vector
            known = Known(
                {**known.pairs, **{one.id: known_by(answered[one.id], one, vector) for one in judged}},
                tuple({one.text: one for one in (*answer.written, *known.written)}.values()),
                (*known.statements, *(() if answer.statement is None else (answer.statement,))),
                self.within if answer.statement and answer.statement.node_verdict else known.within,
            )
        seen = [one for one in self._with_added(known) if one.id in known.pairs]
        explaining = [accepted(one, known.pairs[one.id].leaf) for one in seen if known.pairs[one.id].explains]
        said = {self.node.text, *self.tree.path(self.node), *(one.text for one in explaining)}
        intermediates = (one for one in known.written if one.text not in said)
        return Outcome(
            Result((*explaining, *intermediates), version=self.version),
            tuple(one for one in seen if one.id in answered),
            known,
        )

    def next_round(self, outcome: Outcome, config: RunConfig, answer: NodeAnswer | None = None) -> NodeRound | None:
        """The node's next round: it asks the next candidates of a step, or is still to be retrieved for.

        None after the last one, if nothing new was accepted, or where what is said of the node ends it.
        """
        known = outcome.known
        said = ((answer and answer.node_verdict) or self._said(known)) if config.step else None
        if said in FINAL:
            return None
        following = partial(replace, self, known=known, round=self.round + 1)
        if config.step and (unasked := [one for one in self.candidates if one.id not in known.pairs]):
            return following(asked=unasked[: config.step])
        if config.step and not self.retrievals:  # what another version's task has asked was not all of its first k
            return following(asked=(), retrievals=1)
        if not (config.conditioned or said is NodeVerdict.PREMISE_MISSING) or self.retrievals >= ROUNDS:
            return None
        explaining = tuple(candidate.id for candidate in self.explaining(known))
        if len(explaining) == len(self.accepted):
            return None
        return following(asked=(), accepted=explaining, retrievals=self.retrievals + 1)

    def anew(self) -> NodeRound:
        """The round before it was retrieved for. Candidates that were judged, here or in other trees, stay."""
        return replace(self, candidates=self._judged, asked=(), reserved=len(self.asked))

    def with_nearest(self, found: Sequence[Candidate], k: int, version: str = "", step: int = 0) -> NodeRound:
        """The round with what a version has retrieved; it asks about the first k that may be candidates.

        With a `step`, about so many at first, and about none where an oracle has settled the node.
        """
        chosen = choose(self.tree.path(self.node), self.node.text, found, k)
        before = {candidate.id for candidate in self.candidates}
        candidates = [*self.candidates, *(candidate for candidate in chosen if candidate.id not in before)]
        settled = step > 0 and self._said(self.known) in FINAL
        asked = [candidate for candidate in candidates if candidate.id not in self.known.pairs and not settled]
        return replace(self, candidates=candidates, asked=asked[: step or None], version=version, settled=settled)

    def begun_by(self, task: Task | None) -> NodeRound:
        """The round with what another version's task asks that an earlier worker has put before people.

        What this version has retrieved does not count: with steps it is retrieved again, after the task.
        """
        if task is None or task.model_version == self.version or any(c.id in self.known.pairs for c in task.candidates):
            return self
        there, before = [*task.candidates, *self._judged], self.retrievals - 1
        return replace(self, candidates=there, asked=task.candidates, version=task.model_version, retrievals=before)

    @property
    def _judged(self) -> list[Candidate]:
        return [one for one in self.candidates if one.id in self.known.pairs]

    def _said(self, known: Known) -> NodeVerdict:
        """The last verdict on the node that a remote oracle has given, if the same was accessible there."""
        said = [one.node_verdict for one in known.statements if one.node_verdict and known.within == self.within]
        return said[-1] if said else NodeVerdict.UNSPECIFIED

    def _with_added(self, known: Known) -> list[Candidate]:
        """The candidates, and the added premises that are neither among them nor the query or an ancestor here."""
        found = {candidate.id for candidate in self.candidates} | self.barred
        further = [one.premise for one in known.pairs.values() if self.settled or one.premise.rank == ADDED]
        new = [one for one in further if one.id not in found]
        return [*self.candidates, *choose(self.tree.path(self.node), self.node.text, new, len(new))]

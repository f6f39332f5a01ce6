"""One node at work, round by round: what was retrieved for it, what is known, what is asked now. Pure values.

nearest ─▶ candidates (without query and ancestors) ─▶ asked (not known yet) ─▶ NodeAnswer ─▶ Outcome
▲                                                                                          │
└────── next round: only of a conditioned run, and only after something new was accepted ──┘
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from services.sampler.acs import algorithm
from services.sampler.acs.algorithm import (
    AcceptedPremise,
    Known,
    Node,
    Outcome,
    PairState,
    Result,
    Rules,
    Tree,
)

if TYPE_CHECKING:  # values, and behind them gRPC
    from aeenc.oracle import Candidate
    from aeenc.values import Answer, Verdict

MAX_ANNOTATOR = 256  # characters; it stands in every pair


@dataclass(frozen=True)
class NodeAnswer:
    """An oracle's answer about one task: a state for each candidate asked about, and the verdicts that were given.

    `added` are premises that explain the query and were not asked about; `states` has theirs, too. `unknown` counts
    verdicts on other premises. `written` are intermediate conclusions. Until it is admitted, a remote oracle's
    `statement`, whatever it says beside verdicts, may hold anything, and the premises that it adds are only `proposed`
    (ids), with states of their own.
    """

    task_id: str
    states: Mapping[str, PairState]
    annotator: str
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    unknown: int = 0
    note: str = ""
    added: tuple[Candidate, ...] = ()
    written: tuple[AcceptedPremise, ...] = ()
    statement: Answer | None = None
    proposed: tuple[str, ...] = ()

    def annotator_of(self, premise_id: str) -> str:
        """Who gave the verdict on a premise."""
        given = self.verdicts.get(premise_id)
        return (given.annotator[:MAX_ANNOTATOR] if given else "") or self.annotator

    def grade_of(self, premise_id: str) -> float:
        """The grade given with it; 0 for none, and for one that is no number."""
        given = self.verdicts.get(premise_id)
        return given.grade if given and given.grade is not None and math.isfinite(given.grade) else 0.0


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
    encoder version that retrieved last.
    """

    tree: Tree
    node: Node
    known: Known = field(default_factory=Known)
    candidates: Sequence[Candidate] = ()
    asked: Sequence[Candidate] = ()
    accepted: tuple[str, ...] = ()
    round: int = 0
    version: str = ""

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

    def after(self, known: Known, answer: NodeAnswer | None) -> tuple[NodeRound, NodeAnswer | None]:
        """The round with what is known now, and its answer without what people have amended since it was asked."""
        newer = {one for one, state in known.states.items() if state is not self.known.states.get(one)}
        if answer is not None and newer:
            answer = replace(
                answer,
                states={one: state for one, state in answer.states.items() if one not in newer},
                added=tuple(one for one in answer.added if one.id not in newer),
            )
        return replace(self, known=known), answer

    def explaining(self, known: Known) -> list[Candidate]:
        """The premises of this tree that are known to explain the query: candidates best first, then those added."""
        found = self._with_added(known)
        return [one for one in found if (state := known.states.get(one.id)) is not None and state.accepted]

    def outcome(self, answer: NodeAnswer | None) -> Outcome:
        """The outcome of the round; without an answer nothing had to be asked."""
        known, answered = self.known, answer.states if answer else {}
        if answer:
            judged = (*(one for one in self.candidates if one.id in answered), *answer.added)
            known = Known(
                {**known.states, **answered},
                {**known.premises, **{one.id: one for one in judged}},
                tuple({one.text: one for one in (*answer.written, *known.written)}.values()),
                (*known.statements, *(() if answer.statement is None else (answer.statement,))),
                {**known.vectors, **{one.id: self.vector for one in judged}},
            )
        accepted = [
            AcceptedPremise(one.id, one.text, one.rank, known.states[one.id] is PairState.LEAF)
            for one in self.explaining(known)
        ]
        return Outcome(
            Result((*accepted, *self._intermediates(known, accepted)), version=self.version),
            tuple(one for one in self._with_added(known) if one.id in answered),
            known,
        )

    def failure(self) -> Outcome:
        """The outcome of a node that the oracle leaves unanswered: what was known before. It records nothing."""
        return Outcome(replace(self.outcome(None).result, failed=True))

    def next_round(self, outcome: Outcome, rules: Rules) -> NodeRound | None:
        """The node's next round, not yet retrieved for. None after the last one, or if nothing new was accepted."""
        accepted = tuple(candidate.id for candidate in self.explaining(outcome.known))
        if not rules.conditioned or self.round + 1 >= algorithm.ROUNDS or len(accepted) == len(self.accepted):
            return None
        return replace(self, known=outcome.known, asked=(), accepted=accepted, round=self.round + 1)

    def anew(self) -> NodeRound:
        """The round before it was retrieved for. Candidates that were judged, here or in other trees, stay."""
        judged = self.known.states.keys()
        return replace(self, candidates=[one for one in self.candidates if one.id in judged], asked=())

    def with_nearest(self, found: Sequence[Candidate], k: int, version: str = "") -> NodeRound:
        """The round with what a version has retrieved; it asks about the first k that may be candidates."""
        chosen = algorithm.choose(self.tree.path(self.node), self.node.text, found, k)
        before = {candidate.id for candidate in self.candidates}
        candidates = [*self.candidates, *(candidate for candidate in chosen if candidate.id not in before)]
        asked = [candidate for candidate in candidates if candidate.id not in self.known.states]
        return replace(self, candidates=candidates, asked=asked, version=version)

    def _with_added(self, known: Known) -> list[Candidate]:
        """The candidates, and the added premises that are neither among them nor the query or an ancestor here."""
        found = {candidate.id for candidate in self.candidates}
        new = [one for one in known.added if one.id not in found]
        return [*self.candidates, *algorithm.choose(self.tree.path(self.node), self.node.text, new, len(new))]

    def _intermediates(self, known: Known, accepted: Sequence[AcceptedPremise]) -> list[AcceptedPremise]:
        """What people wrote, without the query, its ancestors, and what an accepted premise says."""
        said = {self.node.text, *self.tree.path(self.node), *(one.text for one in accepted)}
        return [one for one in known.written if one.text not in said]

    def asking(self, most: int) -> NodeRound:
        """The round limited to its `most` best candidates."""
        return replace(self, asked=self.asked[:most])

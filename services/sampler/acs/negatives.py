"""Decides which refused premises of a query are no negatives, whoever refused them. Readers of pairs ask it.

An oracle also refuses what it does not recognise: a premise that scores like an accepted one, or says the same in other
words, may explain the query after all. The margins are those of NV-Retriever (Moreira et al. 2024, arXiv:2407.15831),
measured from the best-scored accepted premise of the query; a query without one has no margin. Scores are compared only
where the same query vector gave them: neither those of a conditioned node's rounds nor those of two encoder versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from services.corpus.sameness import same_key

if TYPE_CHECKING:
    from aeenc.oracle import Candidate  # a value, and behind it gRPC

Reason = Literal["rank", "margin", "wording", "cap"]


@dataclass(frozen=True)
class NegativeFilter:
    """The refused premises to leave out. Ranks count from 1, 0 means no limit; a margin of None is not applied.

    A premise is left out if its score exceeds that of the best accepted one minus `absolute_margin`, or minus the share
    `relative_margin` of it; with `rewordings` also if it says what the query or an accepted premise says. One without
    a rank was added by somebody: no rank or score leaves it out.
    """

    min_rank: int = 0
    max_rank: int = 0
    absolute_margin: float | None = None
    relative_margin: float | None = None
    rewordings: bool = False

    def limit(self, best: float | None) -> float:
        """The highest score that is kept when the best accepted premise scores `best`; None: none is accepted."""
        if best is None:
            return float("inf")
        absolute = float("inf") if self.absolute_margin is None else best - self.absolute_margin
        relative = float("inf") if self.relative_margin is None else best - self.relative_margin * abs(best)
        return min(absolute, relative)

    def left_out(
        self,
        query: str,
        accepted: Iterable[Candidate],
        refused: Iterable[Candidate],
        most: int = 0,
        vectors: Mapping[str, str] | None = None,
    ) -> dict[str, Reason]:
        """Why refused premises of a query are no negatives, by id. Of the others the `most` best-scored stay (0: all).

        `vectors` names the query vector that gave a premise (id) its score; without them one gave all.
        """
        accepted, vectors = list(accepted), vectors or {}
        best: dict[str, float] = {}
        for one in accepted:
            if one.rank:
                vector = vectors.get(one.id, "")
                best[vector] = max(one.score, best.get(vector, one.score))
        same = {same_key(text) for text in (query, *(one.text for one in accepted))} if self.rewordings else set()
        found: dict[str, Reason] = {}
        kept = 0
        for one in sorted(refused, key=lambda one: (not one.rank, -one.score, one.rank, one.id)):
            if one.rank and (one.rank < self.min_rank or 0 < self.max_rank < one.rank):
                found[one.id] = "rank"
            elif same and same_key(one.text) in same:
                found[one.id] = "wording"
            elif one.rank and one.score > self.limit(best.get(vectors.get(one.id, ""))):
                found[one.id] = "margin"
            elif 0 < most <= kept:
                found[one.id] = "cap"
            else:
                kept += 1
        return found

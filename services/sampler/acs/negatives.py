"""Decides which refused premises are not kept as negatives, whoever refused them.

An oracle also refuses what it does not recognise: a premise that scores like an accepted one, or says the same in other
words, may explain the query after all. The margins are those of NV-Retriever (Moreira et al. 2024, arXiv:2407.15831),
measured from the best-scored accepted premise of the query; a query without one has no margin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from services.corpus.sameness import same_key

Reason = Literal["rank", "margin", "wording"]


@dataclass(frozen=True)
class NegativeFilter:
    """The refused premises to leave out. Ranks count from 1, 0 means no limit; a margin of None is not applied.

    A premise is left out if its score exceeds that of the best accepted one minus `absolute_margin`, or minus the share
    `relative_margin` of it; with `rewordings` also if it says what the query or an accepted premise says.
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


class RefusalFilter:
    """Applies a `NegativeFilter` to the refused premises of one query.

    `accepted` and `unsure` are (text, score), `added` are accepted texts without a score. An unsure premise is an
    ancestor, not put before the oracle here; another tree may accept it. What depends on it is left out for now, and
    reported as such.
    """

    def __init__(
        self,
        rules: NegativeFilter,
        query: str,
        accepted: Sequence[tuple[str, float]],
        unsure: Sequence[tuple[str, float]],
        added: Sequence[str] = (),
    ) -> None:
        self._rules = rules
        best = max((score for _, score in accepted), default=None)
        possible = [best, *(score if best is None else max(best, score) for _, score in unsure)]
        self._limits = [rules.limit(one) for one in possible]
        holding = (query, *(text for text, _ in accepted), *added) if rules.rewordings else ()
        self._same = {same_key(text) for text in holding}
        self._perhaps = {same_key(text) for text, _ in unsure} if rules.rewordings else set()

    def reason(self, text: str, rank: int, score: float) -> tuple[Reason | None, bool]:
        """The reason to leave a refused premise out (None: keep it), and whether later answers cannot change that."""
        if rank < self._rules.min_rank or 0 < self._rules.max_rank < rank:
            return "rank", True
        said = same_key(text) if self._rules.rewordings else ""
        if said in self._same:
            return "wording", True
        if score > max(self._limits):
            return "margin", True
        if said in self._perhaps:
            return "wording", False
        if score > min(self._limits):
            return "margin", False
        return None, True

"""Conditioned retrieval: of each query one gold premise is told, the one found first, and the others are looked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aeenc.errors import InvalidArgument
from services.trainer.evaluation.parts import Part, condensed
from services.trainer.evaluation.protocol import Ranks, Report, Standard


def with_several(standard: Standard) -> Standard:
    """The queries with two gold premises or more beside their own text, which is left out.

    Raises InvalidArgument for none.
    """
    kept = standard.kept
    chosen = [n for n, gold in enumerate(kept) if len(gold) > 1]
    if not chosen:
        raise InvalidArgument("no query has two gold premises, of which one could be told; evaluate others")
    return Standard([standard.queries[n] for n in chosen], [kept[n] for n in chosen], [standard.own[n] for n in chosen])


@dataclass(frozen=True)
class Told:
    """What is told of each query: an ordinal. `left` has the others as gold, `without` their ranks without telling."""

    ordinals: Sequence[int]
    left: Standard
    without: Sequence[Ranks]

    @classmethod
    def of(cls, several: Standard, before: Sequence[Ranks]) -> Told:
        """Chooses by the ranks of all gold premises when nothing is told."""
        told = [int(np.argmin(ranks)) for ranks in before]
        ordinals = [int(gold[one]) for gold, one in zip(several.gold, told, strict=True)]
        others = [np.delete(gold, one) for gold, one in zip(several.gold, told, strict=True)]
        wanted = [np.arange(len(ranks)) != one for ranks, one in zip(before, told, strict=True)]
        without = [condensed(ranks, marks) for ranks, marks in zip(before, wanted, strict=True)]
        return cls(ordinals, Standard(several.queries, others, several.own), without)

    def report(self, after: Sequence[Ranks], *, candidates: int) -> tuple[Report, Part]:
        """The quality of what was found after telling, and as a part the same without."""
        same = Report.of(self.left, self.without, None, candidates=candidates)
        part = Part("NOT_CONDITIONED", same.strict, None, same.queries, same.pairs)
        return Report.of(self.left, after, None, candidates=candidates), part

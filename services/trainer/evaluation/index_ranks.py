"""Asks the index for the rankings of many texts, part by part, and keeps only the ranks or scores of each part."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from aeenc.calls.retrieval import Hit, Rankings, Retrieval
from aeenc.evaluation import UNRANKED
from aeenc.index import IndexClient
from services.corpus.generation import Generation
from services.kit.concurrency import run_in_thread
from services.trainer.evaluation.protocol import Ranks
from services.trainer.evaluation.tree_level import RankedPremises

PART = 64  # texts whose rankings are held at a time


class IndexRanks:
    """One way to retrieve from one generation. The models that answer first answer everything.

    Raises what Retrieve raises, and FailedPrecondition if other models answer later.
    """

    def __init__(
        self,
        index: IndexClient,
        opened: Generation,
        retrieval: Retrieval | None,
        label: str | None,
        version: str | None,
    ) -> None:
        self._index, self._opened, self._retrieval = index, opened, retrieval
        self._label, self._version = label, version
        self._models: tuple[str, ...] | None = None

    @property
    def model_version(self) -> str:
        """The query encoder that has answered; empty for none."""
        return self._models[0] if self._models else ""

    @property
    def rerank_versions(self) -> tuple[str, ...]:
        """The cross-encoders that have answered; empty for none."""
        return self._models[1:] if self._models else ()

    def pin(self, version: str) -> None:
        """Replaces the label by a version; an empty one changes nothing."""
        if version:
            self._label, self._version = None, version

    async def of_gold(
        self,
        texts: Sequence[str],
        gold: Sequence[NDArray[np.int64]],
        k: int,
        *,
        drop_self: bool = True,
        accepted: Sequence[Sequence[str]] = (),
    ) -> list[Ranks]:
        """Ranks each text's gold ordinals among its first k premises, from 1; UNRANKED beyond."""
        ranks: list[Ranks] = []
        async for found in self._parts(texts, k, drop_self, accepted):
            mine = gold[len(ranks) : len(ranks) + len(found)]
            ranks += await run_in_thread(_ranks, found, self._opened, mine)
        return ranks

    async def scored(self, texts: Sequence[str], k: int) -> dict[str, RankedPremises]:
        """Scores the first k premises of each text; by negated rank where scores of two texts are not comparable."""
        by_rank = self._retrieval is not None and self._retrieval.mode == "iterative_lexical"
        scored: list[RankedPremises] = []
        async for found in self._parts(texts, k, drop_self=True, accepted=()):
            scored += await run_in_thread(_scored, found, self._opened, by_rank=by_rank)
        return dict(zip(texts, scored, strict=True))

    async def _parts(
        self, texts: Sequence[str], k: int, drop_self: bool, accepted: Sequence[Sequence[str]]
    ) -> AsyncIterator[list[list[Hit]]]:
        for start in range(0, len(texts), PART):
            found = await self._index.rankings(
                self._opened.corpus,
                texts[start : start + PART],
                k=k,
                retrieval=self._retrieval,
                label=self._label,
                version=self._version,
                generation=self._opened.id,
                drop_self=drop_self,
                accepted=accepted[start : start + PART],
            )
            self._check_same(found)
            self.pin(found.model_version)
            yield found.results

    def _check_same(self, found: Rankings) -> None:
        models = (found.model_version, *found.rerank_versions)
        if self._models is not None and models != self._models:
            before, now = (" and ".join(filter(None, one)) or "none" for one in (self._models, models))
            raise errors.FailedPrecondition(f"the models changed from {before} to {now} meanwhile; evaluate again")
        self._models = models


def _ranks(found: Sequence[Sequence[Hit]], opened: Generation, gold: Sequence[NDArray[np.int64]]) -> list[Ranks]:
    ranks = []
    for hits, mine in zip(found, gold, strict=True):
        at = {hit.id: rank for rank, hit in enumerate(hits, start=1)}
        ids = [opened.premises[ordinal].id for ordinal in mine.tolist()]
        ranks.append(np.array([at.get(one, UNRANKED) for one in ids], dtype=np.int64))
    return ranks


def _scored(found: Sequence[Sequence[Hit]], opened: Generation, *, by_rank: bool) -> list[RankedPremises]:
    ordinals = opened.ordinal_by_id
    return [
        [(ordinals[hit.id], -float(rank) if by_rank else hit.score) for rank, hit in enumerate(hits)] for hits in found
    ]

"""The explanatory prior over a Milvus: the arithmetic of files (ranking/prior.py) over the premises that it needs.

The index keeps the hypotheses of a corpus in memory, as on files. It looks up in Milvus which premises of a generation
explain the nearest ones, once for each id.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from services.index.milvus.catalogue import MilvusCatalogue
from services.index.milvus.generation import GenerationCollection, MilvusGeneration
from services.index.milvus.ledger.explanations import ExplanationTables
from services.index.milvus.ledger.switches import Switch
from services.index.milvus.link import MilvusLink
from services.index.ranking.prior import OPEN, Hypotheses, bonus_of, check_explained
from services.index.values import Explanation, ReplicaState
from services.kit.concurrency import finish

IDS_AT_ONCE = 1000
ABSENT = -1
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class MilvusPrior:
    """A corpus's explanations for one generation; `known` has the ordinals of the ids that were looked up."""

    hypotheses: Hypotheses
    collection: GenerationCollection
    known: dict[str, int] = field(default_factory=dict)

    def bonuses(self, texts: Sequence[str], pools: Sequence[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
        """Scores the premises of each text's pool (n,) from 0 to 1. It blocks on Milvus."""
        nearest = [self.hypotheses.nearest(text) for text in texts]
        explanations = self.hypotheses.explanations
        self._look_up(one for near in nearest for n, _ in near for one in explanations[n].premise_ids)
        return [
            bonus_of([(self._explained(explanations[n]), share) for n, share in near], pool)
            for near, pool in zip(nearest, pools, strict=True)
        ]

    def _explained(self, explanation: Explanation) -> list[int]:
        return sorted({self.known[one] for one in explanation.premise_ids} - {ABSENT})

    def _look_up(self, ids: Iterable[str]) -> None:
        missing = list(dict.fromkeys(one for one in ids if one not in self.known))
        for start in range(0, len(missing), IDS_AT_ONCE):
            part = missing[start : start + IDS_AT_ONCE]
            self.known.update(dict.fromkeys(part, ABSENT) | self.collection.ordinals(part))


class MilvusExplanations:
    """The explanations of each corpus: changed in Milvus, and prepared in memory for those who rank."""

    def __init__(self, link: MilvusLink, catalogue: MilvusCatalogue, tables: ExplanationTables) -> None:
        self._link, self._catalogue, self._tables = link, catalogue, tables
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._known: OrderedDict[str, tuple[Switch | None, Hypotheses]] = OrderedDict()
        self._priors: OrderedDict[str, MilvusPrior] = OrderedDict()  # by generation

    async def put(
        self, corpus: str, explanations: Iterable[Explanation], *, replace: bool
    ) -> tuple[int, tuple[ReplicaState, ...]]:
        """Adds explanations, or replaces all of them; returns their number. A cancelled call does both or none.

        Other processes follow when they next read the catalogue.
        """
        async with self._turn(corpus):
            changing = asyncio.create_task(self._put(corpus, list(explanations), replace))
            await finish(changing)
        return changing.result(), ()

    async def prior(self, served: MilvusGeneration) -> MilvusPrior:
        """Returns the prior over a generation. Raises FailedPrecondition when its corpus has no explanations."""
        hypotheses = await self._hypotheses(served.generation.corpus)
        prior = self._priors.get(served.collection.name)
        if prior is None or prior.hypotheses is not hypotheses:
            known = prior.known if prior else {}  # ids of a generation never move
            prior = MilvusPrior(hypotheses, served.collection, known)
        _keep(self._priors, served.collection.name, prior)
        return prior

    async def _put(self, corpus: str, added: Sequence[Explanation], replace: bool) -> int:
        total = await self._link.write(lambda: self._tables.put(corpus, added, replace=replace))
        await self._catalogue.refresh()
        return total

    async def _hypotheses(self, corpus: str) -> Hypotheses:
        if (known := self._prepared(corpus)) is not None:
            return known
        async with self._turn(corpus):
            if (known := self._prepared(corpus)) is not None:
                return known
            switch = self._catalogue.explained(corpus)
            explanations = await self._link.read(self._tables.read, corpus, switch)
            check_explained(corpus, explanations)
            hypotheses = await asyncio.to_thread(Hypotheses.of, explanations)
            _keep(self._known, corpus, (switch, hypotheses))
        return hypotheses

    def _prepared(self, corpus: str) -> Hypotheses | None:
        """What is in memory, if it still counts."""
        switch, hypotheses = self._known.get(corpus, (None, None))
        if hypotheses is None or switch != self._catalogue.explained(corpus):
            return None
        _keep(self._known, corpus, (switch, hypotheses))
        return hypotheses

    def _turn(self, corpus: str) -> asyncio.Lock:
        return self._turns.setdefault(corpus, asyncio.Lock())


def _keep(kept: OrderedDict[str, T], key: str, value: T) -> None:
    """Keeps a value as the one used last, and lets go of those that were not used for longest."""
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > OPEN:
        kept.popitem(last=False)

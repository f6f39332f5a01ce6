"""The explanatory-power prior (Valentino et al. 2022): premises that explained similar hypotheses may explain this one.

It compares hypotheses by their words, so that it needs no encoder, outlives every checkpoint, and is up to date as soon
as an explanation is put. It leaves out a hypothesis with exactly the query's words (in any case): its explanation is
the answer, not a prior.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_changes
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.active import latest_move, note_change
from services.corpus.generation import Generation, folder_of
from services.corpus.moves import Move, MoveRequest
from services.index.catalogue.catalogue import Catalogue
from services.index.lexical.bm25 import LexicalIndex
from services.index.ranking.fusion import scaled
from services.index.values import Explanation, ReplicaState, SearchHits
from services.kit.concurrency import finish
from services.store.artifacts import ArtifactStore
from services.store.formats import check_format

FOLDER = ".explanations"
FORMAT_VERSION = 1
NEAREST = 40  # hypotheses that count
OPEN = 8  # priors kept in memory
Near = Sequence[tuple[int, np.float32]]  # hypotheses, nearest first, each with its similarity


@dataclass(frozen=True, eq=False)
class Hypotheses:
    """The hypotheses that were explained, by their words: `explanations[n]` is that of hypothesis n of `index`."""

    explanations: Sequence[Explanation]
    index: LexicalIndex
    by_text: Mapping[str, list[int]]

    @classmethod
    def of(cls, explanations: Sequence[Explanation]) -> Hypotheses:
        """Prepares explanations. It takes a while: use a thread."""
        texts = [each.text for each in explanations]
        by_text: dict[str, list[int]] = {}
        for n, text in enumerate(texts):
            by_text.setdefault(_folded(text), []).append(n)
        return cls(explanations, LexicalIndex.of(texts), by_text)

    def nearest(self, text: str) -> Near:
        """The hypotheses nearest to a text, nearest first, each with its similarity."""
        near = self.index.similarities(text)
        near[self.by_text.get(_folded(text), [])] = 0
        nearest = np.argsort(-near, kind="stable")[:NEAREST]
        return [(n, near[n]) for n in nearest[near[nearest] > 0].tolist()]


@dataclass(frozen=True, eq=False)
class Prior:
    """A corpus's explanations for one generation: the premises of hypothesis n are the ordinals `explained[n]`."""

    hypotheses: Hypotheses
    explained: Sequence[Sequence[int]]

    @classmethod
    def of(cls, explanations: Sequence[Explanation], generation: Generation) -> Prior:
        """Prepares explanations; skips ids that the generation does not have. It takes a while: use a thread."""
        return cls.over(explanations, generation.ordinal_by_id)

    @classmethod
    def over(cls, explanations: Sequence[Explanation], known: Mapping[str, int]) -> Prior:
        """Prepares explanations over the premises whose ordinals `known` has by id."""
        explained = [sorted({known[one] for one in each.premise_ids if one in known}) for each in explanations]
        return cls(Hypotheses.of(explanations), explained)

    def bonus(self, text: str, ordinals: NDArray[np.int64]) -> NDArray[np.float32]:
        """Scores premises (n,) from 0 to 1 by how often each explained the nearest hypotheses."""
        return self.bonus_by(self.hypotheses.nearest(text), ordinals)

    def bonus_by(self, nearest: Near, ordinals: NDArray[np.int64]) -> NDArray[np.float32]:
        """The same by hypotheses that were found before."""
        return bonus_of([(self.explained[n], near) for n, near in nearest], ordinals)


def bonus_of(nearest: Iterable[tuple[Iterable[int], np.float32]], ordinals: NDArray[np.int64]) -> NDArray[np.float32]:
    """Scores premises (n,) by the near hypotheses that they explained: their similarities, over those of the best.

    `nearest` has the ordinals that explained each hypothesis, and its similarity. The best may be none of `ordinals`.
    """
    total: dict[int, np.float32] = {}
    for explained, near in nearest:
        for ordinal in explained:
            total[ordinal] = total.get(ordinal, np.float32(0)) + near
    most = max(total.values(), default=np.float32(1))
    return np.array([total.get(ordinal, np.float32(0)) / most for ordinal in ordinals.tolist()], np.float32)


def with_bonus(pool: SearchHits, bonus: NDArray[np.float32], share: float, k: int) -> SearchHits:
    """Ranks a pool again by the weighted sum of its scores, scaled to 0 to 1, and the prior's bonus (n,)."""
    weight = np.float32(share)
    scores = (1 - weight) * scaled(pool.scores) + weight * bonus
    return SearchHits.best(pool.ordinals, scores, k, exact=pool.exact)


class Explanations:
    """The explanations of each corpus, in the store."""

    def __init__(self, store: ArtifactStore, catalogue: Catalogue) -> None:
        self._store, self._catalogue = store, catalogue
        catalogue.on_followed(self.forget)
        self._changing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._known: dict[str, list[Explanation]] = {}
        self._forgotten = Counter[str]()  # times, by corpus
        self._priors: OrderedDict[tuple[str, str], Prior] = OrderedDict()

    async def put(
        self, corpus: str, explanations: Iterable[Explanation], *, replace: bool
    ) -> tuple[int, tuple[ReplicaState, ...]]:
        """Adds explanations, or replaces all of them. They are durable when it returns their number, and the replicas.

        A hypothesis put twice keeps the premises of both.
        """
        async with self._turn(corpus):
            changing = asyncio.create_task(self._change(corpus, list(explanations), replace))
            await finish(changing)  # a cancelled call changes both or none
        total, move = changing.result()
        return total, await self._catalogue.reached(corpus, move)

    def forget(self, corpus: str) -> None:
        """Reads the explanations again when they are next needed: another process may have changed them."""
        self._forgotten[corpus] += 1
        self._known.pop(corpus, None)
        for key in [key for key in self._priors if key[0] == corpus]:
            del self._priors[key]

    async def prior(self, generation: Generation) -> Prior:
        """Returns the prior over a generation. Raises FailedPrecondition when its corpus has no explanations."""
        key = (generation.corpus, generation.id)
        if (known := self._priors.get(key)) is not None:
            self._priors.move_to_end(key)
            return known
        async with self._turn(generation.corpus):
            if (known := self._priors.get(key)) is not None:  # made while this call waited
                return known
            times = self._forgotten[generation.corpus]
            explanations = await self._get(generation.corpus)
            check_explained(generation.corpus, explanations)
            made = await asyncio.to_thread(Prior.of, explanations, generation)
            if times == self._forgotten[generation.corpus]:  # else it is of the explanations before, and not kept
                self._priors[key] = made
            while len(self._priors) > OPEN:
                self._priors.popitem(last=False)
            return made

    def _turn(self, corpus: str) -> asyncio.Lock:
        """The lock of a corpus: a large one holds up no other."""
        return self._changing.setdefault(corpus, asyncio.Lock())

    async def _change(self, corpus: str, added: Sequence[Explanation], replace: bool) -> tuple[int, Move]:
        """Changes what is on disk, then in memory. Returns how many there are, and the move."""
        now, move = await asyncio.to_thread(self._put, corpus, added, replace)
        self.forget(corpus)
        self._known[corpus] = now
        return len(now), move

    def _put(self, corpus: str, added: Sequence[Explanation], replace: bool) -> tuple[list[Explanation], Move]:
        """Joins explanations with those in the store in a new file, which the move names."""
        now: list[Explanation] = []
        before = ""

        def decide(last: Move) -> Move:
            nonlocal now, before
            before = last.explanations
            now = joined([] if replace else self._latest(corpus), added)
            name = f"{last.number + 1:012}-{uuid.uuid4().hex[:8]}.json"  # two may try the same number
            record = {"format_version": FORMAT_VERSION, "explanations": [[one.text, one.premise_ids] for one in now]}
            self._store.documents.write(_key(corpus, name), json.dumps(record, ensure_ascii=False).encode())
            return with_changes(last, explanations=name)

        move = note_change(self._store, corpus, MoveRequest("explain"), decide)
        for old in self._store.documents.names(f"{folder_of(corpus)}/{FOLDER}"):
            if not old.startswith(".") and old < before:  # that one somebody may be reading
                self._store.documents.remove(_key(corpus, old))
        return now, move

    async def _get(self, corpus: str) -> list[Explanation]:
        if (known := self._known.get(corpus)) is not None:
            return known
        times = self._forgotten[corpus]
        found = await asyncio.to_thread(self._latest, corpus)
        if times == self._forgotten[corpus]:
            self._known[corpus] = found
        return found

    def _latest(self, corpus: str) -> list[Explanation]:
        """Reads the explanations that the last move names. Raises DataLoss for damaged ones, NewerFormat."""
        name = latest_move(self._store, corpus).explanations
        if not name:
            return []
        key = _key(corpus, name)
        try:
            record: Mapping[str, Any] = json.loads(self._store.documents.read(key) or b"")
            check_format(record, FORMAT_VERSION, key)
            return [Explanation(str(text), tuple(map(str, ids))) for text, ids in record["explanations"]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if latest_move(self._store, corpus).explanations != name:  # replaced meanwhile, and removed
                return self._latest(corpus)
            raise errors.DataLoss(
                f"{key} cannot be read ({error}); put the explanations again, with replace"
            ) from error


def joined(before: Iterable[Explanation], added: Iterable[Explanation]) -> list[Explanation]:
    """Joins explanations; a hypothesis that stands twice keeps the premises of both."""
    found: dict[str, dict[str, None]] = {}
    for one in (*before, *added):
        found.setdefault(one.text, {}).update(dict.fromkeys(one.premise_ids))
    return [Explanation(text, tuple(ids)) for text, ids in found.items()]


def check_explained(corpus: str, explanations: Sequence[Explanation]) -> None:
    """Raises FailedPrecondition when there are no explanations to learn from."""
    if not explanations:
        raise errors.FailedPrecondition(
            f"corpus {corpus!r} has no explanations for the prior to learn from; put some: `aeenc corpus explain "
            f"{corpus} --run RUN` (PutExplanations), or set prior to 0"
        )


def _key(corpus: str, name: str) -> str:
    return f"{folder_of(corpus)}/{FOLDER}/{name}"


def _folded(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")

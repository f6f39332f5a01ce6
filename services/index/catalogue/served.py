"""A generation open for search: its premises, its indexes by vector and by word, and the premises that a filter allows.

It is immutable, so callers share it without a lock. The catalogue decides which generation serves a corpus.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.generation import Generation, PremiseRecord
from services.corpus.inner_products import norms_of
from services.index.dense.approximate import OpenRemote, SearchIndex, open_index
from services.index.dense.batcher import SearchBatcher
from services.index.dense.remote import RemoteIndex
from services.index.lexical.bm25 import LexicalIndex
from services.index.values import ALL, GenerationView, Scope, Selection
from services.kit.limits import AnswerRoom

SELF_QUERIES = 32
NORM_TOLERANCE = 1e-3
MOST_LOST = 0.1  # share of its own vectors that an approximate engine may overlook at most


@dataclass(frozen=True, eq=False)
class ServedGeneration:
    """A generation open for search. Opening reads its tables, or all of an old generation; do so in a thread."""

    generation: Generation
    index: SearchIndex | RemoteIndex
    lexical: LexicalIndex | None = None

    @classmethod
    def of(cls, generation: Generation, open_remote: OpenRemote | None = None) -> ServedGeneration:
        """Opens the indexes of a generation. Raises DataLoss naming the damaged file."""
        lexical = LexicalIndex.open(generation.artifact, len(generation.premises))
        return cls(generation, open_index(generation, open_remote), lexical)

    @property
    def id(self) -> str:
        """The generation's id."""
        return self.generation.id

    @property
    def stands(self) -> bool:
        """Whether its files are still those on disk: not deleted, nor replaced by the same content."""
        return self.generation.held is None or self.generation.held.stands()

    @property
    def rows(self) -> int:
        """The number of premises."""
        return len(self.generation.premises)

    async def page(self, start: int, count: int, most_bytes: int) -> list[PremiseRecord]:
        """Returns at most `count` premises from the ordinal `start` on, in order of insertion.

        The page ends with the first one that takes its texts over `most_bytes`.
        """
        return await asyncio.to_thread(self._page, start, count, most_bytes)

    def _page(self, start: int, count: int, most_bytes: int) -> list[PremiseRecord]:
        found: list[PremiseRecord] = []
        for ordinal in range(start, min(start + count, self.rows)):
            found += self.generation.premises[ordinal : ordinal + 1]
            most_bytes -= len(found[-1].text)
            if most_bytes < 0:
                break
        return found

    def select(self, scope: Scope) -> Selection:
        """Turns a scope into a selection. An alias stands for its premise; unknown ids to exclude have no effect.

        Raises NotFound for other ids that the generation lacks.
        """
        ordinals = self.generation.ordinal_by_id
        excluded = (ordinals.get(premise_id) for premise_id in scope.exclude_ids)
        named = {one: ordinals.get(one) for one in (*scope.only_ids, *([scope.before_id] if scope.before_id else []))}
        known = {one: ordinal for one, ordinal in named.items() if ordinal is not None}
        check_found(self, [one for one in named if one not in known])
        return Selection(
            frozenset(scope.splits),
            frozenset(ordinal for ordinal in excluded if ordinal is not None),
            scope.clauses,
            frozenset(known[one] for one in scope.only_ids) if scope.only_ids else None,
            known.get(scope.before_id),
        )

    def unknown(self, scope: Scope) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Lists the scope's splits, and its tags, that no premise has, sorted."""
        splits, tags = set(scope.splits) - self.generation.premises.splits, scope.tags - self.generation.premises.tags
        return tuple(sorted(splits)), tuple(sorted(tags))

    def allowed(self, selection: Selection) -> NDArray[np.bool_] | None:
        """Turns a selection into a mask over ordinals (premises,); None allows all."""
        if selection == ALL:
            return None
        mask = self.generation.premises.passing(selection.splits, selection.clauses)
        if selection.only is not None:
            named = np.zeros(self.index.rows, dtype=bool)
            named[list(selection.only)] = True
            mask = mask & named
        if selection.excluded or selection.before is not None:
            mask = mask.copy()
            mask[list(selection.excluded)] = False
            mask[self.rows if selection.before is None else selection.before :] = False
        return mask

    async def find(self, ids: Iterable[str], most_bytes: int) -> list[PremiseRecord]:
        """Finds premises by id or alias, in the order given.

        Raises NotFound naming the first unknown ones, TooLarge as soon as their texts take more than `most_bytes`.
        """
        return await asyncio.to_thread(self._find, list(ids), most_bytes)

    def _find(self, ids: Sequence[str], most_bytes: int) -> list[PremiseRecord]:
        ordinals = self.generation.ordinal_by_id
        wanted = [(premise_id, ordinals.get(premise_id)) for premise_id in ids]
        check_found(self, [premise_id for premise_id, ordinal in wanted if ordinal is None])
        found, room = [], AnswerRoom(most_bytes)
        for _, ordinal in wanted:
            if ordinal is not None:
                record = self.generation.premises[ordinal]
                room.take(len(record.id) + len(record.text))
                found.append(record)
        return found


async def check_by_searching(batcher: SearchBatcher, candidate: ServedGeneration) -> None:
    """Raises DataLoss unless a sample of vectors has unit length and each finds itself first.

    An approximate engine may overlook a few.
    """
    rows = candidate.index.rows
    sample = np.unique(np.linspace(0, rows - 1, num=min(rows, SELF_QUERIES), dtype=np.int64))
    vectors = candidate.index.vectors[sample].astype(np.float32)
    is_sound = bool(np.all(np.abs(norms_of(vectors) - 1.0) <= NORM_TOLERANCE))
    if is_sound:
        found = await batcher.search(candidate, vectors, 1, ALL, is_check=True)
        # compares scores and not ordinals: an equal vector with a lower ordinal comes first
        lost = sum(abs(float(one.scores[0]) - 1.0) > 2 * NORM_TOLERANCE for one in found)
        is_sound = lost <= (0 if candidate.index.exact else len(sample) * MOST_LOST)
    if not is_sound:
        path = candidate.generation.artifact.path
        raise errors.DataLoss(f"{path}: vectors do not find themselves; build the generation again")


def check_found(served: GenerationView, unknown: Sequence[str]) -> None:
    """Raises NotFound naming the first few of the `unknown` ids."""
    if unknown:
        more = f" and {len(unknown) - 5:,} more" if len(unknown) > 5 else ""
        raise errors.NotFound(
            f"generation {served.id} of corpus {served.generation.corpus!r} has no premise "
            f"{', '.join(map(repr, unknown[:5]))}{more}; call ListPremises to see what there is"
        )

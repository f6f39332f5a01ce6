"""A generation as it is searched: its premises, its indexes by vector and by word, and which premises a filter allows.

Immutable, so it is shared by all callers without a lock. Which generation serves a corpus is the catalogue's matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.generation import Generation, PremiseRecord
from services.index.approximate import SearchIndex, open_index
from services.index.backend import Searched
from services.index.lexical import LexicalIndex


@dataclass(frozen=True)
class Selection:
    """Which premises may be returned: with at least one of `splits` or with none at all, and not `excluded` (ordinals).

    Without `splits` all premises may be. Equal selections share a scan.
    """

    splits: frozenset[str] = frozenset()
    excluded: frozenset[int] = frozenset()


ALL = Selection()


@dataclass(frozen=True, eq=False)
class ServedGeneration:
    """A generation opened for searching. Opening reads tables, and of old ones all; do so in a thread."""

    generation: Generation
    index: SearchIndex
    lexical: LexicalIndex | None = None

    @classmethod
    def of(cls, generation: Generation) -> ServedGeneration:
        """Opens the indexes of a generation. Raises DataLoss naming the file that is damaged."""
        return cls(generation, open_index(generation), LexicalIndex.open(generation.artifact, len(generation.premises)))

    @property
    def id(self) -> str:
        """The generation's id."""
        return self.generation.id

    @property
    def rows(self) -> int:
        """The number of premises."""
        return len(self.generation.premises)

    async def page(self, start: int, count: int) -> list[PremiseRecord]:
        """At most `count` premises from the ordinal `start` on, in the order of insertion."""
        return await asyncio.to_thread(self.generation.premises.__getitem__, slice(start, start + count))

    def select(self, splits: Iterable[str], exclude_ids: Iterable[str]) -> Selection:
        """The selection of a request. An excluded alias excludes its premise; unknown ids exclude nothing."""
        ordinals = self.generation.ordinal_by_id
        excluded = (ordinals.get(premise_id) for premise_id in exclude_ids)
        return Selection(frozenset(splits), frozenset(ordinal for ordinal in excluded if ordinal is not None))

    def allowed(self, selection: Selection) -> NDArray[np.bool_] | None:
        """The selection as a mask over ordinals (premises,); None allows all."""
        if selection == ALL:
            return None
        mask = self.generation.premises.with_any(selection.splits) if selection.splits else None
        if selection.excluded:
            mask = np.ones(self.index.rows, dtype=bool) if mask is None else mask.copy()
            mask[list(selection.excluded)] = False
        return mask

    async def find(self, ids: Iterable[str]) -> list[PremiseRecord]:
        """The premises of ids or aliases, in that order. Raises NotFound naming the first unknown ones."""
        return await asyncio.to_thread(self._find, list(ids))

    def _find(self, ids: Sequence[str]) -> list[PremiseRecord]:
        ordinals = self.generation.ordinal_by_id
        wanted = [(premise_id, ordinals.get(premise_id)) for premise_id in ids]
        check_found(self, [premise_id for premise_id, ordinal in wanted if ordinal is None])
        return [self.generation.premises[ordinal] for _, ordinal in wanted if ordinal is not None]


def check_found(served: Searched, unknown: Sequence[str]) -> None:
    """Raises NotFound naming the first of the ids that a generation does not have."""
    if unknown:
        more = f" and {len(unknown) - 5:,} more" if len(unknown) > 5 else ""
        raise errors.NotFound(
            f"generation {served.id} of corpus {served.generation.corpus!r} has no premise "
            f"{', '.join(map(repr, unknown[:5]))}{more}; ListPremises shows what there is"
        )

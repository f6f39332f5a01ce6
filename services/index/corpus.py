"""A generation as it is searched: the kit's generation, its flat index, and which premises a filter allows.

Immutable, so it is shared by all callers without a lock. Which generation serves a corpus is the catalogue's matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.index.backend import Searched
from services.index.search import FlatIndex
from services.kit.generation import Generation, PremiseRecord


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
    """A generation opened for searching. Opening reads all of it once; do so in a thread."""

    generation: Generation
    index: FlatIndex
    split_masks: dict[str, NDArray[np.bool_]] = field(repr=False)
    unsplit: NDArray[np.bool_] = field(repr=False)

    @classmethod
    def of(cls, generation: Generation) -> ServedGeneration:
        """Prepares a generation: norms, split masks, lookup by id and by text."""
        masks: dict[str, NDArray[np.bool_]] = {}
        unsplit = np.zeros(len(generation.premises), dtype=bool)
        for ordinal, premise in enumerate(generation.premises):
            unsplit[ordinal] = not premise.splits
            for split in premise.splits:
                if split not in masks:
                    masks[split] = np.zeros(len(generation.premises), dtype=bool)
                masks[split][ordinal] = True
        _ = generation.ordinal_by_id, generation.ordinal_by_text  # computed here, not in the event loop
        return cls(generation, FlatIndex(generation.vectors), masks, unsplit)

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
        return self.generation.premises[start : start + count]

    def select(self, splits: Iterable[str], exclude_ids: Iterable[str]) -> Selection:
        """The selection of a request. An excluded alias excludes its premise; unknown ids exclude nothing."""
        ordinals = self.generation.ordinal_by_id
        excluded = frozenset(ordinals[premise_id] for premise_id in exclude_ids if premise_id in ordinals)
        return Selection(frozenset(splits), excluded)

    def allowed(self, selection: Selection) -> NDArray[np.bool_] | None:
        """The selection as a mask over ordinals (premises,); None allows all."""
        if selection == ALL:
            return None
        mask = self.unsplit.copy() if selection.splits else np.ones(len(self.unsplit), dtype=bool)
        for split in selection.splits & self.split_masks.keys():
            mask |= self.split_masks[split]
        mask[list(selection.excluded)] = False
        return mask

    async def find(self, ids: Iterable[str]) -> list[PremiseRecord]:
        """The premises of ids or aliases, in that order. Raises NotFound naming the first unknown ones."""
        ordinals = self.generation.ordinal_by_id
        wanted = list(ids)
        check_found(self, [premise_id for premise_id in wanted if premise_id not in ordinals])
        return [self.generation.premises[ordinals[premise_id]] for premise_id in wanted]


def check_found(served: Searched, unknown: Sequence[str]) -> None:
    """Raises NotFound naming the first of the ids that a generation does not have."""
    if unknown:
        more = f" and {len(unknown) - 5:,} more" if len(unknown) > 5 else ""
        raise errors.NotFound(
            f"generation {served.id} of corpus {served.generation.corpus!r} has no premise "
            f"{', '.join(map(repr, unknown[:5]))}{more}; ListPremises shows what there is"
        )

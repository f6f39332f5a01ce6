"""Which items a step takes: distinct queries with all their items, or single items; texts of like length together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from services.trainer.jobs import Batching

SORTED_BATCHES = 8  # units are sorted by length within windows of so many batches: less padding, still shuffled

Numbers = NDArray[np.int64]


class Units:
    """The units of an epoch: items, or queries. `owners` (m,) is the example of each item, in rising order."""

    def __init__(self, owners: Numbers, lengths: Numbers, batching: Batching) -> None:
        """Lengths are those of all examples, in tokens."""
        if batching == "ITEMS":
            self._starts = np.arange(len(owners) + 1)
            self._lengths = lengths[owners]
        else:
            queries, starts = np.unique(owners, return_index=True)
            self._starts = np.append(starts, len(owners))
            self._lengths = lengths[queries]

    def __len__(self) -> int:
        return len(self._lengths)

    def items(self, units: Numbers) -> Numbers:
        """The items of some units, one unit after the other."""
        starts, counts = self._starts[units], self._starts[units + 1] - self._starts[units]
        before = np.cumsum(counts) - counts
        found: Numbers = np.arange(counts.sum()) + np.repeat(starts - before, counts)
        return found

    def count(self, units: Numbers) -> int:
        """How many items some units have."""
        return int((self._starts[units + 1] - self._starts[units]).sum())

    def batches(self, generator: np.random.Generator, batch_size: int, most: int) -> list[Numbers]:
        """An epoch's units in a new random order, in batches. `most`: how many; 0: all."""
        order = generator.permutation(len(self))[: most or None]
        window = batch_size * SORTED_BATCHES
        windows = [order[start : start + window] for start in range(0, len(order), window)]
        ordered = np.concatenate([units[np.argsort(self._lengths[units], kind="stable")] for units in windows])
        batches = [ordered[start : start + batch_size] for start in range(0, len(order), batch_size)]
        generator.shuffle(batches)
        return batches

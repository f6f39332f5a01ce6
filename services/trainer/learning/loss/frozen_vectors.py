"""The frozen premise vectors of a job: the generation's, memory-mapped as stored, and those of premises outside it.

On a CPU nothing is copied: the pages belong to the file, and the system takes them back when it needs them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.trainer.learning.devices import free_bytes

BLOCK_ROWS = 4096  # a block and its scores stay in a core's cache


@dataclass(frozen=True)
class Block:
    """Vectors (rows, dim) of consecutive premises; `start` is the ordinal of the first."""

    start: int
    vectors: Tensor


class FrozenVectors:
    """Unit vectors (n + outside, dim) by ordinal, without a gradient."""

    def __init__(
        self,
        stored: NDArray[np.float32] | NDArray[np.float16],
        outside: NDArray[np.float32] | None = None,
        device: torch.device = torch.device("cpu"),  # noqa: B008 - immutable
    ) -> None:
        """`stored` (n, dim) may be a memory map. On a GPU they lie in its memory, if that has room for them."""
        self.device = device
        self._parts = [_tensor(part) for part in (stored, outside) if part is not None and len(part)]
        self._lengths = [len(part) for part in self._parts]
        self.dim = int(stored.shape[1])
        free = free_bytes(device)
        if device.type != "cpu" and (free is None or sum(part.nbytes for part in self._parts) <= free // 2):
            self._parts = [part.to(device) for part in self._parts]

    def __len__(self) -> int:
        return sum(self._lengths)

    def rows(self, ordinals: NDArray[np.int64]) -> Tensor:
        """Looks up the vectors of some premises, (ordinals, dim) float32."""
        wanted = torch.from_numpy(ordinals)
        found = torch.empty(len(ordinals), self.dim, device=self.device)
        start = 0
        for part in self._parts:
            here = (wanted >= start) & (wanted < start + len(part))
            found[here.to(self.device)] = part[(wanted[here] - start).to(part.device)].to(self.device, torch.float32)
            start += len(part)
        return found

    def blocks(self, dtype: torch.dtype = torch.float32) -> Iterator[Block]:
        """Yields all vectors in order, block by block, as `dtype`."""
        before = 0
        for part in self._parts:
            for start in range(0, len(part), BLOCK_ROWS):
                yield Block(before + start, part[start : start + BLOCK_ROWS].to(self.device, dtype))
            before += len(part)


def _tensor(array: NDArray[np.float32] | NDArray[np.float16]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a memory map is read-only, and nothing here writes
        return torch.from_numpy(np.asarray(array))

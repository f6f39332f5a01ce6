"""The log-sum-exp of a batch's queries over all premises that may be their negatives, in one pass of bounded memory.

    block of premises ─► scores ─► sparse masks ─► running maximum, sum of exponentials, weighted sum of vectors
                                                                        │                    │
    forward: log-sum-exp (batch,) ◄─────────────────────────────────────┘                    │
    backward: its gradient, the mean premise under the softmax (batch, dim) ◄────────────────┘

The gradient of a log-sum-exp over frozen vectors is their mean under the softmax. The sums of that mean are rescaled
along with the maximum (as in FlashAttention, Dao et al. 2022), so that no block is computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.trainer.learning.loss.frozen_vectors import Block, FrozenVectors
from services.trainer.learning.loss.losses import NOTHING

Cells = NDArray[np.int64]  # rows of (query of the batch, ordinal), (c, 2)


@dataclass(frozen=True)
class Roles:
    """What sets premises of a batch apart from plain negatives, by cell.

    `absent` are no negatives of a query. `refused` ones are, with their own weight, also where `never` excludes them.
    """

    absent: Cells
    refused: Cells


class CorpusNegatives:
    """All premises as negatives. `never` (n + outside,) marks those that are negatives only where they were refused."""

    def __init__(self, premises: FrozenVectors, never: NDArray[np.bool_], temperature: float, weight: float) -> None:
        self.premises, self.temperature = premises, temperature
        self._never = torch.from_numpy(np.flatnonzero(never))
        self._log_weight = math.log(weight)

    def log_sum(self, vectors: Tensor, roles: Roles) -> Tensor:
        """Returns the log of the sum of e^(cosine / temperature) over each query's negatives, (batch,).

        `vectors` (batch, dim) are unit vectors and get a gradient; -inf for a query without a negative.
        """
        result: Tensor = _LogSumExp.apply(vectors, self, roles)  # type: ignore[no-untyped-call]
        return result

    def sums(self, vectors: Tensor, roles: Roles) -> tuple[Tensor, Tensor]:
        """Computes the log-sum-exp (batch,) and its gradient (batch, dim)."""
        queries = vectors / self.temperature
        top = torch.full((len(queries), 1), NOTHING, dtype=queries.dtype, device=queries.device)
        total = torch.zeros_like(top)
        mean = torch.zeros_like(queries)
        absent, refused, never = _by_ordinal(roles.absent), _by_ordinal(roles.refused), self._never
        for block in self.premises.blocks(queries.dtype):
            scores = queries @ block.vectors.T  # (batch, rows)
            self._mask(scores, block, absent, refused, never)
            higher = torch.maximum(top, scores.amax(dim=1, keepdim=True))
            shift = higher.clamp(min=torch.finfo(queries.dtype).min)  # as long as there is none, -inf less -inf is NaN
            shares, scale = scores.sub_(shift).exp_(), (top - shift).exp_()
            total.mul_(scale).add_(shares.sum(dim=1, keepdim=True))
            mean.mul_(scale).addmm_(shares, block.vectors)
            top = higher
        return (top + total.log()).squeeze(1), mean / (total * self.temperature).clamp(
            min=torch.finfo(total.dtype).tiny
        )

    def _mask(self, scores: Tensor, block: Block, absent: Tensor, refused: Tensor, never: Tensor) -> None:
        """Takes out of a block's scores (batch, rows) what is no negative, and weighs what was refused."""
        device, start, stop = scores.device, block.start, block.start + scores.shape[1]
        rows, columns = (_within(refused, start, stop) - torch.tensor([[0], [start]])).to(device)
        told = scores[rows, columns] + self._log_weight
        first, end = torch.searchsorted(never, torch.tensor([start, stop])).tolist()
        if end > first:
            scores.index_fill_(1, (never[first:end] - start).to(device), NOTHING)
        left, out = (_within(absent, start, stop) - torch.tensor([[0], [start]])).to(device)
        scores[left, out] = NOTHING
        scores[rows, columns] = told


class _LogSumExp(torch.autograd.Function):
    """The log-sum-exp of `CorpusNegatives`; its gradient is computed along with it."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, negatives: CorpusNegatives, roles: Roles) -> Tensor:
        log_sum, gradient = negatives.sums(vectors, roles)
        ctx.save_for_backward(gradient)
        return log_sum

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (own,) = ctx.saved_tensors
        return gradients[0][:, None] * own, None, None


def cells_of(ordinals: Sequence[NDArray[np.int64]]) -> Cells:
    """Lists (query, ordinal) for each query's ordinals."""
    rows = np.repeat(np.arange(len(ordinals)), [len(own) for own in ordinals])
    return np.stack([rows, np.concatenate(ordinals)], axis=1).astype(np.int64)


def _by_ordinal(cells: Cells) -> Tensor:
    """Orders cells by their ordinal, (2, c)."""
    return torch.from_numpy(np.ascontiguousarray(cells[np.argsort(cells[:, 1], kind="stable")].T))


def _within(cells: Tensor, start: int, stop: int) -> Tensor:
    """Returns the cells (2, …) whose ordinals are in [start, stop)."""
    first, end = torch.searchsorted(cells[1], torch.tensor([start, stop])).tolist()
    return cells[:, first:end]

"""The parts of objectives: the units of a job, texts to encode, frozen vectors, and all premises as negatives."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from services.trainer.jobs.files import Precision
from services.trainer.jobs.losses import Batching
from services.trainer.models.batches import Batches, by_length
from services.trainer.train.encoder import ENCODE_BATCH, Encoders, QueryEncoder, tensors_of
from services.trainer.train.losses import MASKED, drift

SORTED_BATCHES = 8  # a window of this many batches is sorted by length: less padding, still shuffled
BLOCK_ROWS = 4096  # a block and its scores stay in a core's cache

Numbers = NDArray[np.int64]
Cells = NDArray[np.int64]  # rows of (query of the batch, ordinal), (c, 2)


class Objective(Protocol):
    """A loss over numbered units. `skipped` counts the queries that it cannot use."""

    size: int
    skipped: int
    head: nn.Module | None  # trained beside the encoder and discarded at the end

    def batches(self, generator: np.random.Generator, batch_size: int) -> list[Numbers]:
        """Batches the units of one epoch in a new random order."""

    def loss(self, encoders: Encoders[Any], units: Numbers, whole: Numbers | None = None) -> Tensor:
        """Computes the loss of a batch, a scalar; encodes each distinct text once.

        With `whole`, the units are a part of that batch, and the loss has the part's share of what it averages. The
        parts add up to the batch, but for losses with negatives from the batch: they see only those of their part.
        """


class Units:
    """The units of an epoch: items, or queries with their items. `owners` (m,) has each item's example, ascending."""

    def __init__(self, owners: Numbers, lengths: Numbers, batching: Batching) -> None:
        """`lengths` has one entry for each example, in tokens."""
        unit_of = np.arange(len(owners)) if batching == "ITEMS" else owners
        _, starts = np.unique(unit_of, return_index=True)
        self._starts, self._lengths = np.append(starts, len(owners)), lengths[owners[starts]]

    def __len__(self) -> int:
        return len(self._lengths)

    def items(self, units: Numbers) -> Numbers:
        """Lists the items of some units, one unit after the other."""
        starts, counts = self._starts[units], self._starts[units + 1] - self._starts[units]
        before = np.cumsum(counts) - counts
        found: Numbers = np.arange(counts.sum()) + np.repeat(starts - before, counts)
        return found

    def batches(self, generator: np.random.Generator, batch_size: int, most: int) -> list[Numbers]:
        """Batches an epoch's units in a new random order; at most `most` of them, 0 for all."""
        order = generator.permutation(len(self))[: most or None]
        window = batch_size * SORTED_BATCHES
        windows = [order[start : start + window] for start in range(0, len(order), window)]
        ordered = np.concatenate([units[np.argsort(self._lengths[units], kind="stable")] for units in windows])
        batches = [ordered[start : start + batch_size] for start in range(0, len(order), batch_size)]
        generator.shuffle(batches)
        return batches


class FrozenVectors:
    """Unit vectors (n + outside, dim) by ordinal, without a gradient: the generation's, as stored, and further ones.

    On a CPU nothing is copied: the pages belong to the file, and the system takes them back when it needs them.
    """

    def __init__(
        self,
        stored: NDArray[np.float32] | NDArray[np.float16],
        outside: NDArray[np.float32] | None = None,
        device: torch.device = torch.device("cpu"),  # noqa: B008 - immutable
    ) -> None:
        """`stored` (n, dim) may be a memory map. On a GPU they lie in its memory, if the job may take twice as much."""
        self.device = device
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a memory map is read-only, and nothing here writes
            known = (part for part in (stored, outside) if part is not None and len(part))
            self._parts = [torch.from_numpy(np.asarray(part)) for part in known]
        self.dim = int(stored.shape[1])
        if device.type == "cuda":
            free, whole = torch.cuda.mem_get_info(device)
            bound = whole * torch.cuda.get_per_process_memory_fraction(device)
            if 2 * sum(part.nbytes for part in self._parts) <= min(free, bound):
                self._parts = [part.to(device) for part in self._parts]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def rows(self, ordinals: Numbers) -> Tensor:
        """Looks up the vectors of some premises, (ordinals, dim) float32."""
        wanted = torch.from_numpy(ordinals)
        found = torch.empty(len(ordinals), self.dim, device=self.device)
        start = 0
        for part in self._parts:
            inside = (wanted >= start) & (wanted < start + len(part))
            found[inside.to(self.device)] = part[(wanted[inside] - start).to(part.device)].to(
                self.device, torch.float32
            )
            start += len(part)
        return found

    def encode(self, _encoder: QueryEncoder | None, ordinals: Numbers, *, normalize: bool = True) -> Tensor:
        """Looks up what `Texts` encodes."""
        del normalize
        return self.rows(ordinals)

    def drift_penalty(self, _vectors: Tensor, _ordinals: Numbers) -> Tensor:
        """Returns 0: frozen premises do not drift."""
        return torch.zeros((), device=self.device)

    def blocks(self, dtype: torch.dtype = torch.float32) -> Iterator[tuple[int, Tensor]]:
        """Yields all vectors in order, block by block, as `dtype`, each with the ordinal of its first."""
        before = 0
        for part in self._parts:
            for start in range(0, len(part), BLOCK_ROWS):
                yield before + start, part[start : start + BLOCK_ROWS].to(self.device, dtype)
            before += len(part)


class Texts:
    """Texts by number that an encoder in training encodes again in each batch. They are tokenized once.

    `pretrained` are their vectors by the pre-trained encoder, for the penalty; None for no penalty.
    """

    def __init__(
        self,
        texts: Mapping[int, str],
        prefix: str,
        batches: Batches,
        device: torch.device,
        precision: Precision,
        pretrained: FrozenVectors | None = None,
        weight: float = 0.0,
    ) -> None:
        self._ids = dict(zip(texts, batches.ids(list(texts.values()), prefix), strict=True))
        self._batches, self._device, self._precision = batches, device, precision
        self._pretrained, self._weight = pretrained, weight

    @property
    def lengths(self) -> Numbers:
        """The length of each text, in tokens."""
        return np.array([len(ids) for ids in self._ids.values()], dtype=np.int64)

    def encode(self, encoder: QueryEncoder | None, numbers: Numbers, *, normalize: bool = True) -> Tensor:
        """Encodes vectors (numbers, dim), float32, with a gradient; many of them with those of similar length."""
        assert encoder is not None
        ids = [self._ids[number] for number in numbers.tolist()]

        def encoded(some: list[list[int]]) -> Tensor:
            tensors = tensors_of(self._batches.padded(some), self._device)
            return encoder.in_precision(**tensors, precision=self._precision, normalize=normalize)

        if len(ids) <= ENCODE_BATCH:
            return encoded(ids)
        groups = list(by_length([len(tokens) for tokens in ids], ENCODE_BATCH))
        parts = [encoded([ids[n] for n in places]) for places in groups]
        return torch.cat(parts)[torch.from_numpy(np.argsort(np.concatenate(groups)))]

    def drift_penalty(self, vectors: Tensor, numbers: Numbers) -> Tensor:
        """Computes the weighted drift of the unit vectors from the pre-trained ones, a scalar: a side of Eq. 2."""
        if self._pretrained is None:
            return torch.zeros((), device=self._device)
        return self._weight * drift(functional.normalize(vectors, dim=1), self._pretrained.rows(numbers))


class CorpusNegatives:
    """All premises as negatives: the log-sum-exp of a batch's queries over them, in one pass of bounded memory.

    block of premises ─► scores ─► sparse masks ─► running maximum, sum of exponentials, weighted sum of vectors
                                                                        │                    │
    forward: log-sum-exp (batch,) ◄─────────────────────────────────────┘                    │
    backward: its gradient, the mean premise under the softmax (batch, dim) ◄────────────────┘

    The gradient of a log-sum-exp over frozen vectors is their mean under the softmax. The sums of that mean are
    rescaled along with the maximum (as in FlashAttention, Dao et al. 2022), so that no block is computed twice. `never`
    (n + outside,) marks premises that are negatives only where they were refused.
    """

    def __init__(self, premises: FrozenVectors, never: NDArray[np.bool_], temperature: float, weight: float) -> None:
        self.premises, self.temperature = premises, temperature
        self._never = torch.from_numpy(np.flatnonzero(never))
        self._log_weight = math.log(weight)

    def log_sum(self, vectors: Tensor, absent: Cells, refused: Cells) -> Tensor:
        """Returns the log of the sum of e^(cosine / temperature) over each query's negatives, (batch,).

        `vectors` (batch, dim) are unit vectors and get a gradient; -inf for a query without a negative. `absent`
        premises are no negatives of a query; `refused` ones are, with their own weight, also if `never` has them.
        """
        result: Tensor = _LogSumExp.apply(vectors, self, absent, refused)  # type: ignore[no-untyped-call]
        return result

    def sums(self, vectors: Tensor, absent: Cells, refused: Cells) -> tuple[Tensor, Tensor]:
        """Computes the log-sum-exp (batch,) and its gradient (batch, dim)."""
        queries = vectors / self.temperature
        top = torch.full((len(queries), 1), MASKED, dtype=queries.dtype, device=queries.device)
        total = torch.zeros_like(top)
        mean = torch.zeros_like(queries)
        left_out, weighed = _by_ordinal(absent), _by_ordinal(refused)
        for start, block in self.premises.blocks(queries.dtype):
            scores = queries @ block.T  # (batch, rows)
            self._mask(scores, start, left_out, weighed)
            higher = torch.maximum(top, scores.amax(dim=1, keepdim=True))
            shift = higher.clamp(min=torch.finfo(queries.dtype).min)  # as long as there is none, -inf less -inf is NaN
            shares, scale = scores.sub_(shift).exp_(), (top - shift).exp_()
            total.mul_(scale).add_(shares.sum(dim=1, keepdim=True))
            mean.mul_(scale).addmm_(shares, block)
            top = higher
        least = torch.finfo(total.dtype).tiny
        return (top + total.log()).squeeze(1), mean / (total * self.temperature).clamp(min=least)

    def _mask(self, scores: Tensor, start: int, absent: Tensor, refused: Tensor) -> None:
        """Takes out of a block's scores (batch, rows) what is no negative, and weighs what was refused."""
        device, stop = scores.device, start + scores.shape[1]
        rows, columns = (_within(refused, start, stop) - torch.tensor([[0], [start]])).to(device)
        refused_logits = scores[rows, columns] + self._log_weight
        first, end = torch.searchsorted(self._never, torch.tensor([start, stop])).tolist()
        if end > first:
            scores.index_fill_(1, (self._never[first:end] - start).to(device), MASKED)
        left, out = (_within(absent, start, stop) - torch.tensor([[0], [start]])).to(device)
        scores[left, out] = MASKED
        scores[rows, columns] = refused_logits


class _LogSumExp(torch.autograd.Function):
    """The log-sum-exp of `CorpusNegatives`; its gradient is computed along with it."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, negatives: CorpusNegatives, absent: Cells, refused: Cells) -> Tensor:
        log_sum, gradient = negatives.sums(vectors, absent, refused)
        ctx.save_for_backward(gradient)
        return log_sum

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (computed,) = ctx.saved_tensors
        return gradients[0][:, None] * computed, None, None, None


def cells_of(ordinals: Sequence[Numbers]) -> Cells:
    """Lists (query, ordinal) for each query's ordinals."""
    rows = np.repeat(np.arange(len(ordinals)), [len(each) for each in ordinals])
    return np.stack([rows, np.concatenate(ordinals)], axis=1).astype(np.int64)


def _by_ordinal(cells: Cells) -> Tensor:
    """Orders cells by their ordinal, (2, c)."""
    return torch.from_numpy(np.ascontiguousarray(cells[np.argsort(cells[:, 1], kind="stable")].T))


def _within(cells: Tensor, start: int, stop: int) -> Tensor:
    """Returns the cells (2, …) whose ordinals are in [start, stop)."""
    first, end = torch.searchsorted(cells[1], torch.tensor([start, stop])).tolist()
    return cells[:, first:end]

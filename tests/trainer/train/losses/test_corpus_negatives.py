"""The softmax over all premises, block by block, against the same loss over one dense matrix of scores."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from services.corpus.arrays import map_array
from services.trainer.jobs.job import JobConfig
from services.trainer.train import data
from services.trainer.train.data import Cells, CorpusNegatives, FrozenVectors, cells_of
from services.trainer.train.losses import full_corpus_softmax

QUERIES, PREMISES, OUTSIDE, DIM = 6, 40, 5, 16
TEMPERATURE, WEIGHT = 0.05, 3.0
OPTIONS = JobConfig("c", (), temperature=TEMPERATURE)
ALL = PREMISES + OUTSIDE


def unit(rng: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    drawn = rng.standard_normal(shape)
    return drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)


def dense(scores: Tensor, positives: Tensor, excluded: Tensor, refused: Tensor) -> Tensor:
    """The loss as one formula over boolean masks (batch, n)."""
    logits = scores / TEMPERATURE
    negatives = logits + refused.to(logits.dtype) * math.log(WEIGHT)
    against = torch.logsumexp(negatives.masked_fill(positives | excluded, float("-inf")), dim=1, keepdim=True)
    each = nn.functional.softplus(against - logits) * positives
    return (each.sum(dim=1) / positives.sum(dim=1)).mean()


def mask(cells: Cells) -> Tensor:
    made = torch.zeros(QUERIES, ALL, dtype=torch.bool)
    made[cells[:, 0], cells[:, 1]] = True
    return made


class Case:
    """Queries, premises and who is what for whom; some refused premises are excluded for all others."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.queries, self.premises = unit(rng, QUERIES, DIM), unit(rng, ALL, DIM)
        drawn = [rng.permutation(ALL)[:12] for _ in range(QUERIES)]
        self.positives = cells_of([one[: 1 + n % 3] for n, one in enumerate(drawn)])
        self.excluded = cells_of([one[3:5] for one in drawn])
        self.refused = cells_of([one[5 : 5 + n] for n, one in enumerate(drawn)])  # none of the first query
        self.never = np.arange(ALL) >= PREMISES
        self.never[rng.permutation(PREMISES)[:9]] = True

    def blocked(self, queries: Tensor, premises: FrozenVectors) -> Tensor:
        negatives = CorpusNegatives(premises, self.never, TEMPERATURE, WEIGHT)
        against = negatives.log_sum(queries, np.concatenate([self.positives, self.excluded]), self.refused)
        rows = torch.from_numpy(self.positives[:, 0].copy())
        known = torch.from_numpy(self.premises).to(queries.dtype)[self.positives[:, 1]]
        return full_corpus_softmax((queries[rows] * known).sum(dim=1), rows, against, OPTIONS)

    def dense(self, queries: Tensor) -> Tensor:
        refused = mask(self.refused)
        excluded = (torch.from_numpy(self.never).repeat(QUERIES, 1) | mask(self.excluded)) & ~refused
        scores = queries @ torch.from_numpy(self.premises).to(queries.dtype).T
        return dense(scores, mask(self.positives), excluded, refused)


def in_parts(premises: NDArray[np.float64]) -> FrozenVectors:
    return FrozenVectors(premises[:PREMISES], premises[PREMISES:])  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [1, 7, 4096])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-6)])
def test_blocks_give_the_dense_loss_and_its_gradient(
    monkeypatch: pytest.MonkeyPatch, rows: int, dtype: torch.dtype, tolerance: float
) -> None:
    monkeypatch.setattr(data, "BLOCK_ROWS", rows)
    for seed in range(3):
        case = Case(seed)
        found, expected = (torch.from_numpy(case.queries).to(dtype).requires_grad_() for _ in range(2))
        loss, reference = case.blocked(found, in_parts(case.premises)), case.dense(expected)
        (2 * loss).backward()
        (2 * reference).backward()
        assert float((loss - reference).detach().abs()) <= tolerance * float(reference.detach())
        assert found.grad is not None
        assert expected.grad is not None
        assert float((found.grad - expected.grad).abs().max()) <= tolerance * float(expected.grad.abs().max())


def test_a_query_without_a_negative_costs_nothing_and_has_no_gradient() -> None:
    premises = unit(np.random.default_rng(1), 2, DIM).astype(np.float32)
    queries = torch.from_numpy(premises[:1].copy()).requires_grad_()
    negatives = CorpusNegatives(FrozenVectors(premises), np.zeros(2, dtype=bool), TEMPERATURE, 1.0)
    against = negatives.log_sum(queries, cells_of([np.arange(2)]), cells_of([np.arange(0)]))
    assert float(against.detach()) == float("-inf")
    loss = full_corpus_softmax((queries @ torch.from_numpy(premises).T)[0, :1], torch.tensor([0]), against, OPTIONS)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert queries.grad is not None
    assert not queries.grad.any()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_vectors_stay_in_the_file_and_are_looked_up_in_float32(tmp_path: Path, dtype: type) -> None:
    premises = unit(np.random.default_rng(2), ALL, DIM).astype(np.float32)
    np.save(tmp_path / "vectors.npy", premises[:PREMISES].astype(dtype))
    stored = map_array(tmp_path / "vectors.npy")
    vectors = FrozenVectors(stored, premises[PREMISES:])
    assert np.shares_memory(vectors._parts[0].numpy(), stored)
    ordinals = np.array([44, 3, 39, 40, 3])
    found = vectors.rows(ordinals)
    assert found.dtype == torch.float32
    assert np.abs(found.numpy() - premises[ordinals]).max() < 1e-3
    assert len(vectors) == sum(len(block) for _, block in vectors.blocks()) == ALL


@pytest.mark.parametrize(("free", "share"), [(1_500, 1.0), (20_000, 0.1)], ids=["the card", "its bound"])
def test_vectors_stay_on_the_processor_where_the_card_or_its_bound_lacks_room(
    monkeypatch: pytest.MonkeyPatch, free: int, share: float
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 20_000))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: share)
    vectors = FrozenVectors(np.zeros((PREMISES, 8), np.float32), device=torch.device("cuda"))  # 1,280 bytes
    assert [part.device.type for part in vectors._parts] == ["cpu"]


def test_a_step_never_holds_scores_over_more_than_a_block_of_premises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "BLOCK_ROWS", 7)
    held, mask_block = [], CorpusNegatives._mask

    def recorded(self: CorpusNegatives, scores: Tensor, *rest: object) -> None:
        held.append(scores.shape[1])
        mask_block(self, scores, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(CorpusNegatives, "_mask", recorded)
    case = Case(4)
    queries = torch.from_numpy(case.queries).requires_grad_()
    case.blocked(queries, in_parts(case.premises)).backward()
    assert max(held) == 7
    assert sum(held) == ALL, "and the backward pass computes none again"

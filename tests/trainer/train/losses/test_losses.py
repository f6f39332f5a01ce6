"""The losses against plain loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from services.trainer.jobs.job import JobConfig
from services.trainer.train.losses import (
    NliClassification,
    drift,
    full_corpus_softmax,
    gist,
    multiple_negatives_ranking,
    pairwise_contrastive,
    regression,
    supervised_contrastive,
    triplet_margin,
)

GENERATOR = torch.Generator().manual_seed(7)


def given(**numbers: float) -> JobConfig:
    return JobConfig("c", (), **numbers)  # type: ignore[arg-type]


def cosines(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=GENERATOR, dtype=torch.float64) * 2 - 1


def masks(*rows: list[int], n: int = 6) -> Tensor:
    made = torch.zeros(len(rows), n, dtype=torch.bool)
    for row, columns in enumerate(rows):
        made[row, columns] = True
    return made


def test_full_corpus_softmax_is_the_plain_formula():
    positives, rows, against = cosines(3), torch.tensor([0, 0, 1]), cosines(2) * 10
    each = [
        -math.log(math.exp(p / 0.1) / (math.exp(p / 0.1) + math.exp(against[row])))
        for p, row in zip(positives.tolist(), rows.tolist(), strict=True)
    ]
    loss = full_corpus_softmax(positives, rows, against, given(temperature=0.1))
    assert float(loss) == pytest.approx(((each[0] + each[1]) / 2 + each[2]) / 2, rel=1e-12)


def test_triplet_margin_is_the_plain_formula():
    positive, negative = cosines(9), cosines(9)
    expected = sum(max(float(n - p) + 0.1, 0) for p, n in zip(positive, negative, strict=True)) / 9
    assert float(triplet_margin(positive, negative, given(margin=0.1))) == pytest.approx(expected, rel=1e-12)


def test_pairwise_contrastive_is_the_plain_formula():
    found, explains = cosines(12), torch.arange(12) % 3 == 0
    expected = 0.0
    for cosine, positive in zip(found.tolist(), explains.tolist(), strict=True):
        distance = 1 - cosine
        expected += distance**2 if positive else max(0.0, 0.5 - distance) ** 2
    assert float(pairwise_contrastive(found, explains, given(margin=0.5))) == pytest.approx(expected / 12, rel=1e-12)


def test_supervised_contrastive_is_the_plain_formula():
    scores, positives, excluded = cosines(2, 6), masks([0, 1], [2]), masks([5], [])
    expected = 0.0
    for row in range(2):
        total = sum(math.exp(scores[row, n] / 0.2) for n in range(6) if not excluded[row, n])
        columns = positives[row].nonzero().flatten().tolist()
        expected -= sum(math.log(math.exp(scores[row, p] / 0.2) / total) for p in columns) / len(columns)
    assert float(supervised_contrastive(scores, positives, excluded, given(temperature=0.2))) == pytest.approx(
        expected / 2, rel=1e-12
    )


@pytest.mark.parametrize("margin", [None, 0.0, 0.2])
def test_gist_is_multiple_negatives_ranking_without_what_the_guide_finds_nearer(margin: float | None):
    scores, guide, own, masked = cosines(3, 6), cosines(3, 6), torch.tensor([0, 1, 4]), masks([1], [0, 1], [5])
    expected = 0.0
    for row in range(3):
        threshold = math.inf if margin is None else float(guide[row, own[row]]) - margin
        kept = [n for n in range(6) if n == own[row] or not (masked[row, n] or float(guide[row, n]) > threshold)]
        total = sum(math.exp(scores[row, n] / 0.1) for n in kept)
        expected -= math.log(math.exp(scores[row, own[row]] / 0.1) / total)
    loss = multiple_negatives_ranking if margin is None else gist
    found = loss(scores, own, masked, guide, given(temperature=0.1, guide_margin=margin or 0.0))
    assert float(found) == pytest.approx(expected / 3, rel=1e-12)


def test_nli_classification_is_the_plain_formula():
    torch.manual_seed(1)
    loss = NliClassification(4).double()
    queries, premises, classes = cosines(5, 4), cosines(5, 4), torch.tensor([0, 1, 2, 0, 2])
    weight, bias = loss.classifier.weight.detach(), loss.classifier.bias.detach()
    expected = 0.0
    for row in range(5):
        features = torch.cat([queries[row], premises[row], (queries[row] - premises[row]).abs()])
        logits = [float((weight[c] * features).sum() + bias[c]) for c in range(3)]
        expected -= math.log(math.exp(logits[classes[row]]) / sum(map(math.exp, logits)))
    assert float(loss(queries, premises, classes)) == pytest.approx(expected / 5, rel=1e-12)


def test_regression_is_the_plain_formula():
    """Squared errors of scores, or cross-entropies of a distribution over the grades that there are."""
    scores, grades = cosines(4, 1), torch.tensor([0.0, 1.0, 6.0], dtype=torch.float64)
    targets = torch.tensor([1.0, 0.0, 6.0, 1.0], dtype=torch.float64)
    squares = [(float(score) - float(target)) ** 2 for score, target in zip(scores, targets, strict=True)]
    assert regression(scores, targets, None).tolist() == pytest.approx(squares, rel=1e-12)
    logits = cosines(4, 3)
    shares = [[math.exp(float(one)) / sum(map(math.exp, row.tolist())) for one in row] for row in logits]
    expected = [-math.log(shares[row][column]) for row, column in enumerate([1, 0, 2, 1])]
    assert regression(logits, targets, grades).tolist() == pytest.approx(expected, rel=1e-12)


def test_drift_is_the_mean_squared_distance_from_the_pretrained_vectors():
    held = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert float(drift(held, held)) == 0.0
    assert float(drift(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), held)) == 1.0

"""The objectives against plain loops, and in which direction they pull."""

from __future__ import annotations

import math

import pytest
import torch

from services.trainer.learning.losses import drift, full_corpus_softmax, triplet_margin

GENERATOR = torch.Generator().manual_seed(7)


def masks(*rows: list[int], n: int = 6) -> torch.Tensor:
    made = torch.zeros(len(rows), n, dtype=torch.bool)
    for row, columns in enumerate(rows):
        made[row, columns] = True
    return made


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_full_corpus_softmax_is_the_plain_formula(weight: float):
    scores = torch.rand(2, 6, generator=GENERATOR)
    positives, excluded, refused = masks([0, 1], [2]), masks([5], [0]), masks([3], [])
    expected = []
    for row in range(2):
        each = []
        negatives = [n for n in range(6) if not positives[row, n] and not excluded[row, n]]
        for p in positives[row].nonzero().flatten().tolist():
            total = math.exp(scores[row, p] / 0.1)
            total += sum((weight if refused[row, n] else 1) * math.exp(scores[row, n] / 0.1) for n in negatives)
            each.append(-math.log(math.exp(scores[row, p] / 0.1) / total))
        expected.append(sum(each) / len(each))
    loss = full_corpus_softmax(scores, positives, excluded, refused, temperature=0.1, refused_weight=weight)
    assert float(loss) == pytest.approx(sum(expected) / 2, rel=1e-5)


def test_softmax_gives_no_gradient_to_excluded_and_pulls_each_positive_up():
    scores = torch.rand(1, 6, generator=GENERATOR).requires_grad_()
    loss = full_corpus_softmax(scores, masks([0, 1]), masks([4, 5]), masks([]), temperature=0.05, refused_weight=1.0)
    loss.backward()
    assert scores.grad is not None
    gradient = scores.grad[0]
    assert (gradient[:2] < 0).all()
    assert (gradient[2:4] > 0).all()
    assert (gradient[4:] == 0).all()


def test_the_triplet_loss_pulls_what_explains_closer_unlike_the_misprint():
    positive, negative = torch.tensor([0.5], requires_grad=True), torch.tensor([0.6], requires_grad=True)
    loss = triplet_margin(positive, negative, margin=0.1)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.2)
    assert (float(positive.grad), float(negative.grad)) == (-1.0, 1.0)


def test_a_triplet_that_keeps_its_margin_costs_nothing():
    assert float(triplet_margin(torch.tensor([0.9]), torch.tensor([0.7]), margin=0.1)) == 0.0


def test_drift_is_the_mean_squared_distance_from_the_pretrained_vectors():
    held = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert float(drift(held, held)) == 0.0
    assert float(drift(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), held)) == 1.0

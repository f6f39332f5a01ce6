"""The losses that sentence-transformers has, too, give its numbers. Skipped where it is not installed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from services.trainer.jobs.job import JobConfig
from services.trainer.train.losses import (
    NliClassification,
    gist,
    multiple_negatives_ranking,
    pairwise_contrastive,
    triplet_margin,
)

losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")

PAIRS, DIM = 7, 16
GENERATOR = torch.Generator().manual_seed(3)


def given(**numbers: float) -> JobConfig:
    return JobConfig("c", (), **numbers)  # type: ignore[arg-type]


def unit_vectors(rows: int = PAIRS) -> Tensor:
    return normalize(torch.randn(rows, DIM, generator=GENERATOR, dtype=torch.float64), dim=1)


class Given(nn.Module):
    """Stands for a model: its embeddings are those of the features."""

    device = torch.device("cpu")

    def __init__(self, *columns: Tensor) -> None:
        super().__init__()
        self.columns, self.tokenizer, self.max_seq_length = list(columns), None, 8

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        return {"sentence_embedding": self.columns[features["column"]]}


def features(columns: int) -> Iterable[dict[str, Any]]:
    return [{"column": column} for column in range(columns)]


QUERIES, POSITIVES, NEGATIVES = unit_vectors(), unit_vectors(), unit_vectors()
NOTHING = torch.zeros(PAIRS, 2 * PAIRS, dtype=torch.bool)
OWN = torch.arange(PAIRS)


def test_triplet_margin():
    theirs = losses.TripletLoss(Given(), losses.TripletDistanceMetric.COSINE, 0.1)
    expected = theirs.compute_loss_from_embeddings([QUERIES, POSITIVES, NEGATIVES], torch.empty(0))
    ours = triplet_margin((QUERIES * POSITIVES).sum(1), (QUERIES * NEGATIVES).sum(1), given(margin=0.1))
    assert float(ours) == pytest.approx(float(expected), rel=1e-9)


def test_pairwise_contrastive_is_twice_theirs_which_has_a_half_in_front():
    labels = torch.arange(PAIRS) % 2
    expected = losses.ContrastiveLoss(Given(), margin=0.5).compute_loss_from_embeddings([QUERIES, POSITIVES], labels)
    ours = pairwise_contrastive((QUERIES * POSITIVES).sum(1), labels == 1, given(margin=0.5))
    assert float(ours) == pytest.approx(2 * float(expected), rel=1e-6)


def test_multiple_negatives_ranking_with_hard_negatives():
    theirs = losses.MultipleNegativesRankingLoss(Given(), scale=20.0)
    expected = theirs.compute_loss_from_embeddings([QUERIES, POSITIVES, NEGATIVES], torch.empty(0))
    scores = QUERIES @ torch.cat([POSITIVES, NEGATIVES]).T
    ours = multiple_negatives_ranking(scores, OWN, NOTHING, None, given(temperature=0.05))
    assert float(ours) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("margin", [0.0, 0.1])
def test_gist_with_premises_alone_as_candidates(margin: float):
    guide = [unit_vectors(), unit_vectors(), unit_vectors()]
    theirs = losses.GISTEmbedLoss.__new__(losses.GISTEmbedLoss)
    nn.Module.__init__(theirs)
    theirs.model, theirs.guide = Given(QUERIES, POSITIVES, NEGATIVES), Given(*guide)
    theirs.temperature, theirs.margin, theirs.margin_strategy = 0.05, margin, "absolute"
    theirs.contrast_anchors = theirs.contrast_positives = theirs.gather_across_devices = theirs.must_retokenize = False
    theirs.similarity_fct = nn.CosineSimilarity(dim=-1)
    theirs.cross_entropy_loss = nn.CrossEntropyLoss()
    expected = theirs(features(3), torch.empty(0))
    premises, guided = torch.cat([POSITIVES, NEGATIVES]), torch.cat(guide[1:])
    options = given(temperature=0.05, guide_margin=margin)
    ours = gist(QUERIES @ premises.T, OWN, NOTHING, guide[0] @ guided.T, options)
    assert float(ours) == pytest.approx(float(expected), rel=1e-9)


def test_nli_classification():
    classes = torch.arange(PAIRS) % 3
    theirs = losses.SoftmaxLoss(Given(QUERIES, POSITIVES), DIM, 3)
    ours = NliClassification(DIM).double()
    theirs.classifier.load_state_dict(ours.classifier.state_dict())
    theirs.classifier.double()
    expected = theirs(features(2), classes)
    assert float(ours(QUERIES, POSITIVES, classes)) == pytest.approx(float(expected), rel=1e-9)

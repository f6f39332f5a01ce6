"""The losses: formulas over cosines and masks, no data and no encoder.

Cosines come from unit vectors. Where premises are frozen only the query side of a cosine carries a gradient; no
formula depends on that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

NOTHING = float("-inf")  # the logit of what takes no part

# Classes of natural language inference, premise to hypothesis.
ENTAILMENT, NEUTRAL, CONTRADICTION = range(3)


@dataclass(frozen=True)
class FullCorpusSoftmax:
    """Softmax of each positive against every premise that may count as a negative; siblings are none.

    The negatives of a query come as one number: `CorpusNegatives` sums them up block by block.
    """

    temperature: float

    def __call__(self, cosines: Tensor, rows: Tensor, against: Tensor) -> Tensor:
        """Computes a scalar in which each query weighs the same.

        Cosines (p,) of positive pairs and the query of each, `rows` (p,), int64; `against` (batch,) is the log of the
        sum of e^(cosine / temperature) over a query's negatives.
        """
        each = functional.softplus(against[rows] - cosines / self.temperature)  # -log(e^p / (e^p + sum of negatives))
        shares = 1 / torch.bincount(rows, minlength=len(against)).to(each.dtype)
        return (each * shares[rows]).sum() / len(against)


@dataclass(frozen=True)
class TripletMargin:
    """max(cos(h, p-) - cos(h, p+) + m, 0) (Balntas et al. 2016).

    Eq. 1b and 2 of Bogatu et al. 2022 print the two cosines the other way round, which would push the premises that
    explain away.
    """

    margin: float

    def __call__(self, positive: Tensor, negative: Tensor) -> Tensor:
        """Cosines (t,) each; the mean over triplets."""
        return torch.clamp(negative - positive + self.margin, min=0).mean()


@dataclass(frozen=True)
class PairwiseContrastive:
    """y d^2 + (1 - y) max(0, m - d)^2 with d = 1 - cos (Hadsell et al. 2006): the `SCL` of Bogatu et al. 2022."""

    margin: float

    def __call__(self, cosines: Tensor, explains: Tensor) -> Tensor:
        """Cosines (p,) and whether each pair is positive, boolean (p,); the mean over pairs."""
        distance = 1 - cosines
        apart = torch.clamp(self.margin - distance, min=0)
        return torch.where(explains, distance.square(), apart.square()).mean()


@dataclass(frozen=True)
class SupervisedContrastive:
    """All positives of a query against all candidates of its batch (Khosla et al. 2020, L_out).

    Other than in `FullCorpusSoftmax` a query's positives stand in each other's denominator.
    """

    temperature: float

    def __call__(self, scores: Tensor, positives: Tensor, excluded: Tensor) -> Tensor:
        """Scores (batch, c) are cosines, masks boolean (batch, c); the mean over queries of that over positives."""
        logits = (scores / self.temperature).masked_fill(excluded, NOTHING)
        each = torch.logsumexp(logits, dim=1, keepdim=True) - scores / self.temperature  # -log of the share, (batch, c)
        return ((each * positives).sum(dim=1) / positives.sum(dim=1)).mean()


@dataclass(frozen=True)
class MultipleNegativesRanking:
    """Cross-entropy of each pair's positive among the candidates of its batch (Henderson et al. 2017)."""

    temperature: float

    def __call__(self, scores: Tensor, positive: Tensor, masked: Tensor) -> Tensor:
        """Scores (p, c) are cosines, `positive` (p,) the column of each pair's own premise, int64.

        `masked` (p, c), boolean, marks candidates that are not negatives of the pair: what else explains its query, and
        what is undecided for it. The own premise always takes part. Returns the mean over pairs.
        """
        return functional.cross_entropy(_kept(scores, positive, masked) / self.temperature, positive)


@dataclass(frozen=True)
class Gist:
    """The same without the candidates that a guide finds too near to the query (Solatorio 2024, GISTEmbed).

    Too near is a cosine above that of the positive less `margin`. Candidates are premises alone: other queries are no
    negatives, and neither are pairs of premises.
    """

    temperature: float
    margin: float = 0.0

    def __call__(self, scores: Tensor, guide: Tensor, positive: Tensor, masked: Tensor) -> Tensor:
        """As MultipleNegativesRanking; `guide` (p, c) holds the guide's cosines."""
        threshold = guide.gather(1, positive[:, None]) - self.margin  # (p, 1)
        return MultipleNegativesRanking(self.temperature)(scores, positive, masked | (guide > threshold))


@dataclass(frozen=True)
class Analogy:
    """y d^2 + (1 - y) max(0, m - d)^2 of both shifts of a : b :: c : d (Diallo et al. 2019; decision 35).

    d1 = 1 - cos(a - b, c - d) compares how each question differs from its answer, d2 = 1 - cos(a - c, b - d) how the
    pairs differ from each other. A shift of length 0 has cosine 0 and no gradient.
    """

    margin: float

    def __call__(self, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], holds: Tensor) -> Tensor:
        """Pairs (a, b) and (c, d) of vectors (q, dim), and whether each analogy holds, boolean (q,).

        Returns the mean over quadruples of the sum over both shifts.
        """
        (a, b), (c, d) = first, second
        cosines = torch.stack([_shift_cosine(a - b, c - d), _shift_cosine(a - c, b - d)])
        distances = 1 - cosines  # (2, q)
        apart = torch.clamp(self.margin - distances, min=0)
        return torch.where(holds, distances.square(), apart.square()).sum(dim=0).mean()


def _shift_cosine(one: Tensor, other: Tensor) -> Tensor:
    """The cosine of shifts (q, dim); 0, without a gradient, where one has no length: a division by it gives 1/0."""
    has_length = ((one != 0).any(dim=1) & (other != 0).any(dim=1))[:, None]
    whole = torch.ones_like(one)
    cosines = functional.cosine_similarity(torch.where(has_length, one, whole), torch.where(has_length, other, whole))
    return torch.where(has_length[:, 0], cosines, torch.zeros_like(cosines))


class NliClassification(nn.Module):
    """Softmax over a linear layer of (u, v, |u - v|) (Reimers and Gurevych 2019).

    u is the query, which is the hypothesis of the inference, and v the premise. The layer is not part of a checkpoint.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(3 * dim, 3)

    def forward(self, queries: Tensor, premises: Tensor, classes: Tensor) -> Tensor:
        """Vectors (p, dim) each and classes (p,), int64; the mean cross-entropy."""
        features = torch.cat([queries, premises, (queries - premises).abs()], dim=1)  # (p, 3 dim)
        return functional.cross_entropy(self.classifier(features), classes)


def drift(vectors: Tensor, pretrained: Tensor) -> Tensor:
    """||Es(h) - Eh(h)||^2, the mean over texts; (n, dim) each.

    The regularisation of Eq. 2, and of the paper's SCL, of one side. The premise terms are constant while premises are
    frozen (and zero where Ep = Es): they have no gradient and are computed in modes SIAMESE and DUAL alone.
    """
    return (vectors - pretrained).square().sum(dim=1).mean()


def _kept(scores: Tensor, positive: Tensor, masked: Tensor) -> Tensor:
    """Scores without the masked ones; each pair keeps its own premise."""
    own = functional.one_hot(positive, scores.shape[1]).bool()
    return scores.masked_fill(masked & ~own, NOTHING)

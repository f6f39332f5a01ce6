"""The losses: formulas over cosines and masks, no data and no encoder.

Cosines come from unit vectors. Where premises are frozen only the query side of a cosine carries a gradient; no
formula depends on that. `jobs/losses.py` says what each is computed over, and its defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

MASKED = float("-inf")  # the logit of what takes no part

# Classes of natural language inference, premise to hypothesis.
ENTAILMENT, NEUTRAL, CONTRADICTION = range(3)

Formula = Callable[..., Any]  # tensors and Options to a scalar


class Options(Protocol):
    """The numbers of a job's configuration that formulas have."""

    temperature: float  # what cosines are divided by in a softmax
    margin: float  # the cosine that is far enough
    guide_margin: float  # the guide's cosine below the positive that is far enough


def full_corpus_softmax(cosines: Tensor, rows: Tensor, against: Tensor, options: Options) -> Tensor:
    """Softmax of each positive against every premise that may count as a negative; siblings are none.

    Cosines (p,) of positive pairs and the query of each, `rows` (p,), int64; `against` (batch,) is the log of the sum
    of e^(cosine / temperature) over a query's negatives, which `CorpusNegatives` adds up. Each query weighs the same.
    """
    each = functional.softplus(against[rows] - cosines / options.temperature)  # -log(e^p / (e^p + sum of negatives))
    shares = 1 / torch.bincount(rows, minlength=len(against)).to(each.dtype)
    return (each * shares[rows]).sum() / len(against)


def triplet_margin(positive: Tensor, negative: Tensor, options: Options) -> Tensor:
    """max(cos(h, p-) - cos(h, p+) + m, 0) (Balntas et al. 2016); cosines (t,) each, the mean over triplets.

    Eq. 1b and 2 of Bogatu et al. 2022 print the two cosines the other way round, which would push the premises that
    explain away.
    """
    return torch.clamp(negative - positive + options.margin, min=0).mean()


def pairwise_contrastive(cosines: Tensor, explains: Tensor, options: Options) -> Tensor:
    """Y d^2 + (1 - y) max(0, m - d)^2 with d = 1 - cos (Hadsell et al. 2006): the `SCL` of Bogatu et al. 2022.

    Cosines (p,) and whether each pair is positive, boolean (p,); the mean over pairs.
    """
    return _contrastive(cosines, explains, options).mean()


def supervised_contrastive(scores: Tensor, positives: Tensor, excluded: Tensor, options: Options) -> Tensor:
    """All positives of a query against all candidates of its batch (Khosla et al. 2020, L_out).

    Other than in `full_corpus_softmax` a query's positives stand in each other's denominator. Scores (batch, c) are
    cosines, masks boolean (batch, c); the mean over queries of that over positives.
    """
    logits = (scores / options.temperature).masked_fill(excluded, MASKED)
    each = torch.logsumexp(logits, dim=1, keepdim=True) - scores / options.temperature  # -log of the share, (batch, c)
    return ((each * positives).sum(dim=1) / positives.sum(dim=1)).mean()


def multiple_negatives_ranking(
    scores: Tensor, positive: Tensor, masked: Tensor, _guide: Tensor | None, options: Options
) -> Tensor:
    """Cross-entropy of each pair's positive among the candidates of its batch (Henderson et al. 2017).

    Scores (p, c) are cosines, `positive` (p,) the column of each pair's own premise, int64. `masked` (p, c), boolean,
    marks candidates that are not negatives of the pair: what else explains its query, and what is undecided for it. The
    pair's own premise always takes part. Returns the mean over pairs.
    """
    own = functional.one_hot(positive, scores.shape[1]).bool()
    return functional.cross_entropy(scores.masked_fill(masked & ~own, MASKED) / options.temperature, positive)


def gist(scores: Tensor, positive: Tensor, masked: Tensor, guide: Tensor, options: Options) -> Tensor:
    """The same without the candidates that a guide finds too near to the query (Solatorio 2024, GISTEmbed).

    Too near is a cosine of the `guide` (p, c) above that of the positive less `guide_margin`. Candidates are premises
    alone: other queries are no negatives, and neither are pairs of premises.
    """
    threshold = guide.gather(1, positive[:, None]) - options.guide_margin  # (p, 1)
    return multiple_negatives_ranking(scores, positive, masked | (guide > threshold), None, options)


def analogy(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], holds: Tensor, options: Options) -> Tensor:
    """Y d^2 + (1 - y) max(0, m - d)^2 of both shifts of a : b :: c : d (Diallo et al. 2019; decision 35).

    d1 = 1 - cos(a - b, c - d) compares how each question differs from its answer, d2 = 1 - cos(a - c, b - d) how the
    pairs differ from each other. A shift of length 0 has cosine 0 and no gradient. Pairs (a, b) and (c, d) of vectors
    (q, dim), and whether each analogy holds, boolean (q,); the mean over quadruples of the sum over both shifts.
    """
    (a, b), (c, d) = first, second
    cosines = torch.stack([_shift_cosine(a - b, c - d), _shift_cosine(a - c, b - d)])  # (2, q)
    return _contrastive(cosines, holds, options).sum(dim=0).mean()


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


def regression(logits: Tensor, targets: Tensor, grades: Tensor | None) -> Tensor:
    """Squared errors (p,) of a cross-encoder's logits (p, 1), or cross-entropies of a distribution over `grades` (g,).

    Each of the targets (p,) is among the grades.
    """
    if grades is None:
        return (logits[:, 0] - targets) ** 2
    return functional.cross_entropy(logits, torch.searchsorted(grades, targets), reduction="none")


def drift(vectors: Tensor, pretrained: Tensor) -> Tensor:
    """||Es(h) - Eh(h)||^2, the mean over texts; (n, dim) each.

    The regularisation of Eq. 2, and of the paper's SCL, of one side. The premise terms are constant while premises are
    frozen (and zero where Ep = Es): they have no gradient and are computed in modes SIAMESE and DUAL alone.
    """
    return (vectors - pretrained).square().sum(dim=1).mean()


def _contrastive(cosines: Tensor, holds: Tensor, options: Options) -> Tensor:
    distances = 1 - cosines
    apart = torch.clamp(options.margin - distances, min=0)
    return torch.where(holds, distances.square(), apart.square())


def _shift_cosine(one: Tensor, other: Tensor) -> Tensor:
    """The cosine of shifts (q, dim); 0, without a gradient, where one has no length: a division by it gives 1/0."""
    has_length = ((one != 0).any(dim=1) & (other != 0).any(dim=1))[:, None]
    whole = torch.ones_like(one)
    cosines = functional.cosine_similarity(torch.where(has_length, one, whole), torch.where(has_length, other, whole))
    return torch.where(has_length[:, 0], cosines, torch.zeros_like(cosines))

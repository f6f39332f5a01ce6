"""The objectives on a frozen index. Premise vectors are constants; only query vectors carry a gradient."""

from __future__ import annotations

import torch
from torch import Tensor


def full_corpus_softmax(
    scores: Tensor, positives: Tensor, excluded: Tensor, refused: Tensor, *, temperature: float, refused_weight: float
) -> Tensor:
    """Softmax of each positive against every premise that may count as a negative.

    `scores` (batch, n) are cosines; `positives`, `excluded` and `refused` (batch, n) are boolean. Excluded premises
    (own text, other splits, undecided) are no negatives, and neither are sibling positives. Refused ones weigh
    `refused_weight` times an unjudged one. Returns the mean over queries of the mean over their positives.
    """
    logits = scores / temperature
    negatives = logits + refused * torch.log(torch.tensor(refused_weight, dtype=logits.dtype))
    negatives = negatives.masked_fill(positives | excluded, float("-inf"))
    against = torch.logsumexp(negatives, dim=1, keepdim=True)  # (batch, 1)
    # -log(e^p / (e^p + sum of negatives)) = softplus(logsumexp(negatives) - p)
    each = torch.nn.functional.softplus(against - logits) * positives
    return (each.sum(dim=1) / positives.sum(dim=1)).mean()


def triplet_margin(positive: Tensor, negative: Tensor, *, margin: float) -> Tensor:
    """max(cos(h, p-) - cos(h, p+) + m, 0), the mean over triplets; cosines (t,) each.

    Balntas et al. 2016. Eq. 1b and 2 of Bogatu et al. 2022 print the two cosines the other way round, which would push
    the premises that explain away.
    """
    return torch.clamp(negative - positive + margin, min=0).mean()


def drift(queries: Tensor, pretrained: Tensor) -> Tensor:
    """||Es(h) - Eh(h)||^2, the mean over queries; (batch, dim) each.

    The regularisation of Eq. 2. Its premise terms are constant while premises are frozen (and zero where Ep = Es), so
    they have no gradient and are not computed.
    """
    return (queries - pretrained).square().sum(dim=1).mean()

"""The weights that are kept of an epoch: the trained ones, with a share of those that training began with.

What lies between both is often better than either on texts unlike those of training (Wortsman et al. 2022, "Robust
fine-tuning of zero-shot models").
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from services.trainer.learning.query_encoder import Encoders


class KeptWeights:
    """Made before training, of encoders as they begin."""

    def __init__(self, encoders: Encoders, share: float) -> None:
        """`share` of the initial weights, from 0 to 1."""
        trained = [encoders.query, *([encoders.second] if encoders.second is not None else [])]
        self._weights = [weight for encoder in trained for weight in encoder.parameters()] if share else []
        self._initial = [weight.detach().clone() for weight in self._weights]
        self._share = share

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block the encoders have the weights that are kept, afterwards those to train on again."""
        trained = [weight.detach().clone() for weight in self._weights]
        with torch.no_grad():
            for weight, initial in zip(self._weights, self._initial, strict=True):
                weight.lerp_(initial, self._share)
        try:
            yield
        finally:
            with torch.no_grad():
                for weight, before in zip(self._weights, trained, strict=True):
                    weight.copy_(before)

"""A recurrent encoder over frozen word vectors, in torch: two GRUs, one in each direction. Importing it imports torch.

It stands where a transformer stands: `services.transformer` pools its token vectors, with `max` as Diallo et al. 2019,
and config.json names it by its `model_type`. The word vectors are part of its tensors and are never trained.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from types import SimpleNamespace
from typing import Any, Self

import torch
from torch import Tensor, nn

from aeenc.errors import FailedPrecondition

MODEL_TYPE = "aeenc-bigru"


@dataclass(frozen=True)
class BiGruConfig:
    """The values of config.json. `hidden_size` is that of a token's vector, half of it from each direction."""

    vocab_size: int
    word_size: int
    hidden_size: int
    dropout: float = 0.6
    pad_token_id: int = 0
    model_type: str = MODEL_TYPE

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Self:
        """Reads a config.json. Raises FailedPrecondition for one that lacks a value."""
        known = {one.name: record[one.name] for one in fields(cls) if one.name in record}
        try:
            return cls(**known)
        except TypeError as error:
            raise FailedPrecondition(f"config.json of a {MODEL_TYPE} is incomplete ({error}); write it again") from None

    def to_dict(self) -> dict[str, Any]:
        """Returns what config.json has."""
        return asdict(self)


class _Config(SimpleNamespace):
    """What the exporter asks of the configuration of any model."""

    _attn_implementation = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns the values."""
        return dict(vars(self))


class BiGru(nn.Module):
    """Token ids to token vectors, (batch, length, hidden_size); nothing behind a text's end changes them."""

    def __init__(self, config: BiGruConfig) -> None:
        super().__init__()
        if config.hidden_size % 2:
            raise FailedPrecondition(f"hidden_size is {config.hidden_size}; give an even one, half for each direction")
        self.config = _Config(**config.to_dict())
        half = config.hidden_size // 2
        self.words = nn.Embedding(config.vocab_size, config.word_size, padding_idx=config.pad_token_id)
        self.words.weight.requires_grad_(False)
        self.dropout = nn.Dropout(config.dropout)
        self.forwards = nn.GRU(config.word_size, half, batch_first=True)
        self.backwards = nn.GRU(config.word_size, half, batch_first=True)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        """Takes ids (batch, length) with a mask that is 1 at tokens, which stand at the left."""
        words = self.dropout(self.words(input_ids))  # (batch, length, word_size)
        lengths = attention_mask.sum(dim=1)  # (batch,)
        compute = self._exported if torch.onnx.is_in_onnx_export() else self._eager
        return SimpleNamespace(last_hidden_state=compute(words, lengths))

    def _eager(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Reads each text from both ends. The second direction gets the words mirrored; so padding stays behind."""
        positions = torch.arange(words.shape[1], device=words.device)[None]  # (1, length)
        last = lengths[:, None] - 1
        mirrored = torch.where(positions <= last, last - positions, positions).unsqueeze(-1)
        first = self.forwards(words)[0]
        second = self.backwards(torch.gather(words, 1, mirrored.expand(-1, -1, words.shape[2])))[0]
        second = torch.gather(second, 1, mirrored.expand(-1, -1, second.shape[2]))
        return torch.cat([first, second], dim=2)

    def _exported(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Computes the same by ONNX's own operator: the exporter would unroll a GRU to the length of its example."""
        directions: tuple[Any, Any] = (self.forwards, self.backwards)
        inputs = torch.stack([_gates(one.weight_ih_l0) for one in directions])  # (2, 3 half, word_size)
        states = torch.stack([_gates(one.weight_hh_l0) for one in directions])  # (2, 3 half, half)
        biases = torch.stack([torch.cat([_gates(one.bias_ih_l0), _gates(one.bias_hh_l0)]) for one in directions])
        batch, length, half = words.shape[0], words.shape[1], self.forwards.hidden_size
        found = torch.onnx.ops.symbolic(
            "GRU",
            (words.transpose(0, 1), inputs, states, biases, lengths.to(torch.int32)),
            {"hidden_size": half, "direction": "bidirectional", "linear_before_reset": 1},
            dtype=words.dtype,
            shape=(length, 2, batch, half),
        )
        return found.permute(2, 0, 1, 3).reshape(batch, length, 2 * half)


def _gates(weights: Tensor) -> Tensor:
    """Reorders gates, one below the other, from reset, update, new (torch) to update, reset, hidden (ONNX)."""
    reset, update, new = weights.chunk(3)
    return torch.cat([update, reset, new])

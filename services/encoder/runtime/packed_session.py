"""A torch session for a GPU that computes texts of different lengths as one row of tokens, without padding.

Padding costs twice: its tokens are computed, and attention with a mask runs in slower kernels than flash attention over
packed texts. On an H100, a batch of short texts takes half the time that it takes in `TorchSession`
(docs/experiments/encoder.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from services.encoder.runtime.runners import Ids
from services.transformer import DENSE, PooledTransformer

ATTENTION = "aeenc_packed"  # its name among the implementations of transformers
# Models that take positions, hand arguments down to the attention and add nothing to it by position, and whether their
# positions begin behind the padding's id.
AFTER_PADDING = {"bert": False, "roberta": True, "xlm-roberta": True}
AMPERE = (8, 0)  # flash attention needs it
HEAD_DIMS = 8  # it takes multiples of this, up to the largest
LARGEST_HEAD = 256


def can_pack(config: Any, device: str) -> bool:
    """Tells whether this model's attention can be packed on this device."""
    if not device.startswith("cuda") or getattr(config, "model_type", "") not in AFTER_PADDING:
        return False
    head = config.hidden_size // config.num_attention_heads
    fits = head % HEAD_DIMS == 0 and head <= LARGEST_HEAD
    has_flash_attention = torch.backends.cuda.is_flash_attention_available() and torch.version.hip is None
    return bool(fits and has_flash_attention and torch.cuda.get_device_capability(device) >= AMPERE)


class PackedSession:
    """Computes `sentence_embedding` (n, dim) float32 in half precision; pooling and normalization in single.

    Thread-safe: it keeps no state. It owns the model and turns its weights into half precision.
    """

    pads = False

    def __init__(self, model: PooledTransformer, device: str) -> None:
        self._model, self._device = model, device
        transformer: Any = model.transformer
        transformer.half().set_attn_implementation(ATTENTION)
        if hasattr(transformer, DENSE):
            getattr(transformer, DENSE).float()
        config = transformer.config
        self._first = config.pad_token_id + 1 if AFTER_PADDING[config.model_type] else 0

    def run(self, _outputs: Sequence[str] | None, feeds: dict[str, Ids]) -> Sequence[Any]:
        """Computes the vectors from `input_ids` and `attention_mask`, (n, length) int64 each."""
        inside = feeds["attention_mask"].astype(bool)
        rows, positions = inside.nonzero()
        ids = torch.from_numpy(feeds["input_ids"][rows, positions]).to(self._device)
        lengths = torch.from_numpy(inside.sum(1)).to(self._device)
        with torch.inference_mode():
            bounds = nn.functional.pad(lengths.cumsum(0), (1, 0))
            placed = torch.arange(len(rows), device=self._device)
            placed = placed - bounds[:-1].repeat_interleave(lengths, output_size=len(rows)) + self._first
            hidden = self._model.transformer(
                input_ids=ids[None],
                position_ids=placed[None],
                token_type_ids=torch.zeros_like(ids)[None],
                bounds=bounds.int(),
                longest=inside.shape[1],
            ).last_hidden_state[0]
            return [self._pool(hidden.float(), lengths, bounds).cpu().numpy()]

    def _pool(self, hidden: Tensor, lengths: Tensor, bounds: Tensor) -> Tensor:
        """Pools the vectors of all tokens to a unit vector for each text, as `PooledTransformer.pool` does."""
        if self._model.pooling == "cls":
            pooled = hidden[bounds[:-1]]
        else:
            pooled = torch.segment_reduce(hidden, self._model.pooling, lengths=lengths, unsafe=True)  # they fit
        if hasattr(self._model.transformer, DENSE):
            pooled = getattr(self._model.transformer, DENSE)(pooled)
        return nn.functional.normalize(pooled, dim=1)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    bounds: Tensor,
    longest: int,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attends within each text: (1, heads, tokens, head) to (1, tokens, heads, head); texts begin at `bounds`."""
    del module, attention_mask
    queries, keys, values = (one[0].transpose(0, 1) for one in (query, key, value))
    found = varlen_attn(queries, keys, values, bounds, bounds, longest, longest)
    assert isinstance(found, Tensor)  # a pair only where more is asked for
    return found[None], None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attend)

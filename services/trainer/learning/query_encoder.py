"""A transformer with pooling and normalisation, as torch sees it; and texts as padded batches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from services.trainer.space import SpaceSpec

ENCODE_BATCH = 64


class QueryEncoder(nn.Module):
    """Token ids to unit vectors. `forward` is exactly what is exported."""

    def __init__(self, transformer: nn.Module, spec: SpaceSpec) -> None:
        super().__init__()
        self.transformer = transformer
        self.spec = spec

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Unit vectors (batch, dim) of `input_ids` (batch, length), int64; `attention_mask` is 1 at tokens."""
        # The additive mask in four dimensions is what the exporter can follow.
        blocked = (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * torch.finfo(torch.float32).min
        hidden = self.transformer(
            input_ids=input_ids,
            attention_mask=blocked.expand(-1, -1, input_ids.shape[1], -1),
            token_type_ids=torch.zeros_like(input_ids),
        ).last_hidden_state  # (batch, length, dim)
        if self.spec.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            kept = attention_mask.unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(pooled, dim=1)


class TextBatches:
    """A checkpoint's tokenizer: texts to token ids, cut at the model's maximum, and ids to padded tensors."""

    def __init__(self, directory: Path, spec: SpaceSpec, pad_id: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(spec.max_tokens)
        self._pad_id = pad_id

    def ids(self, texts: Sequence[str], prefix: str) -> list[list[int]]:
        """Token ids of each text with its role's prefix."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch([prefix + text for text in texts])]

    def pad(self, ids: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
        """`input_ids` and `attention_mask`, (batch, longest) each."""
        length = max(len(tokens) for tokens in ids)
        input_ids = torch.full((len(ids), length), self._pad_id, dtype=torch.int64)
        mask = torch.zeros_like(input_ids)
        for row, tokens in enumerate(ids):
            input_ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        return input_ids.to(device), mask.to(device)


def load_encoder(directory: Path, spec: SpaceSpec, weights: Mapping[str, Tensor] | None = None) -> QueryEncoder:
    """The encoder of a checkpoint's or base model's directory; `weights` replace those of the directory."""
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    # Eager attention is plain matrix products: the exporter keeps them, and on a CPU it is no slower at these lengths.
    transformer: nn.Module = AutoModel.from_config(config, attn_implementation="eager")  # type: ignore[no-untyped-call]
    state = dict(weights) if weights is not None else load_file(directory / "model.safetensors")
    missing, unexpected = transformer.load_state_dict(state, strict=False)
    wrong = [name for name in (*missing, *unexpected) if not name.endswith("position_ids")]
    if wrong:
        raise ValueError(f"{directory / 'model.safetensors'} does not fit its config.json: {', '.join(wrong[:5])}")
    return QueryEncoder(transformer.eval(), spec)


def pad_id_of(directory: Path) -> int:
    """The token id that pads, from config.json."""
    return int(json.loads((directory / "config.json").read_bytes()).get("pad_token_id") or 0)


@torch.inference_mode()
def encode(encoder: QueryEncoder, batches: TextBatches, texts: Sequence[str], prefix: str) -> Any:
    """Unit vectors (n, dim) float32 of texts, in length-sorted batches, without dropout."""
    training = encoder.training
    encoder.eval()
    device = next(encoder.parameters()).device
    ids = batches.ids(texts, prefix)
    order = sorted(range(len(ids)), key=lambda n: len(ids[n]))
    vectors = torch.empty(len(ids), encoder.spec.dim)
    for start in range(0, len(order), ENCODE_BATCH):
        rows = order[start : start + ENCODE_BATCH]
        vectors[rows] = encoder(*batches.pad([ids[n] for n in rows], device)).cpu()
    encoder.train(training)
    return vectors.numpy()

"""Tiny random models in the layouts of those of the paper's Table 1 that are no sentence encoders of the usual kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_sentence_models import POSITIONS, fast_tokenizer
from tinymodel import DIM

_BERT: dict[str, Any] = {
    "hidden_size": DIM,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 0,
}


def write_simcse(directory: Path) -> Path:
    """A BERT without a file that says how it is pooled, as princeton-nlp publishes SimCSE."""
    from transformers import BertConfig, BertModel

    return _write(directory, BertModel, BertConfig, **_BERT)


def write_dpr(directory: Path, role: str = "Question", **fields: Any) -> Path:
    """A DPR encoder of questions or contexts (`Context`): a BERT inside, of which the vector of [CLS] is taken."""
    import transformers

    name = "DPRReader" if role == "Reader" else f"DPR{role}Encoder"
    return _write(directory, getattr(transformers, name), transformers.DPRConfig, **_BERT, **fields)


def _write(directory: Path, architecture: Any, config: Any, **fields: Any) -> Path:
    import torch

    tokenizer = fast_tokenizer(0)
    torch.manual_seed(1)
    model = architecture(config(vocab_size=len(tokenizer), **fields))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(4)  # attention that is not uniform, so that a wrong mask or position shows
    model.save_pretrained(directory, safe_serialization=True)
    tokenizer.save_pretrained(directory)
    return directory

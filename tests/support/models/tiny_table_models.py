"""Tiny random models in the layouts of those of the paper's Table 1 that are no sentence encoders of the usual kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.models.tiny_sentence_models import POSITIONS, fast_tokenizer, write_json, write_modules
from support.models.tinymodel import DIM

T5_DIM = 24  # of T5's own vectors; the linear layer makes DIM of them
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


def write_sentence_t5(directory: Path, bias: bool = False) -> Path:
    """An encoder of T5 with a linear layer after mean pooling, laid out as sentence-transformers publishes it."""
    import torch
    from safetensors.torch import save_file
    from transformers import T5Config, T5EncoderModel

    sizes = {"d_model": T5_DIM, "d_kv": 12, "d_ff": 64, "num_layers": 2, "num_heads": 2}
    _write(directory, T5EncoderModel, T5Config, scale=1, **sizes, pad_token_id=0)  # T5 begins with large ones
    write_modules(directory, ["Pooling", "Dense", "Normalize"])
    write_json(
        directory / "1_Pooling/config.json", {"word_embedding_dimension": T5_DIM, "pooling_mode_mean_tokens": True}
    )
    features = {"in_features": T5_DIM, "out_features": DIM, "bias": bias}
    identity = "torch.nn.modules.linear.Identity"
    write_json(directory / "2_Dense/config.json", {**features, "activation_function": identity})
    layer = torch.nn.Linear(T5_DIM, DIM, bias=bias)
    tensors = {f"linear.{name}": tensor for name, tensor in layer.state_dict().items()}
    save_file(tensors, directory / "2_Dense/model.safetensors")
    write_json(directory / "sentence_bert_config.json", {"max_seq_length": 48, "do_lower_case": False})
    return directory


def _write(directory: Path, architecture: Any, config: Any, scale: float = 4, **fields: Any) -> Path:
    import torch

    tokenizer = fast_tokenizer(0)
    torch.manual_seed(1)
    model = architecture(config(vocab_size=len(tokenizer), **fields))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(scale)  # attention that is not uniform, so that a wrong mask or position shows
    model.save_pretrained(directory, safe_serialization=True)
    tokenizer.save_pretrained(directory)
    return directory

"""A base model small enough to train in a second: two BERT layers, 32 dimensions, in a sentence-transformers layout."""

from __future__ import annotations

from pathlib import Path

from support.models.tinymodel import DIM, tiny_tokenizer


def write_tiny_base(directory: Path, dropout: float = 0.1) -> Path:
    """Writes config.json, model.safetensors and tokenizer.json into `directory`."""
    import torch
    from transformers import BertConfig, BertModel

    tokenizer = tiny_tokenizer()
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=DIM,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = BertModel(config)
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory, safe_serialization=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory

"""A cross-encoder small enough to export in seconds: two BERT layers, 32 dimensions, one label, random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tinymodel import DIM, tiny_tokenizer
from tokenizers import processors

MAX_TOKENS = 64


def write_tiny_cross_encoder(
    directory: Path, *, labels: int = 1, seed: int = 0, architecture: str = "bert", pad_id: int = 0, typed: bool = True
) -> Path:
    """Writes a sequence classifier and its tokenizer as transformers saves them."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerFast

    tokenizer = tiny_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    # RoBERTa counts positions from behind the padding id, and has no token types.
    other: dict[str, Any] = {"type_vocab_size": 1} if architecture == "roberta" else {}
    config = AutoConfig.for_model(
        architecture,
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=DIM,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=MAX_TOKENS,
        num_labels=labels,
        pad_token_id=pad_id,
        initializer_range=0.3,  # with the usual 0.02 every pair would score nearly the same
        **other,
    )
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_config(config)
    model.save_pretrained(directory, safe_serialization=True)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=MAX_TOKENS,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "attention_mask", *(["token_type_ids"] if typed else [])],
    ).save_pretrained(directory)
    return directory

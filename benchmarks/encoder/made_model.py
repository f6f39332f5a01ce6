"""A sentence encoder of MiniLM's shape and texts for it, made up from a seed: speed does not depend on weights.

Nothing is downloaded. The tokenizer learns its words from those of the texts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

# Words of a text, and texts, by kind.
SIZES = {"facts": ((8, 24), 16_384), "paragraphs": ((90, 110), 4_096)}
WORDS = [
    f"{a}{b}{c}{d}"
    for a in ("ba", "ce", "di", "fo", "gu")
    for b in "lmnrst"
    for c in ("a", "er", "ing", "s")
    for d in ("", "ton")
]
MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MAX_TOKENS = 512


def make_texts(share: float = 1.0) -> dict[str, list[str]]:
    """Texts by kind, whose words follow Zipf's distribution. `share` of their number."""
    rng = random.Random(0)
    weights = [1 / rank for rank in range(1, len(WORDS) + 1)]
    return {
        kind: [" ".join(rng.choices(WORDS, weights, k=rng.randint(*words))) for _ in range(max(8, int(count * share)))]
        for kind, (words, count) in SIZES.items()
    }


def make_model(directory: Path, shape: Mapping[str, int] = MINILM) -> Path:
    """Writes the model and its tokenizer as a sentence-transformers directory."""
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=2_000, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(WORDS, trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=MAX_TOKENS, **names).save_pretrained(directory)
    torch.manual_seed(0)
    config = BertConfig(vocab_size=30_522, **shape)
    BertModel(config, add_pooling_layer=False).save_pretrained(directory)
    pooling = directory / "1_Pooling"
    pooling.mkdir(exist_ok=True)
    wanted = {"word_embedding_dimension": shape["hidden_size"], "pooling_mode_mean_tokens": True}
    (pooling / "config.json").write_text(json.dumps(wanted))
    package = "sentence_transformers.models"
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{package}.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{package}.Pooling"},
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    return directory

"""The shared setting of the GPU benchmark: the device and its peak rate, made-up texts and models.

A card's bars are no bars for a CPU, on which the script is only tried.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn

from aeenc.errors import FailedPrecondition

if TYPE_CHECKING:
    from services.onnx_devices import Placement

ROUNDS = 7
SIDE, PRODUCTS = 8192, 20  # of the matrix products that say what the card can do
VOCABULARY = 30_522

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
MODEL_TOKENS = 512


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
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=MODEL_TOKENS, **names).save_pretrained(
        directory
    )
    torch.manual_seed(0)
    config = BertConfig(vocab_size=VOCABULARY, **shape)
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


class NotMeasured(Exception):
    """A part lacks a package or a device."""


@dataclass(frozen=True)
class Setting:
    """The options of all parts: the `side` of matrix products, the `share` of texts, rows and queries to measure."""

    model: Path
    device: str
    rounds: int = ROUNDS
    share: float = 1.0
    side: int = SIDE
    is_made_up: bool = True  # the model

    @property
    def on_card(self) -> bool:
        """Whether a GPU is measured."""
        return self.device.startswith("cuda")

    @property
    def is_whole(self) -> bool:
        """Whether what is measured may be kept."""
        return self.on_card and self.is_made_up and (self.rounds, self.share, self.side) == (ROUNDS, 1.0, SIDE)

    @cached_property
    def texts(self) -> dict[str, list[str]]:
        """The texts by kind."""
        return make_texts(self.share)

    @property
    def name(self) -> str:
        """The name of the card."""
        return torch.cuda.get_device_name(self.device) if self.on_card else self.device

    def wait(self) -> None:
        """Waits until the card has computed what it was given."""
        if self.on_card:
            torch.cuda.synchronize(self.device)

    def clock(self) -> float:
        """The time in seconds once the card has computed what it was given."""
        self.wait()
        return time.perf_counter()

    def count(self, whole: int, least: int = 8) -> int:
        """The share of so many."""
        return max(least, int(whole * self.share))

    def least(self, bar: float) -> float:
        """A bar that a card must reach; others need not."""
        return bar if self.on_card else 0.0

    def most(self, bar: float) -> float:
        """A bar that a card must not pass; others may."""
        return bar if self.on_card else math.inf

    def placement(self, service: str) -> Placement:
        """Where onnxruntime computes. Raises NotMeasured where that is not this device."""
        from services.onnx_devices import providers_of

        try:
            return providers_of(service, self.device)
        except FailedPrecondition as error:
            raise NotMeasured(error.message) from error


def product_flops(setting: Setting) -> float:
    """Operations a second of large matrix products in float16 (bfloat16 on a CPU)."""
    kind = torch.float16 if setting.on_card else torch.bfloat16
    left, right = (torch.randn(setting.side, setting.side, device=setting.device, dtype=kind) for _ in range(2))
    left @ right
    begun = setting.clock()
    for _ in range(PRODUCTS):
        left @ right
    return PRODUCTS * 2 * float(setting.side) ** 3 / (setting.clock() - begun)


def flops_of(transformer: nn.Module, lengths: Sequence[int]) -> float:
    """Operations for texts of so many tokens: two for each weight of a layer and token, and attention over the text."""
    weights = sum(one.numel() for name, one in transformer.named_parameters() if "embeddings" not in name)
    config: Any = transformer.config
    pairs = sum(length * length for length in lengths)
    return 2 * weights * sum(lengths) + 4 * config.num_hidden_layers * config.hidden_size * pairs

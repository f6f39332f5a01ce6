"""A cross-encoder small enough to export in seconds (two layers, 32 dimensions), its checkpoint and its scores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, processors

from services.store.artifacts import Artifact, ArtifactStore
from support.models.tinymodel import DIM, tiny_tokenizer

MAX_TOKENS = 64
PAIRS = [
    ("a magnet attracts iron", "a nail is made of iron"),
    ("sun", "moon"),
    ("the sun is a star", "the earth can move because the sun is a kind of star with more heat than the moon"),
    ("ice can melt and water can boil in the heat of the sun", "cold"),
    ("a plant is food", "a rabbit can eat the leaf of a plant"),
]


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


@dataclass(frozen=True)
class Exported:
    """A tiny cross-encoder's directory and the checkpoint that was made of it."""

    directory: Path
    artifact: Artifact

    def scores(self, pairs: list[tuple[str, str]]) -> Any:
        """What the checkpoint gives for pairs in one batch, from nothing but its own files."""
        import onnxruntime

        tokenizer = Tokenizer.from_file(str(self.artifact.file("tokenizer.json")))
        tokenizer.enable_truncation(self.artifact.meta["max_tokens"])
        tokenizer.enable_padding(pad_id=self.artifact.meta["pad_id"])
        session = onnxruntime.InferenceSession(
            self.artifact.file("model.onnx").read_bytes(), providers=["CPUExecutionProvider"]
        )
        encodings = tokenizer.encode_batch(pairs)
        columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        names = [put.name for put in session.get_inputs()]
        feeds = {name: np.array([getattr(encoding, columns[name]) for encoding in encodings]) for name in names}
        (output,) = session.get_outputs()
        assert output.name == "score"
        return session.run(None, feeds)[0]


def export_tiny_cross_encoder(root: Path, **options: Any) -> Exported:
    """Writes one and exports it in this process."""
    from services.trainer.learning.cross_encoders.cross_encoder import export_cross_encoder

    directory = write_tiny_cross_encoder(root / "model", **options)
    store = ArtifactStore(root / "artifacts")
    version = export_cross_encoder(store, {"directory": str(directory), "base_model": "tiny"})
    return Exported(directory, store.open("checkpoints", version))


def reference(directory: Path, pairs: list[tuple[str, str]]) -> Any:
    """transformers' logits, each pair alone."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    with torch.inference_mode():
        logits = [model(**tokenizer(*pair, return_tensors="pt", truncation=True)).logits for pair in pairs]
    return torch.cat(logits)[:, 0].numpy()


def take_head(directory: Path) -> None:
    """Leaves a sentence encoder's tensors, under the configuration of a cross-encoder."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    save_file({name: t for name, t in tensors.items() if "classifier" not in name}, directory / "model.safetensors")

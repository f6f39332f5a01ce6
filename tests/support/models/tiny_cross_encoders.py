"""Tiny models of pairs: a cross-encoder of two layers, its checkpoint and scores; a classifier made without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tokenizers import Tokenizer

from services.store.artifacts import Artifact, ArtifactStore
from support.made_once import made_once
from support.models.tiny_base_models import fast_tokenizer
from support.models.tiny_checkpoints import AXES, DIM, model_bytes, tiny_tokenizer

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
    from transformers import AutoConfig, AutoModelForSequenceClassification

    tokenizer = tiny_tokenizer()
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
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if typed else [])]
    fast_tokenizer(tokenizer, model_max_length=MAX_TOKENS, model_input_names=names).save_pretrained(directory)
    return directory


@dataclass(frozen=True)
class Exported:
    """A tiny cross-encoder's directory and the checkpoint that was made of it."""

    directory: Path
    artifact: Artifact

    def scores(self, pairs: list[tuple[str, str]]) -> Any:
        """The checkpoint's scores of pairs in one batch, from nothing but its own files."""
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
    from services.trainer.train.export.cross_encoder import export_cross_encoder

    directory = write_tiny_cross_encoder(root / "model", **options)
    store = ArtifactStore(root / "artifacts")
    version = export_cross_encoder(store, {"directory": str(directory), "base_model": "tiny"})
    return Exported(directory, store.open("checkpoints", version))


def shared_cross_encoder(factory: pytest.TempPathFactory) -> Exported:
    """A copy of the one that all processes of a run share."""
    root, version = made_once(factory, "cross", lambda path: export_tiny_cross_encoder(path).artifact.id)
    return Exported(root / "model", ArtifactStore(root / "artifacts").open("checkpoints", version))


def reference(directory: Path, pairs: list[tuple[str, str]]) -> Any:
    """transformers' classifier_logits, each pair alone."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    with torch.inference_mode():
        scores = [model(**tokenizer(*pair, return_tensors="pt", truncation=True)).logits for pair in pairs]
    return torch.cat(scores)[:, 0].numpy()


def take_head(directory: Path) -> None:
    """Leaves a sentence encoder's tensors, under the configuration of a cross-encoder."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    save_file({name: t for name, t in tensors.items() if "classifier" not in name}, directory / "model.safetensors")


def write_tiny_classifier(
    folder: Path, outputs: int, *, id2label: dict[str, str] | None = None, typed: bool = False
) -> Any:
    """Writes a model whose classifier_logits are the sums of a table's rows over the tokens; returns the table.

    If `typed`, the tokens of the second text count twice. `classifier_logits` computes the same from the table.
    """
    folder.mkdir(exist_ok=True)
    tokenizer = tiny_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"max_position_embeddings": 64, **({"id2label": id2label} if id2label else {})}
    (folder / "config.json").write_text(json.dumps(config))
    table = np.random.default_rng(3).normal(0, 0.6, (tokenizer.get_vocab_size(), outputs)).astype(np.float32)
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if typed else [])]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"], axis=0),
        helper.make_node("Add", ["attention_mask", "token_type_ids"], ["counts"])
        if typed
        else helper.make_node("Identity", ["attention_mask"], ["counts"]),
        helper.make_node("Cast", ["counts"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["floats", "axis2"], ["weights"]),
        helper.make_node("Mul", ["rows", "weights"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "axis1"], ["logits"], keepdims=0),
    ]
    constants = {"table": table, **AXES}
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", outputs])
    (folder / "model.onnx").write_bytes(model_bytes(nodes, names, logits, constants))
    return table


def classifier_logits(table: Any, first: str, second: str, *, typed: bool = False) -> Any:
    """The classifier_logits of the tiny classifier for a pair, computed from its table."""
    encoding = tiny_tokenizer().encode(first, second)
    weights = 1 + np.array(encoding.type_ids) if typed else np.ones(len(encoding.ids))
    return (table[encoding.ids] * weights[:, None]).sum(0)

"""Tiny random models of several architectures, laid out as sentence-transformers publishes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.models.tinymodel import DIM, tiny_tokenizer

POSITIONS = 64
_SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "hidden_size": DIM}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {**_SIZES, "pad_token_id": 0},
    "distilbert": {"n_layers": 2, "n_heads": 2, "hidden_dim": 64, "dim": DIM, "pad_token_id": 0},
    "mpnet": {**_SIZES, "pad_token_id": 1},
    "roberta": {**_SIZES, "pad_token_id": 1, "type_vocab_size": 1},
    "modernbert": {
        **_SIZES,
        "num_hidden_layers": 3,  # one that sees everything, two with a window
        "local_attention": 4,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "cls_token_id": 2,
        "sep_token_id": 3,
    },
}


def write_sentence_model(
    directory: Path,
    architecture: str = "bert",
    *,
    pooling: Mapping[str, Any] | None = None,
    normalize: bool = True,
    max_seq_length: int | None = None,
    prompts: Mapping[str, str] | None = None,
    prefix: str = "",
    dtype: str = "float32",
) -> Path:
    """Writes a random model with the files beside it. `prefix` is put before the names of its tensors."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig, AutoModel

    fields = CONFIGS[architecture]
    tokenizer = fast_tokenizer(fields["pad_token_id"])
    torch.manual_seed(1)
    config = AutoConfig.for_model(architecture, vocab_size=len(tokenizer), max_position_embeddings=POSITIONS, **fields)
    model = AutoModel.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(4)  # attention that is not uniform, so that a wrong mask or position shows
    model.to(getattr(torch, dtype)).save_pretrained(directory, safe_serialization=True)
    tokenizer.save_pretrained(directory)
    if prefix:
        path = directory / "model.safetensors"
        weights = {f"{prefix}{name}": tensor.clone() for name, tensor in load_file(path).items()}
        save_file(weights, path, {"format": "pt"})
    write_modules(directory, ["Pooling", *(["Normalize"] if normalize else [])])
    pooling = pooling or {"pooling_mode_mean_tokens": True}
    write_json(directory / "1_Pooling" / "config.json", {"word_embedding_dimension": DIM, **pooling})
    write_json(directory / "sentence_bert_config.json", {"max_seq_length": max_seq_length, "do_lower_case": False})
    write_json(directory / "config_sentence_transformers.json", {"prompts": dict(prompts or {})})
    return directory


def write_modules(directory: Path, names: Sequence[str]) -> None:
    """Writes modules.json, of the transformer and of what comes after it, and a folder for each of those."""
    folders = ["", *(f"{n}_{name}" for n, name in enumerate(names, start=1))]
    modules = [
        {"idx": n, "name": str(n), "path": folder, "type": f"sentence_transformers.models.{name}"}
        for n, (name, folder) in enumerate(zip(["Transformer", *names], folders, strict=True))
    ]
    write_json(directory / "modules.json", modules)
    for folder in folders:
        (directory / folder).mkdir(exist_ok=True)


def fast_tokenizer(pad_id: int) -> Any:
    """The tiny tokenizer as transformers has it."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer(pad_id),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )


def _tokenizer(pad_id: int) -> Any:
    """The tiny tokenizer, with its padding token where an architecture has it."""
    from tokenizers import Tokenizer

    record = json.loads(tiny_tokenizer().to_str())
    vocabulary = record["model"]["vocab"]
    old = vocabulary["[PAD]"]
    other = next(word for word, number in vocabulary.items() if number == pad_id)
    vocabulary[other], vocabulary["[PAD]"] = old, pad_id
    return Tokenizer.from_str(json.dumps(record))


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file, and its folder."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))

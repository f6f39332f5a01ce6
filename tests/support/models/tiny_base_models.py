"""Tiny random base models: two layers, 32 dimensions, in the layouts in which such models are published."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.models.tiny_checkpoints import DIM, tiny_tokenizer

POSITIONS = 64
T5_DIM = 24  # of T5's own vectors; the linear layer makes DIM of them
_SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "hidden_size": DIM}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {**_SIZES, "pad_token_id": 0},
    "distilbert": {"n_layers": 2, "n_heads": 2, "hidden_dim": 64, "dim": DIM, "pad_token_id": 0},
    "mpnet": {**_SIZES, "pad_token_id": 1},
    "roberta": {**_SIZES, "pad_token_id": 1, "type_vocab_size": 1},
    "xlm-roberta": {**_SIZES, "pad_token_id": 1, "type_vocab_size": 1},
    "data2vec-text": {**_SIZES, "pad_token_id": 1, "type_vocab_size": 1},
    "xmod": {**_SIZES, "pad_token_id": 1, "type_vocab_size": 1, "languages": ["en"], "default_language": "en"},
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


_BERT: dict[str, Any] = {**CONFIGS["bert"], "max_position_embeddings": POSITIONS}


def write_tiny_base(directory: Path, dropout: float = 0.1) -> Path:
    """Writes a BERT small enough to train in a second: config.json, model.safetensors and tokenizer.json."""
    import torch
    from transformers import BertConfig, BertModel

    tokenizer = tiny_tokenizer()
    config = BertConfig(
        **_BERT,
        vocab_size=tokenizer.get_vocab_size(),
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    torch.manual_seed(0)
    model = BertModel(config)
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory, safe_serialization=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


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

    fields = {**CONFIGS[architecture], "max_position_embeddings": POSITIONS}

    def random_model(vocab_size: int) -> Any:
        return AutoModel.from_config(AutoConfig.for_model(architecture, vocab_size=vocab_size, **fields))

    _write(directory, random_model, pad_id=fields["pad_token_id"], dtype=getattr(torch, dtype))
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


def write_simcse(directory: Path) -> Path:
    """A BERT without a file that says how it is pooled, as princeton-nlp publishes SimCSE."""
    from transformers import BertConfig, BertModel

    return _write(directory, lambda size: BertModel(BertConfig(vocab_size=size, **_BERT)))


def write_dpr(directory: Path, role: str = "Question", **fields: Any) -> Path:
    """A DPR encoder of questions or contexts (`Context`): a BERT inside, of which the vector of [CLS] is taken."""
    import transformers

    name = "DPRReader" if role == "Reader" else f"DPR{role}Encoder"
    config = {**_BERT, **fields}
    return _write(
        directory, lambda size: getattr(transformers, name)(transformers.DPRConfig(vocab_size=size, **config))
    )


def write_sentence_t5(directory: Path, bias: bool = False) -> Path:
    """An encoder of T5 with a linear layer after mean pooling, laid out as sentence-transformers publishes it."""
    import torch
    from safetensors.torch import save_file
    from transformers import T5Config, T5EncoderModel

    sizes = {"d_model": T5_DIM, "d_kv": 12, "d_ff": 64, "num_layers": 2, "num_heads": 2, "pad_token_id": 0}
    # T5 begins with large weights
    _write(directory, lambda size: T5EncoderModel(T5Config(vocab_size=size, **sizes)), scale=1)
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


def _write(
    directory: Path, random_model: Callable[[int], Any], *, pad_id: int = 0, scale: float = 4, dtype: Any = None
) -> Path:
    """Saves the model for a vocabulary's size and its tokenizer."""
    import torch

    tokenizer = fast_tokenizer(_tokenizer(pad_id))
    torch.manual_seed(1)
    model = random_model(len(tokenizer))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(scale)  # attention that is not uniform, so that a wrong mask or position shows
    model.to(dtype or torch.float32).save_pretrained(directory, safe_serialization=True)
    tokenizer.save_pretrained(directory)
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


def fast_tokenizer(tokenizer: Any, **options: Any) -> Any:
    """A tiny tokenizer as transformers has it."""
    from transformers import PreTrainedTokenizerFast

    special = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP")}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special, **options)


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

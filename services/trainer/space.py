"""What makes a vector space: the premise encoder's tensors and everything else that decides where a text lands."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from aeenc.errors import FailedPrecondition

Pooling = Literal["mean", "cls"]


@dataclass(frozen=True)
class SpaceSpec:
    """How an encoder turns a text into a vector, apart from its tensors and its tokenizer."""

    dim: int
    max_tokens: int
    pooling: Pooling = "mean"
    normalize: bool = True
    query_prefix: str = ""
    premise_prefix: str = ""
    truncation_side: str = "right"

    @classmethod
    def of(cls, directory: Path, *, max_tokens: int, query_prefix: str, premise_prefix: str) -> SpaceSpec:
        """Reads a base model's directory. Raises FailedPrecondition for a pooling that is not mean or CLS."""
        config = json.loads((directory / "config.json").read_bytes())
        return cls(
            dim=config["hidden_size"],
            max_tokens=min(max_tokens, config.get("max_position_embeddings", max_tokens)),
            pooling=_pooling(directory),
            query_prefix=query_prefix,
            premise_prefix=premise_prefix,
        )

    @classmethod
    def of_meta(cls, meta: Any) -> SpaceSpec:
        """The spec in a checkpoint's meta."""
        return cls(**{name: meta[name] for name in cls.__dataclass_fields__})

    def to_meta(self) -> dict[str, Any]:
        """The spec as part of a checkpoint's meta."""
        return asdict(self)


def space_id_of(directory: Path, spec: SpaceSpec) -> str:
    """`s` and 16 hexadecimal digits over the tensors by name, the tokenizer and the spec (design: frozen space).

    File bytes do not matter: the same tensors written by another library give the same space.
    """
    from safetensors import safe_open

    digest = hashlib.sha256()
    with safe_open(directory / "model.safetensors", framework="numpy") as tensors:
        for name in sorted(tensors.keys()):
            tensor = tensors.get_tensor(name)
            digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
            digest.update(tensor.tobytes())
    tokenizer = json.loads((directory / "tokenizer.json").read_bytes())
    settings = {name: value for name, value in tokenizer.items() if name not in {"padding", "truncation"}}
    digest.update(json.dumps(settings, sort_keys=True).encode())
    digest.update(json.dumps(spec.to_meta(), sort_keys=True).encode())
    return f"s{digest.hexdigest()[:16]}"


def _pooling(directory: Path) -> Pooling:
    path = directory / "1_Pooling" / "config.json"
    if not path.is_file():
        return "mean"
    config = json.loads(path.read_bytes())
    chosen = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    if chosen == ["pooling_mode_mean_tokens"] or config.get("pooling_mode") == "mean":
        return "mean"
    if chosen == ["pooling_mode_cls_token"] or config.get("pooling_mode") == "cls":
        return "cls"
    raise FailedPrecondition(f"{path} asks for pooling {chosen}; mean and CLS are supported")

"""The identity of a vector space: the premise encoder's tensors and all else that determines a text's vector."""

from __future__ import annotations

import hashlib
import json
import mmap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from services.store.formats import damage_is_data_loss
from services.trainer.models.base_model import Pooling, dense_file, read_layout

# Element types by their names in a safetensors header; the digest uses the long names.
_ELEMENTS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


PremisePrecision = Literal["float32", "int8"]


@dataclass(frozen=True)
class SpaceSpec:
    """How an encoder turns a text into a vector, besides its tensors and its tokenizer.

    `premise_precision` is that of the space's premises, part of its identity; a spec of float32 does not name it, so
    that spaces from before there was a choice keep their ids.
    """

    dim: int
    max_tokens: int
    pooling: Pooling = "mean"
    normalize: bool = True
    query_prefix: str = ""
    premise_prefix: str = ""
    truncation_side: str = "right"
    premise_precision: PremisePrecision = "float32"

    @classmethod
    def of(
        cls,
        directory: Path,
        *,
        max_tokens: int,
        query_prefix: str,
        premise_prefix: str,
        pooling: Pooling | Literal[""] = "",
        premise_precision: PremisePrecision = "float32",
    ) -> SpaceSpec:
        """Reads a base model's directory. Vectors are always normalised, with or without a Normalize module.

        `max_tokens` is lowered to the model's limit; an empty prefix or pooling takes the model's own. Raises
        FailedPrecondition for a model that computes something unsupported.
        """
        layout = read_layout(directory, pooling)
        return cls(
            dim=layout.dim,
            max_tokens=min([max_tokens, *layout.token_limits]),
            pooling=layout.pooling,
            query_prefix=query_prefix or layout.query_prompt,
            premise_prefix=premise_prefix or layout.premise_prompt,
            premise_precision=premise_precision,
        )

    @classmethod
    def of_meta(cls, meta: Any) -> SpaceSpec:
        """Reads the spec from a checkpoint's meta."""
        named = {"premise_precision": "float32", **meta}
        return cls(**{name: named[name] for name in cls.__dataclass_fields__})

    def to_meta(self) -> dict[str, Any]:
        """Returns the spec as part of a checkpoint's meta."""
        meta = asdict(self)
        if self.premise_precision == "float32":
            del meta["premise_precision"]
        return meta


def space_id_of(directory: Path, spec: SpaceSpec) -> str:
    """Returns `s` and 16 hexadecimal digits, a hash of the tensors by name, the tokenizer and the spec.

    File bytes do not matter: the same tensors written by another library give the same space.
    """
    digest = hashlib.sha256()
    _add_tensors(digest, directory / "model.safetensors")
    if dense := dense_file(directory):
        _add_tensors(digest, dense)
    tokenizer = json.loads((directory / "tokenizer.json").read_bytes())
    settings = {name: value for name, value in tokenizer.items() if name not in {"padding", "truncation"}}
    digest.update(json.dumps(settings, sort_keys=True).encode())
    digest.update(json.dumps(spec.to_meta(), sort_keys=True).encode())
    return f"s{digest.hexdigest()[:16]}"


def _add_tensors(digest: Any, path: Path) -> None:
    """Adds names, types, shapes and values. Reads bytes, since numpy lacks bfloat16."""
    damaged = damage_is_data_loss(path, "export it again")
    with damaged, path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        header.pop("__metadata__", None)
        for name, tensor in sorted(header.items()):
            begin, end = tensor["data_offsets"]
            if start + end > len(data):
                raise ValueError(f"it ends before {name} does")
            digest.update(f"{name} {_ELEMENTS[tensor['dtype']]} {tuple(tensor['shape'])}".encode())
            digest.update(data[start + begin : start + end])


def pad_id_of(directory: Path) -> int:
    """Reads the padding token's id from config.json."""
    return int(json.loads((directory / "config.json").read_bytes()).get("pad_token_id") or 0)

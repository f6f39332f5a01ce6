"""The identity of a vector space: the premise encoder's tensors and all else that determines a text's vector.

Of a sentence encoder it reads the JSON files that sentence-transformers writes beside a transformer: pooling, dense
layer, prompts and limits. A directory without them is a bare transformer with mean pooling, or [CLS] pooling for DPR,
unless the operator names another. An unsupported option is refused by name, never ignored.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from aeenc.errors import FailedPrecondition
from services.store.formats import damage_is_data_loss, made_of

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


Pooling = Literal["mean", "cls", "max"]
PremisePrecision = Literal["float32", "int8"]
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
_OFFSET_POSITIONS = {"roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet"}
_OFFSET_POSITIONS |= {"longformer", "data2vec-text", "ibert", "luke", "xmod", "lilt", "markuplm", "layoutlmv3", "esm"}


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
        FailedPrecondition naming the file and its unsupported option.
        """
        config = _json(directory / "config.json")
        dim = config.get("hidden_size") or config.get("dim") or config.get("d_model")
        if not isinstance(dim, int):
            raise FailedPrecondition(f"{directory / 'config.json'} has no hidden_size; choose an encoder of texts")
        sentence = directory / "sentence_bert_config.json"
        if _json(sentence).get("do_lower_case") and '"lowercase":true' not in _compact(directory / "tokenizer.json"):
            raise FailedPrecondition(
                f"{sentence} asks for do_lower_case, which tokenizer.json does not do; export the tokenizer with it"
            )
        if config.get("model_type") == "dpr" and config.get("projection_dim"):
            raise FailedPrecondition(
                f"{directory / 'config.json'} asks for a projection to {config['projection_dim']} dimensions, which is "
                "not supported; take a DPR encoder whose projection_dim is 0"
            )
        usual: Pooling = "cls" if config.get("model_type") == "dpr" else "mean"
        modules = _modules(directory)
        mode, prompt_is_pooled = _pooling(directory, modules, pooling, usual)
        query, premise = _prompts(directory)
        if (query or premise) and not prompt_is_pooled:
            raise FailedPrecondition(f"{directory} leaves its prompts out of its pooling, which is not supported")
        return cls(
            dim=_dense_dim(modules["Dense"]) if "Dense" in modules else dim,
            max_tokens=min([max_tokens, *token_limits(directory)]),
            pooling=mode,
            query_prefix=query_prefix or query,
            premise_prefix=premise_prefix or premise,
            premise_precision=premise_precision,
        )

    @classmethod
    def of_meta(cls, meta: Any) -> SpaceSpec:
        """Reads the spec from a checkpoint's meta."""
        return made_of(cls, meta)

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
    tokenizer = _json(directory / "tokenizer.json")
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
    return int(_json(directory / "config.json").get("pad_token_id") or 0)


def check_labels(name: str, directory: Path) -> None:
    """Raises FailedPrecondition unless a directory's config.json describes a model with exactly one output."""
    config = _json(directory / "config.json")
    labels = len(config.get("id2label") or {}) or config.get("num_labels", 2)  # the default of transformers
    if labels != 1:
        raise FailedPrecondition(
            f"cross-encoder {name!r} has {labels} labels, a score is one number; name a model with one label in "
            "AEENC_TRAINER_CROSS_ENCODER"
        )


def dense_file(directory: Path) -> Path | None:
    """Finds the tensors of the dense layer after pooling; None without one, and in a checkpoint, which contains it."""
    folder = _modules(directory).get("Dense")
    return folder / "model.safetensors" if folder else None


def token_limits(directory: Path) -> list[int]:
    """Reads how many tokens, special ones included, the model, its tokenizer and the files beside them allow.

    Raises FailedPrecondition, naming the file, where the number after which positions begin is none.
    """
    config = _json(directory / "config.json")
    positions = config.get("max_position_embeddings")
    if positions and config.get("model_type") in _OFFSET_POSITIONS:
        if not isinstance(padding := config.get("pad_token_id", 1), int):
            raise FailedPrecondition(
                f"{directory / 'config.json'} has pad_token_id {padding!r}, after which positions begin; give a number"
            )
        positions -= padding + 1
    sequence = _json(directory / "sentence_bert_config.json").get("max_seq_length")
    limits = positions, sequence, _json(directory / "tokenizer_config.json").get("model_max_length")
    return [int(limit) for limit in limits if limit and limit > 0]


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

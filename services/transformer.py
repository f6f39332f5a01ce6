"""A transformer with pooling and normalisation, in torch, for the trainer and the encoder. Importing it imports torch.

A recurrent encoder over word vectors (`services.bigru`) may stand in its place.

Where a model has a linear layer between pooling and normalisation (sentence-T5), that layer is part of the transformer:
it is trained with it and kept among its tensors. Weights come only from safetensors, code only from the installed
transformers.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aeenc.errors import DataLoss, FailedPrecondition
from services.bigru import MODEL_TYPE, BiGru, BiGruConfig

# These take a finished additive mask (batch, 1, length, length), which makes a smaller graph. All others get the mask
# of the tokens and make their own: ModernBERT (layers with a window) and DeBERTa need that.
FINISHED_MASK = frozenset({"bert", "distilbert", "mpnet", "roberta", "xlm-roberta"})
UNUSED = ("pooler.", "position_ids")  # the head of next-sentence prediction; consecutive numbers
TEXT_ENCODERS = frozenset({"mt5", "t5"})  # AutoModel would load their decoder, too
DENSE = "sentence_dense"  # the linear layer's name among the transformer's own
DPR_NAMES = {r"^(question_encoder|ctx_encoder)\.bert_model\.": ""}  # names of the BERT inside


class PooledTransformer(nn.Module):
    """Token ids to unit vectors. `forward` is exactly what is exported. `pooling`: mean, cls or max."""

    def __init__(self, transformer: nn.Module, pooling: str) -> None:
        super().__init__()
        self.transformer = transformer
        self.pooling = pooling
        self._segmented = "token_type_ids" in inspect.signature(transformer.forward).parameters
        self._finished_mask = getattr(transformer.config, "model_type", "") in FINISHED_MASK

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Returns unit vectors (batch, dim) of `input_ids` (batch, length), int64; `attention_mask` is 1 at tokens."""
        return self.pool(self.hidden(input_ids, attention_mask), attention_mask)

    def pooled(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Returns the vectors (batch, dim) before they are normalised."""
        return self.pool(self.hidden(input_ids, attention_mask), attention_mask, normalize=False)

    def hidden(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Returns the last layer's vectors of all tokens, (batch, length, dim)."""
        mask = attention_mask
        if self._finished_mask:
            blocked = (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * torch.finfo(torch.float32).min
            mask = blocked.expand(-1, -1, input_ids.shape[1], -1)
        segments = {"token_type_ids": torch.zeros_like(input_ids)} if self._segmented else {}
        hidden: Tensor = self.transformer(input_ids=input_ids, attention_mask=mask, **segments).last_hidden_state
        return hidden

    def pool(self, hidden: Tensor, attention_mask: Tensor, *, normalize: bool = True) -> Tensor:
        """Pools the vectors of tokens to one for each text, (batch, dim); a unit vector unless told otherwise."""
        kept = attention_mask.unsqueeze(-1).to(hidden.dtype)
        if self.pooling == "cls":
            pooled = hidden[:, 0]
        elif self.pooling == "max":
            pooled = hidden.masked_fill(kept == 0, torch.finfo(hidden.dtype).min).amax(1)
        else:
            pooled = (hidden * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
        if hasattr(self.transformer, DENSE):
            pooled = getattr(self.transformer, DENSE)(pooled)
        return nn.functional.normalize(pooled, dim=1) if normalize else pooled


def load_transformer(
    directory: Path,
    weights: Mapping[str, Tensor] | None = None,
    *,
    attention: str | None = None,
    dense: Path | None = None,
) -> nn.Module:
    """Loads the transformer of a directory with config.json and model.safetensors; `weights` replace the latter.

    `attention`: the implementation in transformers, by default its choice. `dense`: the file of the linear layer after
    the pooling, where model.safetensors does not hold it. Raises FailedPrecondition for an architecture that the
    installed transformers lack, DataLoss for weights that do not fit config.json.
    """
    if (recurrent := _recurrent(directory, weights)) is not None:
        return recurrent
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()
    set_verbosity_error()  # what it would report is checked below

    chosen = {} if attention is None else {"attn_implementation": attention}
    try:
        config = _encoder_config(AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False))
        architecture: Any = AutoModelForTextEncoding if config.model_type in TEXT_ENCODERS else AutoModel
        if weights is not None:
            model: nn.Module = architecture.from_config(config, trust_remote_code=False, dtype=torch.float32, **chosen)
            _add_dense(
                model, {name.removeprefix(f"{DENSE}."): tensor for name, tensor in weights.items() if DENSE in name}
            )
            missing, unexpected = model.load_state_dict(dict(weights), strict=False)
            _check_names(directory, [*missing, *unexpected])
            return model.eval()
        model, told = architecture.from_pretrained(
            directory,
            config=config,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are named below
            key_mapping=DPR_NAMES,
            **chosen,
        )
    except (ValueError, OSError, KeyError, ImportError) as error:
        raise FailedPrecondition(f"{directory} is not a model of transformers: {_short(error)}") from error
    except SafetensorError as error:
        raise DataLoss(f"{directory / 'model.safetensors'} cannot be read ({_short(error)}); restore it") from error
    # Additional tensors in the file belong to the head of another task.
    _check_names(directory, told["missing_keys"], [name for name, *_ in told["mismatched_keys"]])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in told["missing_keys"]:
                parameter.zero_()  # transformers fills them at random; nothing here reads them
    _add_dense(model, _tensors(dense, "linear.") if dense else _tensors(directory / "model.safetensors", f"{DENSE}."))
    return model.eval()


def _recurrent(directory: Path, weights: Mapping[str, Tensor] | None) -> nn.Module | None:
    """Loads a recurrent encoder; None if config.json names another architecture or cannot be read."""
    try:
        record = json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("model_type") != MODEL_TYPE:
        return None
    model = BiGru(BiGruConfig.from_dict(record))
    given = dict(weights) if weights is not None else _tensors(directory / "model.safetensors", "")
    own = model.state_dict()
    _check_names(
        directory, own.keys() - given.keys(), [n for n in own.keys() & given if own[n].shape != given[n].shape]
    )
    model.load_state_dict({name: given[name] for name in own})
    return model.eval()


def _add_dense(model: nn.Module, dense: Mapping[str, Tensor]) -> None:
    """Adds the linear layer of `weight` (to, from) and `bias`, if any; leaves one name for each tensor."""
    if getattr(model.config, "model_type", "") in TEXT_ENCODERS:
        del model.shared  # the encoder has the same embeddings
    if "weight" in dense:
        dim, hidden = dense["weight"].shape
        layer = nn.Linear(hidden, dim, bias="bias" in dense)
        layer.load_state_dict(dict(dense))
        model.add_module(DENSE, layer)


def _tensors(path: Path, prefix: str) -> dict[str, Tensor]:
    """Reads the tensors of a file whose names begin with `prefix`, and strips it. Raises DataLoss for another file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118 - it is not a mapping
            return {name.removeprefix(prefix): file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise DataLoss(f"{path} cannot be read ({_short(error)}); restore it") from error


def _encoder_config(config: Any) -> Any:
    """Returns the configuration of the part that computes token vectors: for DPR, the BERT inside it."""
    from transformers import BertConfig

    return BertConfig.from_dict({**config.to_dict(), "model_type": "bert"}) if config.model_type == "dpr" else config


def _check_names(directory: Path, absent: Iterable[str], misshapen: Iterable[str] = ()) -> None:
    """Raises DataLoss for tensors of another shape, and for absent ones unless nothing reads them."""
    wrong = sorted([*misshapen, *(name for name in absent if not any(part in name for part in UNUSED))])
    if wrong:
        raise DataLoss(f"{directory / 'model.safetensors'} does not fit its config.json: {', '.join(wrong[:5])}")


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]

"""Loads a published cross-encoder, and exports one: an ONNX model from a query and a premise to a score.

The score of a model with one label is the raw logit, without the sigmoid that some libraries apply: it would keep the
ranking, but near 0 and 1 round different scores to the same number.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from aeenc.errors import FailedPrecondition
from services.store.artifacts import ArtifactStore
from services.store.files import sha256_of
from services.trainer.models.batches import Batches, Pair
from services.trainer.models.space import pad_id_of, token_limits
from services.trainer.registry.checkpoints import CROSS_ENCODER
from services.trainer.train.encoder import outputs_by, tensors_of
from services.trainer.train.export.checkpoint import EXAMPLES, onnx_bytes
from services.trainer.train.export.writer import PROBES, ExportedModel, write_checkpoint

MAX_TOKENS = 512
MIN_TOKENS = 8


class PairScorer(nn.Module):
    """A cross-encoder from token ids of pairs to scores. `forward` is exactly what is exported."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @property
    def transformer(self) -> nn.Module:
        """The whole model, head included, whose weights training keeps."""
        return self.model

    def logits(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Computes (batch, labels) of int64 (batch, length) tensors; `token_type_ids` only if the model has types."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, **types).logits
        return logits

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Computes scores (batch,): the logits of a model with one label."""
        return self.logits(input_ids, attention_mask, token_type_ids)[:, 0]


def export_cross_encoder(store: ArtifactStore, request: dict[str, Any]) -> str:
    """Writes a cross-encoder's directory as a checkpoint and returns its version.

    Raises FailedPrecondition unless it is one, ValueError if onnxruntime computes something other than torch.
    """
    directory = Path(request["directory"])
    model = load_cross_encoder(directory)
    # The checkpoint has its weights only in the ONNX file.
    weights_sha256 = sha256_of(directory / "model.safetensors")
    meta = {"lineage": {"base_model": request["base_model"], "weights_sha256": weights_sha256}}
    config = (directory / "config.json").read_text(encoding="utf-8")
    exported = exported_cross_encoder(PairScorer(model), pair_batches(directory, model), config)
    return write_checkpoint(store, exported, meta).id


def exported_cross_encoder(scorer: PairScorer, batches: Batches, config: str) -> ExportedModel:
    """Exports a cross-encoder; `config` is the text of its config.json."""
    scorer = scorer.to("cpu").eval()
    probes, longest = _probe_pairs(batches), (" ".join(PROBES), " ".join(PROBES * 8))
    model = onnx_bytes(scorer, "score", tensors_of(batches.inputs(probes[:EXAMPLES])))
    scores = outputs_by(scorer, batches, [*probes, longest], 1)
    meta = {
        "model_type": CROSS_ENCODER,
        "space_id": CROSS_ENCODER,
        "dim": 1,
        "max_tokens": batches.max_tokens,
        "pad_id": batches.pad_id,
        "query_prefix": "",
        "premise_prefix": "",
    }
    files = {"config.json": config.encode(), "tokenizer.json": batches.to_json().encode()}
    return ExportedModel(model, batches, probes, scores, files, meta, "x", further=(longest,))


def pair_batches(directory: Path, model: nn.Module) -> Batches:
    """Loads a directory's tokenizer for the pairs of a model."""
    tokenizer, max_tokens = load_tokenizer(directory), min([MAX_TOKENS, *token_limits(directory)])
    if max_tokens < MIN_TOKENS:
        raise FailedPrecondition(
            f"{directory} takes pairs of {max_tokens} tokens, at least {MIN_TOKENS} are needed; choose another model"
        )
    # Token types separate query and premise where the model needs them and its tokenizer gives them.
    kinds = getattr(model.config, "type_vocab_size", 0) or 0
    taken = inspect.signature(model.forward).parameters
    typed = kinds > 1 and all("token_type_ids" in names for names in (taken, tokenizer.model_input_names))
    return Batches(tokenizer.backend_tokenizer, max_tokens, pad_id_of(directory), typed=typed)


def load_cross_encoder(directory: Path) -> nn.Module:
    """Loads a directory's model, from safetensors only and without code of its own. Raises FailedPrecondition."""
    from transformers import AutoModelForSequenceClassification

    try:
        # Eager attention is plain matrix products, which the exporter can follow.
        model, loading = AutoModelForSequenceClassification.from_pretrained(
            directory,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
        )
    except (ValueError, OSError, KeyError, RuntimeError) as error:  # unknown architecture, or tensors of another one
        raise FailedPrecondition(f"{directory} is not a sequence classifier of transformers: {error}") from error
    if loading["missing_keys"]:  # transformers would initialise them at random
        lacking = ", ".join(sorted(loading["missing_keys"])[:3])
        raise FailedPrecondition(f"{directory / 'model.safetensors'} lacks {lacking}; export the cross-encoder again")
    loaded: nn.Module = model.eval()
    return loaded


def load_tokenizer(directory: Path) -> Any:
    """Loads the tokenizer by transformers, which reads more files than tokenizer.json."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (ValueError, OSError, KeyError, ImportError) as error:
        raise FailedPrecondition(f"{directory} has no usable tokenizer: {error}") from error
    if not isinstance(getattr(tokenizer, "backend_tokenizer", None), Tokenizer):
        raise FailedPrecondition(f"{directory} has a tokenizer without tokenizer.json; save it as a fast one")
    return tokenizer


def _probe_pairs(batches: Batches) -> list[Pair]:
    """Builds sixteen pairs of short and long texts, shortened until they fit uncut."""
    pairs = []
    for n, query in enumerate(PROBES):
        texts = [query, PROBES[(5 * n + 3) % len(PROBES)]]
        while not batches.fits((texts[0], texts[1])):
            longer = max(texts, key=len)
            texts[texts.index(longer)] = " ".join(longer.split()[: len(longer.split()) // 2])
        pairs.append((texts[0], texts[1]))
    return pairs

"""Loads a published cross-encoder, and writes one as a checkpoint: an ONNX model from a query and a premise to a score.

The score of a model with one label is the raw logit, without the sigmoid that some libraries apply: it would keep the
ranking, but near 0 and 1 round different scores to the same number.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from torch import Tensor, nn

from aeenc.errors import FailedPrecondition
from services.store.artifacts import Artifact, ArtifactStore
from services.store.files import sha256_of
from services.trainer.models.base_model import check_labels
from services.trainer.models.space import pad_id_of
from services.trainer.registry.checkpoints import CROSS_ENCODER, FOLDER
from services.trainer.train.export.checkpoint import onnx_bytes
from services.trainer.train.export.probes import PROBES
from services.trainer.train.export.quantization import (
    MAX_MAP_LOSS,
    PROBES_FILE,
    Int8Gate,
    add_gated,
    session_of,
)

MAX_TOKENS = 512
MIN_TOKENS = 8
TOGETHER = 32  # pairs of the int8 gate, scored at once
MAX_DIFFERENCE = 1e-4  # between onnxruntime and torch, of scores up to 1; relative beyond
EXAMPLES = 3

Pair = tuple[str, str]


class PairScorer(nn.Module):
    """A cross-encoder from token ids of pairs to scores. `forward` is exactly what is exported."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def logits(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Computes (batch, labels) of int64 (batch, length) tensors; `token_type_ids` only if the model has types."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, **types).logits
        return logits

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Computes scores (batch,): the logits of a model with one label."""
        return self.logits(input_ids, attention_mask, token_type_ids)[:, 0]


class PairBatches:
    """A cross-encoder's tokenizer: turns pairs into padded tensors, cut at the model's maximum, longer text first."""

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, pad_id: int, *, typed: bool) -> None:
        self._tokenizer, self.max_tokens, self.pad_id, self.typed = tokenizer, max_tokens, pad_id, typed
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens)

    def to_json(self) -> str:
        """Serialises the tokenizer without its limits."""
        kept = Tokenizer.from_str(self._tokenizer.to_str())
        kept.no_truncation()
        return str(kept.to_str())

    def fits(self, pair: Pair) -> bool:
        """Tells whether a pair fits uncut."""
        return not self._tokenizer.encode(*pair).overflowing

    def tensors(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Builds the model's inputs, (batch, longest) each."""
        encodings: list[Encoding] = self._tokenizer.encode_batch(list(pairs))
        length = max(len(encoding.ids) for encoding in encodings)

        def padded(name: str, filler: int) -> Tensor:
            rows = [getattr(encoding, name) for encoding in encodings]
            return torch.tensor([row + [filler] * (length - len(row)) for row in rows], dtype=torch.int64)

        tensors = {"input_ids": padded("ids", self.pad_id), "attention_mask": padded("attention_mask", 0)}
        return {**tensors, "token_type_ids": padded("type_ids", 0)} if self.typed else tensors


@dataclass(frozen=True)
class PairTrial:
    """The data of the int8 gate: `pairs` of so many `queries`, fp32's strict MAP, and that of scores (pairs,).

    The recipes and the bound on MAP are those of encoders; scores have no cosine to compare.
    """

    pairs: Sequence[Pair]
    queries: int
    fp32_map: float
    map_of: Callable[[NDArray[np.float32]], float]

    def add_int8(self, directory: Path, batches: PairBatches, probes: Sequence[Pair]) -> dict[str, Any]:
        """Adds an int8 model and its probes' scores if they pass, as `add_gated` does."""

        def gate(path: Path) -> Int8Gate:
            measured = self._gate(_scored(path, batches, self.pairs, TOGETHER))
            if measured.passed:
                np.save(directory / PROBES_FILE, _scored(path, batches, probes, 1), allow_pickle=False)
            return measured

        return add_gated(directory, gate, self.queries)

    def _gate(self, scores: NDArray[np.float32]) -> Int8Gate:
        if not np.isfinite(scores).all():
            return Int8Gate(False, None, None, None, self.queries, "a score of the int8 model is not finite")
        loss = self.fp32_map - self.map_of(scores)
        reason = f"MAP falls by {loss:.4f}, more than {MAX_MAP_LOSS:g}" if loss > MAX_MAP_LOSS else ""
        return Int8Gate(not reason, loss, None, None, self.queries, reason)


def _scored(path: Path, batches: PairBatches, pairs: Sequence[Pair], together: int) -> NDArray[np.float32]:
    """Scores pairs (pairs,) by an exported model, those of similar length together, on this process's threads."""
    session = session_of(path, torch.get_num_threads())
    order = sorted(range(len(pairs)), key=lambda n: sum(map(len, pairs[n])))
    scores = np.empty(len(pairs), dtype=np.float32)
    for start in range(0, len(order), together):
        part = order[start : start + together]
        tensors = batches.tensors([pairs[n] for n in part])
        feeds = {put.name: tensors[put.name].numpy() for put in session.get_inputs()}
        scores[part] = session.run(["score"], feeds)[0]
    return scores


def scores_of(artifact: Artifact, pairs: Sequence[Pair]) -> NDArray[np.float32]:
    """Scores pairs (pairs,) by a published cross-encoder in float32, each cut as it is when served."""
    tokenizer = Tokenizer.from_file(str(artifact.file("tokenizer.json")))
    batches = PairBatches(tokenizer, artifact.meta["max_tokens"], artifact.meta["pad_id"], typed=True)
    return _scored(artifact.file("model.onnx"), batches, pairs, TOGETHER)


def export_cross_encoder(store: ArtifactStore, request: dict[str, Any]) -> str:
    """Writes a cross-encoder's directory as a checkpoint and returns its version.

    Raises FailedPrecondition unless it is one, ValueError if onnxruntime computes something other than torch.
    """
    directory = Path(request["directory"])
    model = load_cross_encoder(directory, request["base_model"])
    meta = {
        "pretrained": False,
        "base_version": "",
        "job_id": "",
        "validation_map": 0.0,
        "lineage": {
            "base_model": request["base_model"],
            "weights_sha256": sha256_of(
                directory / "model.safetensors"
            ),  # the checkpoint has its weights only in the ONNX file
        },
    }
    config = (directory / "config.json").read_text(encoding="utf-8")
    return write_cross_encoder(store, PairScorer(model), pair_batches(directory, model), config, meta).id


def write_cross_encoder(
    store: ArtifactStore,
    scorer: PairScorer,
    batches: PairBatches,
    config: str,
    meta: Mapping[str, Any],
    metrics: Mapping[str, Any] | None = None,
    trial: PairTrial | None = None,
) -> Artifact:
    """Commits the checkpoint of a cross-encoder; `config` is the text of its config.json.

    With a `trial`, the meta key `int8` holds the gate's figures, and an int8 model that passed is among the files.
    Raises ValueError if onnxruntime computes something other than torch.
    """
    scorer = scorer.to("cpu").eval()
    probes = _probe_pairs(batches)
    of_pairs = {
        "model_type": CROSS_ENCODER,
        "space_id": CROSS_ENCODER,
        "dim": 1,
        "max_tokens": batches.max_tokens,
        "pad_id": batches.pad_id,
        "query_prefix": "",
        "premise_prefix": "",
    }
    with store.writer("checkpoint", FOLDER) as writer:
        example = batches.tensors(probes[:EXAMPLES])
        (writer.path / "model.onnx").write_bytes(onnx_bytes(scorer, list(example), "score", kwargs=example))
        (writer.path / "config.json").write_text(config, encoding="utf-8")
        (writer.path / "tokenizer.json").write_text(batches.to_json(), encoding="utf-8")
        scores = _probe(writer.path / "model.onnx", scorer, batches, probes)
        (writer.path / "probes.json").write_text(json.dumps({"pairs": probes}))
        np.save(writer.path / "probes.npy", scores, allow_pickle=False)
        if metrics is not None:
            (writer.path / "metrics.json").write_text(json.dumps(metrics))
        int8 = {} if trial is None else {"int8": trial.add_int8(writer.path, batches, probes)}
        return writer.commit({**meta, **of_pairs, **int8}, id_prefix="x")


def pair_batches(directory: Path, model: nn.Module) -> PairBatches:
    """Loads a directory's tokenizer for the pairs of a model."""
    tokenizer = load_tokenizer(directory)
    max_tokens = _max_tokens(directory, model, tokenizer)
    typed = _has_types(model, tokenizer)
    return PairBatches(tokenizer.backend_tokenizer, max_tokens, pad_id_of(directory), typed=typed)


def load_cross_encoder(directory: Path, name: str) -> nn.Module:
    """Loads a directory's model, from safetensors only and without code of its own. Raises FailedPrecondition."""
    from transformers import AutoModelForSequenceClassification

    check_labels(name, json.loads((directory / "config.json").read_bytes()))
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


def _has_types(model: Any, tokenizer: Any) -> bool:
    """Tells whether token types separate query and premise: the model needs them and its tokenizer gives them."""
    named = "token_type_ids" in inspect.signature(model.forward).parameters
    has = named and (getattr(model.config, "type_vocab_size", 0) or 0) > 1
    return has and "token_type_ids" in tokenizer.model_input_names


def _max_tokens(directory: Path, model: Any, tokenizer: Any) -> int:
    """Returns the longest pair, special tokens included: the least of 512, the model's and the tokenizer's limits."""
    limits = [MAX_TOKENS]
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            offset = 0 if module.padding_idx is None else module.padding_idx + 1  # RoBERTa counts from there
            limits.append(module.num_embeddings - offset)
    limits.append(getattr(model.config, "max_position_embeddings", None) or MAX_TOKENS)
    limits.append(int(tokenizer.model_max_length))
    if min(limits) < MIN_TOKENS:
        raise FailedPrecondition(
            f"{directory} takes pairs of {min(limits)} tokens, at least {MIN_TOKENS} are needed; choose another model"
        )
    return min(limits)


def _probe_pairs(batches: PairBatches) -> list[Pair]:
    """Builds sixteen pairs of short and long texts, shortened until they fit uncut."""
    pairs = []
    for n, query in enumerate(PROBES):
        texts = [query, PROBES[(5 * n + 3) % len(PROBES)]]
        while not batches.fits((texts[0], texts[1])):
            longer = max(texts, key=len)
            texts[texts.index(longer)] = " ".join(longer.split()[: len(longer.split()) // 2])
        pairs.append((texts[0], texts[1]))
    return pairs


def _probe(path: Path, scorer: PairScorer, batches: PairBatches, pairs: Sequence[Pair]) -> Any:
    """Scores each pair alone with onnxruntime, (n,) float32: the reference for the encoder service.

    Raises ValueError if torch computes something else, alone, in a padded batch, or at the maximum length.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(some: Sequence[Pair]) -> Any:
        feeds = {name: tensor.numpy() for name, tensor in batches.tensors(some).items()}
        return session.run(["score"], feeds)[0]

    longest = (" ".join(PROBES), " ".join(PROBES * 8))
    tried = [longest, *pairs]
    alone = np.concatenate([run([pair]) for pair in tried]).astype(np.float32)
    together = run(tried[:EXAMPLES])
    with torch.inference_mode():
        expected = np.concatenate([scorer(**batches.tensors([pair])).numpy() for pair in tried])
    for name, scores in (("alone", alone), ("in a batch", together)):
        wanted = expected[: len(scores)]
        difference = np.abs(scores - wanted) / np.maximum(1.0, np.abs(wanted))
        if not (difference <= MAX_DIFFERENCE).all():  # NaN fails this too
            raise ValueError(f"the exported model differs from the original {name} by {difference.max():.2g}")
    return alone[1:]

"""Writes checkpoints that the encoder service can load: an ONNX model, its tokenizer, probes, lineage. Without torch.

Encoders and cross-encoders, base models and trained ones are written alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from services.store.artifacts import Artifact, ArtifactStore
from services.trainer.models.batches import Batches, Item, Outputs, outputs_of
from services.trainer.models.space import SpaceSpec, space_id_of
from services.trainer.registry.checkpoints import FOLDER
from services.trainer.train.export.quantization import Int8Trial, add_fp16, add_int8

MAX_DIFFERENCE = 1e-4  # between onnxruntime and torch, of outputs up to 1; relative beyond
# The meta of a model that no job has trained.
NOTHING_LEARNED = {"pretrained": False, "base_version": "", "job_id": "", "validation_map": 0.0}
PADDED = 3  # items of the batch that is compared, too
# Sixteen texts of one to several dozen words, so that loading a checkpoint probes every length bucket.
_CLAUSES = (
    "magnetism",
    "an iron nail is attracted by a magnet",
    "if an object is made of a magnetic metal then it is pulled towards a magnet",
    "the sun is a star; it gives light and heat to the planets that travel around it",
)
PROBES = tuple("; ".join([clause] * times) for clause in _CLAUSES for times in (1, 2, 3, 5))


@dataclass(frozen=True)
class ExportedModel:
    """An ONNX model of texts, or of pairs of them, and all else that a checkpoint has of it.

    `expected` are the outputs of the `probes`, and then of `further` items, by torch. `files` lie beside the model;
    `meta` is what its users need to know.
    """

    onnx: bytes
    batches: Batches
    probes: Sequence[Item]
    expected: Outputs
    files: Mapping[str, bytes]
    meta: Mapping[str, Any]
    id_prefix: str
    further: Sequence[Item] = ()


def write_checkpoint(
    store: ArtifactStore,
    model: ExportedModel,
    meta: Mapping[str, Any],
    metrics: Mapping[str, Any] | None = None,
    trial: Int8Trial | None = None,
    *,
    fp16: bool = False,
) -> Artifact:
    """Commits a checkpoint.

    Without a `space_id` in `meta`, the encoder spans a space of its own, as a premise encoder does. With a `trial`, the
    meta key `int8` holds the gate's figures, and an int8 model that passed is among the files; with `fp16`, the same
    under that key. Raises ValueError if onnxruntime computes something other than torch.
    """
    with store.writer("checkpoint", FOLDER) as writer:
        for name, content in {**model.files, "model.onnx": model.onnx}.items():
            (writer.path / name).write_bytes(content)
        outputs = _checked_outputs(writer.path / "model.onnx", model)
        kind = "texts" if isinstance(model.probes[0], str) else "pairs"
        (writer.path / "probes.json").write_text(json.dumps({kind: list(model.probes)}))
        np.save(writer.path / "probes.npy", outputs, allow_pickle=False)
        if metrics is not None:
            (writer.path / "metrics.json").write_text(json.dumps(metrics))
        whole = {**NOTHING_LEARNED, **model.meta, **meta}
        if "space_id" not in whole:
            whole["space_id"] = space_id_of(writer.path, SpaceSpec.of_meta(model.meta))
        if trial is not None:
            whole["int8"] = add_int8(writer.path, model.batches, model.probes, trial)
        if fp16:
            whole["fp16"] = add_fp16(writer.path, model.batches, model.probes, outputs)
        return writer.commit(whole, id_prefix=model.id_prefix)


def _checked_outputs(path: Path, model: ExportedModel) -> Outputs:
    """Computes the outputs of the probes, each alone: the reference for the encoder service.

    Raises ValueError if torch computes something else, alone or in a padded batch.
    """
    items = [*model.probes, *model.further]
    alone = outputs_of(path, model.batches, items)
    padded = outputs_of(path, model.batches, items[-PADDED:], together=PADDED)
    for found, expected in ((alone, model.expected), (padded, model.expected[-PADDED:])):
        difference = np.abs(found - expected) / np.maximum(1.0, np.abs(expected))
        if not (difference <= MAX_DIFFERENCE).all():  # NaN fails this too
            raise ValueError(
                f"the exported model differs from the trained one by {difference.max():.2g}; it is not published"
            )
    return alone[: len(model.probes)]


def spec_of(directory: Path, request: Mapping[str, Any]) -> SpaceSpec:
    """Reads the spec of a base model, as a request to export it asks for."""
    names = ("max_tokens", "query_prefix", "premise_prefix", "pooling", "premise_precision")
    return SpaceSpec.of(directory, **{name: request[name] for name in names if name in request})


def write_pretrained(store: ArtifactStore, model: ExportedModel, request: Mapping[str, Any]) -> str:
    """Commits a base model, the premise encoder of its space and the first query encoder; returns its version."""
    directory, spec = Path(request["directory"]), SpaceSpec.of_meta(model.meta)
    lineage = {"base_model": request["base_model"]}
    meta = {"space_id": space_id_of(directory, spec), "pretrained": True, "lineage": lineage}
    trial = Int8Trial(PROBES, of_premises=True) if spec.premise_precision == "int8" else None
    return write_checkpoint(store, model, meta, trial=trial, fp16=request.get("fp16", False)).id


def encoder_model(
    onnx: bytes, batches: Batches, expected: Outputs, directory: Path, weights: bytes, spec: SpaceSpec
) -> ExportedModel:
    """Puts a model of texts beside its `weights`; config.json and tokenizer.json come from `directory`."""
    copied = {name: (directory / name).read_bytes() for name in ("config.json", "tokenizer.json")}
    meta = {**spec.to_meta(), "pad_id": batches.pad_id}
    return ExportedModel(onnx, batches, PROBES, expected, {**copied, "model.safetensors": weights}, meta, "q")

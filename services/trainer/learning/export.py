"""Weights to a checkpoint that the encoder can serve: ONNX with pooling and normalisation inside, probes, lineage.

Where there are queries to try it on, also as int8.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from services.store.artifacts import Artifact, ArtifactStore
from services.trainer.learning.half_precision import add_fp16
from services.trainer.learning.quantization import Trial, add_int8, vectors_alone
from services.trainer.learning.query_encoder import QueryEncoder, TextBatches, encode
from services.trainer.space import space_id_of

FOLDER = "checkpoints"
OPSET = 18
MAX_DIFFERENCE = 1e-4  # between onnxruntime and torch, per component of a unit vector

# Sixteen texts of one to several dozen words: every length bucket is probed when a checkpoint is loaded.
_CLAUSES = (
    "magnetism",
    "an iron nail is attracted by a magnet",
    "if an object is made of a magnetic metal then it is pulled towards a magnet",
    "the sun is a star; it gives light and heat to the planets that travel around it",
)
PROBES = tuple("; ".join([clause] * times) for clause in _CLAUSES for times in (1, 2, 3, 5))


def write_checkpoint(
    store: ArtifactStore,
    encoder: QueryEncoder,
    batches: TextBatches,
    directory: Path,
    meta: Mapping[str, Any],
    metrics: Mapping[str, Any] | None = None,
    trial: Trial | None = None,
    *,
    fp16: bool = False,
) -> Artifact:
    """Commits a checkpoint; config.json and tokenizer.json come from `directory`.

    Where `meta` names no `space_id`, the encoder spans a space of its own, as a premise encoder does.
    With a `trial`, the meta key `int8` holds what the gate found, and an int8 model that passed is among the files.
    With `fp16`, the same under the key `fp16`. Raises ValueError when onnxruntime does not compute what torch does.
    """
    encoder = encoder.to("cpu").eval()
    with store.writer("checkpoint", FOLDER) as writer:
        (writer.path / "model.onnx").write_bytes(_onnx(encoder, batches))
        weights = {name: tensor.contiguous() for name, tensor in encoder.transformer.state_dict().items()}
        (writer.path / "model.safetensors").write_bytes(save(weights))
        for name in ("config.json", "tokenizer.json"):
            shutil.copyfile(directory / name, writer.path / name)
        vectors = _probe(writer.path / "model.onnx", encoder, batches)
        (writer.path / "probes.json").write_text(json.dumps({"texts": list(PROBES)}))
        np.save(writer.path / "probes.npy", vectors, allow_pickle=False)
        if metrics is not None:
            (writer.path / "metrics.json").write_text(json.dumps(metrics))
        int8 = {} if trial is None else {"int8": add_int8(writer.path, trial, batches.ids(PROBES, ""))}
        half = {"fp16": add_fp16(writer.path, batches.ids(PROBES, ""), vectors)} if fp16 else {}
        space = {} if "space_id" in meta else {"space_id": space_id_of(writer.path, encoder.spec)}
        return writer.commit({**encoder.spec.to_meta(), **meta, **space, **int8, **half}, id_prefix="q")


def _onnx(encoder: QueryEncoder, batches: TextBatches) -> bytes:
    example = batches.pad(batches.ids(PROBES[:3], ""), torch.device("cpu"))
    shape = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own internals
        program = torch.onnx.export(
            encoder,
            example,
            input_names=["input_ids", "attention_mask"],
            output_names=["sentence_embedding"],
            dynamic_shapes={"input_ids": shape, "attention_mask": shape},
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    return portable_bytes(program)


def portable_bytes(program: torch.onnx.ONNXProgram | None) -> bytes:
    """An exported model without what the exporter notes about the machine: stack traces with its paths."""
    assert program is not None
    model = program.model_proto
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    del model.metadata_props[:]
    return bytes(model.SerializeToString())


def _probe(path: Path, encoder: QueryEncoder, batches: TextBatches) -> Any:
    """What onnxruntime gives for each probe alone, (16, dim); the encoder compares itself with it."""
    vectors = vectors_alone(path, batches.ids(PROBES, ""))
    difference = float(np.abs(vectors - encode(encoder, batches, PROBES, "")).max())
    if not difference <= MAX_DIFFERENCE:
        raise ValueError(f"the exported model differs from the trained one by {difference:.2g}; it is not published")
    return vectors

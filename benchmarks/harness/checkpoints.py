"""Checkpoints to measure with: the base model, exported once, and as many variants of it as a soak needs.

A variant differs from the base in one bias, so that its vectors differ and its cost does not. Variants are kept
between runs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks.harness.rows import ROOT
from services.store.artifacts import Artifact, ArtifactStore
from services.store.registry import CheckpointRow, Registry
from services.trainer.models.base_model import DEFAULT_NAME, find_base_model

FOLDER = "checkpoints"
STORE = ROOT / ".aeenc" / "bench" / "encoder" / "artifacts"


def session(path: Path, *, threads: int = 1, spinning: bool = False) -> ort.InferenceSession:
    """A bare session over a checkpoint's model."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
    options.log_severity_level = 3
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def base_checkpoint(store: ArtifactStore) -> Artifact:
    """The base model as a checkpoint; exported by a process of its own, which needs torch."""
    marker = store.root / "base.json"
    if not marker.is_file():
        store.root.mkdir(parents=True, exist_ok=True)
        request = {
            "artifacts_dir": str(store.root),
            "directory": str(find_base_model(DEFAULT_NAME)),
            "base_model": DEFAULT_NAME,
            "max_tokens": 256,
            "query_prefix": "",
            "premise_prefix": "",
        }
        asked = store.root / "request.json"
        asked.write_text(json.dumps(request))
        command = [sys.executable, "-m", "services.trainer.learning", "pretrained", str(asked)]
        exporter = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)  # it lives as long as its standard input
        if exporter.wait():
            sys.exit("the base model cannot be exported")
        shutil.move(asked.with_suffix(".result"), marker)
    return store.open(FOLDER, json.loads(marker.read_bytes())["version"])


def variant(store: ArtifactStore, base: Artifact, number: int) -> Artifact:
    """Variant `number` (from 1) of the base; made once."""
    marker = store.root / f"variant-{number}.json"
    if marker.is_file():
        return store.open(FOLDER, json.loads(marker.read_bytes())["version"], verify="size")
    with store.writer("checkpoint", FOLDER) as writer:
        for name in ("tokenizer.json", "config.json", "probes.json"):
            shutil.copyfile(base.file(name), writer.path / name)
        (writer.path / "model.onnx").write_bytes(_shifted(base.file("model.onnx"), number))
        np.save(
            writer.path / "probes.npy",
            vectors_of(writer.path, json.loads(base.file("probes.json").read_bytes())["texts"]),
        )
        meta = {**base.meta, "pretrained": False, "base_version": base.id, "lineage": {"variant": number}}
        artifact = writer.commit(meta, id_prefix="q")
    marker.write_text(json.dumps({"version": artifact.id}))
    return artifact


def vectors_of(directory: Path, texts: list[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What a checkpoint's own model gives for each text alone, (n, dim)."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    model = session(directory / "model.onnx")
    rows = []
    for encoding in tokenizer.encode_batch(texts):
        ids = np.array([encoding.ids])
        rows.append(model.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0][0])
    return np.stack(rows)


def row_of(artifact: Artifact) -> CheckpointRow:
    """A checkpoint as the registry knows it."""
    meta = artifact.meta
    return CheckpointRow(
        version=artifact.id,
        space_id=meta["space_id"],
        pretrained=meta["pretrained"],
        base_version=meta["base_version"],
        job_id="",
        validation_map=0.0,
        manifest_sha256=artifact.manifest_sha256,
        created_at=datetime.now(UTC),
        size_bytes=artifact.size_bytes,
        dim=meta["dim"],
    )


async def register(registry: Registry, artifact: Artifact) -> None:
    """Makes a checkpoint known; a pretrained one names its space."""
    await registry.add_checkpoint(row_of(artifact))
    if artifact.meta["pretrained"]:
        await registry.set_space(artifact.meta["space_id"], artifact.id, default=True)


def _shifted(path: Path, number: int) -> bytes:
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    bias = next(t for t in model.graph.initializer if list(t.dims) == [384] and "LayerNorm.bias" in t.name)
    values = numpy_helper.to_array(bias).copy()
    values += np.random.default_rng(number).normal(scale=0.05, size=values.shape).astype(values.dtype)
    bias.CopyFrom(numpy_helper.from_array(values, bias.name))
    return bytes(model.SerializeToString())

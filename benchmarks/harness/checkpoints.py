"""Checkpoints to measure with: the base model, variants of it, one with int8, and damaged ones that must never serve.

A variant differs from the base in one bias, so that its vectors differ and its cost does not. All but the damaged ones
are made once and kept between runs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from tokenizers import Tokenizer

from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.rows import ROOT
from services.store.artifacts import Artifact, ArtifactStore
from services.trainer.models.base_model import DEFAULT_NAME, find_base_model

FOLDER = "checkpoints"
STORE = ROOT / ".aeenc" / "bench" / "encoder" / "artifacts"
BATCH = 32

Change = Callable[[Path, dict[str, Any]], object]


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
        command = [sys.executable, "-m", "services.trainer.train", "pretrained", str(asked)]
        exporter = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)  # it lives as long as its standard input
        if exporter.wait():
            sys.exit(f"{DEFAULT_NAME} could not be exported; its error stands above")
        shutil.move(asked.with_suffix(".result"), marker)
    return store.open(FOLDER, json.loads(marker.read_bytes())["version"])


def variant(store: ArtifactStore, base: Artifact, number: int) -> Artifact:
    """Variant `number` (from 1) of the base; made once."""

    def write(folder: Path) -> dict[str, Any]:
        rng = np.random.default_rng(number)
        _change_tensor(
            base.file("model.onnx"),
            folder / "model.onnx",
            lambda tensor: _set_values(tensor, lambda values: values + rng.normal(scale=0.05, size=values.shape)),
            name="LayerNorm.bias",
        )
        texts = json.loads(base.file("probes.json").read_bytes())["texts"]
        np.save(folder / "probes.npy", vectors_of(folder, texts))
        return {"lineage": {"variant": number}}

    return _made_once(store, base, f"variant-{number}", ("tokenizer.json", "config.json", "probes.json"), write)


def int8_checkpoint(store: ArtifactStore, base: Artifact) -> Artifact:
    """A checkpoint of the base's weights with fp32 and, where the trainer's gate on dev passes, int8; made once."""
    from services.trainer.evaluation.protocol import EvaluationQuery, evaluate
    from services.trainer.models.batches import Batches
    from services.trainer.models.space import SpaceSpec
    from services.trainer.train.export.quantization import Int8Trial, add_int8

    def write(folder: Path) -> dict[str, Any]:
        dataset = entailmentbank()
        texts = [candidate.text for candidate in dataset.candidates()]
        queries = [EvaluationQuery(query.text, tuple(query.gold)) for query in dataset.queries("dev")]
        batches = Batches.of(base.path, SpaceSpec.of_meta(base.meta), base.meta["pad_id"])
        premises, ordinals = embedded(base, texts), {text: ordinal for ordinal, text in enumerate(texts)}
        trial = Int8Trial(
            [query.text for query in queries],
            len(queries),
            lambda vectors: evaluate(queries, vectors, premises, ordinals).strict.map,
        )
        probes = json.loads(base.file("probes.json").read_bytes())["texts"]
        return {"int8": add_int8(folder, batches, probes, trial)}

    files = ("model.onnx", "tokenizer.json", "config.json", "probes.json", "probes.npy")
    return _made_once(store, base, "int8-rowwise", files, write)


def _made_once(
    store: ArtifactStore, base: Artifact, name: str, files: Sequence[str], write: Callable[[Path], dict[str, Any]]
) -> Artifact:
    """A query encoder derived from the base: its `files`, what `write` adds to them, and the meta that it returns."""
    marker = store.root / f"{name}.json"
    if marker.is_file():
        return store.open(FOLDER, json.loads(marker.read_bytes())["version"], verify="size")
    with store.writer("checkpoint", FOLDER) as writer:
        for file in files:
            shutil.copyfile(base.file(file), writer.path / file)
        added = write(writer.path)
        artifact = writer.commit({**base.meta, "pretrained": False, "base_version": base.id, **added}, id_prefix="q")
    marker.write_text(json.dumps({"version": artifact.id}))
    return artifact


def tokenizer_of(directory: Path) -> Tokenizer:
    """A checkpoint's tokenizer, without padding."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    return tokenizer


def sorted_batches(ids: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Batches of texts of like length: their positions in `ids`, and what a model is fed."""
    order = sorted(range(len(ids)), key=lambda n: len(ids[n]))
    for start in range(0, len(order), BATCH):
        part = order[start : start + BATCH]
        rows = np.zeros((len(part), len(ids[part[-1]])), dtype=np.int64)
        mask = np.zeros_like(rows)
        for row, position in enumerate(part):
            rows[row, : len(ids[position])] = ids[position]
            mask[row, : len(ids[position])] = 1
        yield part, {"input_ids": rows, "attention_mask": mask}


def embedded(base: Artifact, texts: list[str]) -> NDArray[np.float32]:
    """Unit vectors (n, dim) of texts in single precision, by a bare session in sorted batches."""
    model = session(base.file("model.onnx"), threads=2)
    ids = [encoding.ids for encoding in tokenizer_of(base.path).encode_batch_fast(texts)]
    vectors = np.empty((len(ids), base.meta["dim"]), dtype=np.float32)
    for positions, feeds in sorted_batches(ids):
        vectors[positions] = model.run(["sentence_embedding"], feeds)[0]
    return vectors


def vectors_of(directory: Path, texts: list[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The vectors of a checkpoint's own model for each text alone, (n, dim)."""
    model = session(directory / "model.onnx")
    rows = []
    for encoding in tokenizer_of(directory).encode_batch(texts):
        ids = np.array([encoding.ids])
        rows.append(model.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0][0])
    return np.stack(rows)


def _change_tensor(source: Path, target: Path, change: Callable[[Any], None], *, name: str = "") -> None:
    """Writes the model with its first vector of 384 numbers changed, of those whose name contains `name`."""
    import onnx

    model = onnx.load(source)
    change(next(t for t in model.graph.initializer if list(t.dims) == [384] and name in t.name))
    target.write_bytes(model.SerializeToString())


def _set_values(tensor: Any, change: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    from onnx import numpy_helper

    values = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(change(values).astype(values.dtype), tensor.name))


def damaged(store: ArtifactStore, source: Artifact, kind: str, number: int) -> Artifact:
    """A copy of `source` with one damage of `kind`; the caller removes it."""
    is_before, damage, _ = DAMAGES[kind]
    meta: dict[str, Any] = {**source.meta, "lineage": {"damage": kind, "number": number}}
    with store.writer("checkpoint", FOLDER) as writer:
        for name in source.files:
            shutil.copyfile(source.file(name), writer.path / name)
        if is_before:
            damage(writer.path, meta)
        artifact = writer.commit(meta, id_prefix="q")
    if not is_before:
        damage(artifact.path, meta)
    return artifact


def reason_of(kind: str) -> str:
    """The words that the encoder's reason must contain."""
    return DAMAGES[kind][2]


def _flip(path: Path, _meta: dict[str, Any]) -> None:
    with (path / "model.onnx").open("r+b") as file:
        file.seek(50_000_000)
        byte = file.read(1)
        file.seek(50_000_000)
        file.write(bytes([byte[0] ^ 1]))


def _nan(path: Path, _meta: dict[str, Any]) -> None:
    model = path / "model.onnx"
    _change_tensor(model, model, lambda tensor: _set_values(tensor, lambda values: np.full_like(values, np.nan)))


def _huge(path: Path, _meta: dict[str, Any]) -> None:
    def declare(tensor: Any) -> None:
        del tensor.dims[:]
        tensor.dims.extend([1 << 20, 1 << 20])

    _change_tensor(path / "model.onnx", path / "model.onnx", declare)


# kind: whether the change comes before the manifest is written, the change, words of the encoder's reason
DAMAGES: dict[str, tuple[bool, Change, str]] = {
    "truncated file": (
        False,
        lambda path, _: os.truncate(path / "model.onnx", (path / "model.onnx").stat().st_size - 1000),
        "bytes, its manifest says",
    ),
    "flipped byte": (False, _flip, "sha256"),
    "NaN weights": (True, _nan, "not finite"),
    "wrong dimension": (True, lambda _, meta: meta.update(dim=768), "has 768 dimensions"),
    "wrong space": (True, lambda _, meta: meta.update(space_id=meta["space_id"][:-4] + "0000"), "is of space"),
    "pickle": (
        True,
        lambda path, _: (path / "pytorch_model.bin").write_bytes(b"\x80\x04\x95not to be read"),
        "does not belong in a checkpoint",
    ),
    "huge tensor": (True, _huge, "declares a tensor of"),
    "missing file": (False, lambda path, _: (path / "tokenizer.json").unlink(), "is missing"),
}

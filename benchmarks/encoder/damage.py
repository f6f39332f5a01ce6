"""Checkpoints that must never serve, each wrong in its own way, and the reason that the encoder must give."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.checkpoints import FOLDER
from services.store.artifacts import Artifact, ArtifactStore

Change = Callable[[Path, dict[str, Any]], None]


def damaged(store: ArtifactStore, source: Artifact, kind: str, number: int) -> Artifact:
    """A copy of `source` with one damage of `kind`; the caller removes it."""
    before, after, _ = DAMAGES[kind]
    meta: dict[str, Any] = {**source.meta, "lineage": {"damage": kind, "number": number}}
    with store.writer("checkpoint", FOLDER) as writer:
        for name in source.files:
            shutil.copyfile(source.file(name), writer.path / name)
        before(writer.path, meta)
        artifact = writer.commit(meta, id_prefix="q")
    after(artifact.path, meta)
    return artifact


def reason_of(kind: str) -> str:
    """What the encoder's reason must contain."""
    return DAMAGES[kind][2]


def _nothing(_path: Path, _meta: dict[str, Any]) -> None:
    """Some damage is done before the manifest is written, some after."""


def _truncate(path: Path, _meta: dict[str, Any]) -> None:
    model = path / "model.onnx"
    model.write_bytes(model.read_bytes()[:-1000])


def _flip(path: Path, _meta: dict[str, Any]) -> None:
    with (path / "model.onnx").open("r+b") as file:
        file.seek(50_000_000)
        byte = file.read(1)
        file.seek(50_000_000)
        file.write(bytes([byte[0] ^ 1]))


def _lose(path: Path, _meta: dict[str, Any]) -> None:
    (path / "tokenizer.json").unlink()


def _nan(path: Path, _meta: dict[str, Any]) -> None:
    _change_tensor(path, lambda values: np.full_like(values, np.nan))


def _change_tensor(path: Path, change: Callable[[Any], Any]) -> None:
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path / "model.onnx")
    tensor = next(t for t in model.graph.initializer if list(t.dims) == [384])
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), tensor.name))
    onnx.save(model, path / "model.onnx")


def _huge(path: Path, _meta: dict[str, Any]) -> None:
    import onnx

    model = onnx.load(path / "model.onnx")
    tensor = next(t for t in model.graph.initializer if list(t.dims) == [384])
    del tensor.dims[:]
    tensor.dims.extend([1 << 20, 1 << 20])
    (path / "model.onnx").write_bytes(model.SerializeToString())


def _other_dimension(_path: Path, meta: dict[str, Any]) -> None:
    meta["dim"] = 768


def _other_space(_path: Path, meta: dict[str, Any]) -> None:
    meta["space_id"] = meta["space_id"][:-4] + "0000"


def _pickle(path: Path, _meta: dict[str, Any]) -> None:
    (path / "pytorch_model.bin").write_bytes(b"\x80\x04\x95not to be read")


# kind: before the manifest, after it, what the reason must contain
DAMAGES: dict[str, tuple[Change, Change, str]] = {
    "truncated file": (_nothing, _truncate, "bytes, its manifest says"),
    "flipped byte": (_nothing, _flip, "sha256"),
    "NaN weights": (_nan, _nothing, "not finite"),
    "wrong dimension": (_other_dimension, _nothing, "has 768 dimensions"),
    "wrong space": (_other_space, _nothing, "is of space"),
    "pickle": (_pickle, _nothing, "does not belong in a checkpoint"),
    "huge tensor": (_huge, _nothing, "declares a tensor of"),
    "missing file": (_nothing, _lose, "is missing"),
}

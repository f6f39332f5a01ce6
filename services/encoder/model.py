"""One loaded checkpoint: session, tokenizer, and the proof that they give the vectors they gave at export.

Loading happens beside whatever serves; nothing here touches the serving version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from aeenc.errors import DataLoss, FailedPrecondition
from services.encoder.onnx_scan import check_onnx
from services.encoder.tokenization import Tokenization
from services.kit.artifacts import Artifact

GOLDEN_COSINE = 0.999
NORM_TOLERANCE = 1e-3
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
SMALL_FILE_BYTES = 64 * 1024 * 1024
_FILES = {
    "model.onnx",
    "model.safetensors",
    "tokenizer.json",
    "config.json",
    "probes.json",
    "probes.npy",
    "metrics.json",
}
_META = ("space_id", "dim", "max_tokens", "pad_id", "query_prefix", "premise_prefix")


class Model:
    """A checkpoint that can be served. `run` may be called from several threads at once."""

    def __init__(self, artifact: Artifact, session: ort.InferenceSession, tokenization: Tokenization) -> None:
        meta: Mapping[str, Any] = artifact.meta
        self.version = artifact.id
        self.manifest_sha256 = artifact.manifest_sha256
        self.space_id: str = meta["space_id"]
        self.dim: int = meta["dim"]
        self.pad_id: int = meta["pad_id"]
        self.prefixes = {"query": str(meta["query_prefix"]), "premise": str(meta["premise_prefix"])}
        self.tokenization = tokenization
        self._session = session

    def run(self, ids: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Unit vectors (n, dim) of token ids, padded to the longest. Raises FloatingPointError when one is none."""
        length = max(len(tokens) for tokens in ids)
        input_ids = np.full((len(ids), length), self.pad_id, dtype=np.int64)
        mask = np.zeros((len(ids), length), dtype=np.int64)
        for row, tokens in enumerate(ids):
            input_ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        vectors: NDArray[np.float32] = self._session.run(
            ["sentence_embedding"], {"input_ids": input_ids, "attention_mask": mask}
        )[0]
        norms = np.einsum("nd,nd->n", vectors, vectors)
        if not np.all(np.abs(norms - 1) < NORM_TOLERANCE):  # NaN and infinity fail this too
            raise FloatingPointError("the model gave a vector that is not finite or has no unit norm")
        return vectors


def providers_of(device: str) -> list[str]:
    """Onnxruntime's execution providers for `auto`, `cpu` or `cuda`, the preferred first.

    Raises FailedPrecondition when CUDA is asked for and this build of onnxruntime has none.
    """
    if device == "cpu" or (device == "auto" and CUDA not in ort.get_available_providers()):
        return [CPU]
    if CUDA not in ort.get_available_providers():
        raise FailedPrecondition(
            "AEENC_ENCODER_DEVICE=cuda, but this onnxruntime has no CUDA; install the extra encoder-gpu"
        )
    ort.preload_dlls()  # the CUDA libraries that were installed as wheels
    return [CUDA, CPU]


def load_model(
    artifact: Artifact, *, space_id: str, dim: int | None, max_file_bytes: int, providers: Sequence[str] = (CPU,)
) -> Model:
    """Loads, warms and checks a checkpoint whose hashes have been verified. Blocks for a second or so.

    Raises DataLoss or FailedPrecondition with what is wrong and the file or value it is wrong with.
    """
    _check_meta(artifact, space_id, dim)
    _check_files(artifact, max_file_bytes)
    data = artifact.file("model.onnx").read_bytes()
    check_onnx(memoryview(data), str(artifact.path / "model.onnx"))
    model = Model(
        artifact,
        _session(data, artifact, providers),
        Tokenization(artifact.file("tokenizer.json"), artifact.meta["max_tokens"]),
    )
    _warm(model)
    _check_golden(model, artifact)
    return model


def _check_meta(artifact: Artifact, space_id: str, dim: int | None) -> None:
    missing = [name for name in _META if name not in artifact.meta]
    if artifact.kind != "checkpoint" or missing:
        raise DataLoss(f"{artifact.path} is no checkpoint (missing {', '.join(missing) or 'kind'}); publish it again")
    if artifact.meta["space_id"] != space_id:
        found = artifact.meta["space_id"]
        raise FailedPrecondition(f"checkpoint {artifact.id} is of space {found}, the label is of space {space_id}")
    if dim is not None and artifact.meta["dim"] != dim:
        found = artifact.meta["dim"]
        raise FailedPrecondition(f"checkpoint {artifact.id} has {found} dimensions, its space has {dim}")


def _check_files(artifact: Artifact, max_file_bytes: int) -> None:
    unknown = set(artifact.files) - _FILES
    if unknown:
        raise DataLoss(f"{artifact.path / min(unknown)} does not belong in a checkpoint; publish it without")
    for name, entry in artifact.files.items():
        limit = max_file_bytes if name.startswith("model.") else SMALL_FILE_BYTES
        if entry.size_bytes > limit:
            raise DataLoss(f"{artifact.path / name} has {entry.size_bytes:,} bytes, over the limit of {limit:,}")


def _session(data: bytes, artifact: Artifact, providers: Sequence[str]) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1  # parallelism comes from several workers, each with a batch of its own
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_cpu_mem_arena = False  # lengths vary; an arena would grow to the sum of all shapes and stay
    options.log_severity_level = 3
    try:
        session = ort.InferenceSession(data, options, providers=list(providers))
    except Exception as error:  # the runtime raises its own unexported classes
        raise DataLoss(f"{artifact.path / 'model.onnx'} is refused by onnxruntime: {str(error)[:200]}") from error
    inputs, outputs = {i.name for i in session.get_inputs()}, [o.name for o in session.get_outputs()]
    if inputs != {"input_ids", "attention_mask"} or "sentence_embedding" not in outputs:
        raise DataLoss(
            f"{artifact.path / 'model.onnx'} has inputs {sorted(inputs)} and outputs {outputs}; export it again"
        )
    return session


def _warm(model: Model) -> None:
    """Runs every length bucket once, so that no caller pays for first allocations; checks the dimension on the way."""
    length = 4
    while length <= model.tokenization.max_tokens:
        try:
            vectors = model.run([[model.pad_id + 1] * length])
        except Exception as error:
            raise DataLoss(f"checkpoint {model.version} fails at {length} tokens: {str(error)[:200]}") from error
        if vectors.shape != (1, model.dim):
            raise DataLoss(
                f"checkpoint {model.version} gives {vectors.shape[1]} dimensions, its manifest says {model.dim}"
            )
        length *= 2


def _check_golden(model: Model, artifact: Artifact) -> None:
    texts, expected = _probes(artifact.file("probes.json"), artifact.file("probes.npy"))
    if expected.shape != (len(texts), model.dim):
        raise DataLoss(f"{artifact.path / 'probes.npy'} has shape {expected.shape}, not ({len(texts)}, {model.dim})")
    found = model.run(model.tokenization(texts, truncate=True).ids)
    worst = float(np.einsum("nd,nd->n", found, expected).min())
    if not worst >= GOLDEN_COSINE:
        raise FailedPrecondition(
            f"checkpoint {model.version} gives other vectors here than at export: cosine {worst:.4f} to its probes, "
            f"{GOLDEN_COSINE} is needed"
        )


def _probes(texts_path: Path, vectors_path: Path) -> tuple[list[str], NDArray[np.float32]]:
    try:
        texts = [str(text) for text in json.loads(texts_path.read_bytes())["texts"]]
        vectors = np.load(vectors_path, allow_pickle=False)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise DataLoss(
            f"the probes beside {texts_path} cannot be read ({error}); publish the checkpoint again"
        ) from error
    if not texts:
        raise DataLoss(f"{texts_path} holds no probe; publish the checkpoint again")
    return texts, np.asarray(vectors, dtype=np.float32)

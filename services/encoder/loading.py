"""From verified files to a model that may serve: look inside, open, warm, and compare with what it gave at export.

Loading happens beside whatever serves; nothing here touches the serving version. It blocks for a second or so and
belongs into a thread of low priority.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aeenc.errors import AeencError, DataLoss, FailedPrecondition
from services.encoder import golden
from services.encoder.model import CROSS_ENCODERS, FLOAT16, FLOAT32, INT8, Description, Model
from services.encoder.onnx_scan import check_onnx
from services.encoder.onnx_session import CUDA, inputs_of, open_session
from services.encoder.runners import PaddedRunner, PairRunner, Runner, Session, SingleRunner, Tokens
from services.encoder.tokenization import Tokenization, Tokenizers
from services.encoder.torch_session import open_torch_session
from services.store.artifacts import Artifact

SMALL_FILE_BYTES = 64 * 1024 * 1024
WARM_LENGTHS = (4, 16, 64, 256, 1024, 4096)  # tokens, as far as they are below the model's limit
FILES = {
    "model.onnx",
    "model.int8.onnx",
    "model.fp16.onnx",
    "model.safetensors",
    "tokenizer.json",
    "config.json",
    "probes.json",
    "probes.npy",
    "probes.int8.npy",
    "metrics.json",
}
_EMBEDDING, _SCORE, _SEGMENTS = "sentence_embedding", "score", "token_type_ids"
_MODELS = {INT8: ("model.int8.onnx", "probes.int8.npy"), FLOAT16: ("model.fp16.onnx", "probes.npy")}


@dataclass(frozen=True)
class LoadOptions:
    """How this encoder loads: largest model file in bytes, the precision queries get, and where models run.

    With a `torch_device`, encoders run in torch there; cross-encoders, whose weights are in their ONNX file, never do.
    """

    max_file_bytes: int
    precision: str
    providers: Sequence[str]
    torch_device: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether encoders run on a GPU."""
        return self.torch_device == "cuda" if self.torch_device else CUDA in self.providers


def load_model(
    artifact: Artifact, options: LoadOptions, *, space_id: str, dim: int | None, tokenizers: Tokenizers | None = None
) -> Model:
    """Loads, warms and checks a checkpoint whose hashes have been verified. `tokenizers` spares reading one again.

    Raises DataLoss or FailedPrecondition with what is wrong and the file or value it is wrong with.
    """
    description = Description.of(artifact)
    check_place(description, space_id, dim)
    _check_files(artifact, options.max_file_bytes)
    tokenization = Tokenization((tokenizers or Tokenizers()).of(artifact), description.max_tokens)
    if description.model_type == "cross-encoder":
        pairs = _pair_runner(artifact, description, options)
        golden.check_scores(artifact, description, tokenization, pairs)
        return Model(description, tokenization, {FLOAT32: pairs})
    session = _session(artifact, "model.onnx", options)
    runner = PaddedRunner(session, pad_id=description.pad_id, dim=description.dim)
    _warm(runner, description)
    golden.check_vectors(artifact, description, tokenization, runner, "probes.npy")
    runners: dict[str, Runner] = {FLOAT32: runner}
    reason = ""
    if options.precision in _MODELS:
        try:
            low = _low_precision(artifact, description, tokenization, options)
            runners = {options.precision: low, FLOAT32: runner}
        except AeencError as error:
            reason = error.message
    return Model(description, tokenization, runners, reason)


def _low_precision(
    artifact: Artifact, description: Description, tokenization: Tokenization, options: LoadOptions
) -> Runner:
    """The runner of the precision that this encoder is set to. Raises what makes it fall back to single precision."""
    model, probes = _MODELS[options.precision]
    if options.torch_device and options.precision == INT8:
        raise FailedPrecondition("the torch runtime has no int8; use onnxruntime for it")
    if model not in artifact.files and not options.torch_device:
        measured = artifact.meta.get("int8" if options.precision == INT8 else "fp16", {}).get("reason", "")
        raise FailedPrecondition(f"checkpoint {artifact.id} has no {model}{f': {measured}' if measured else ''}")
    if options.precision == INT8 and not description.int8_passed:
        raise FailedPrecondition(f"checkpoint {artifact.id} has an int8 model that did not pass the trainer's gate")
    if options.precision == FLOAT16 and not options.on_gpu:
        raise FailedPrecondition("half precision is for a GPU; this encoder has none")
    session = _session(artifact, model, options)
    if options.precision == INT8:
        runner: Runner = SingleRunner(session, dim=description.dim)
    else:
        runner = PaddedRunner(session, pad_id=description.pad_id, dim=description.dim)
    _warm(runner, description)
    golden.check_vectors(artifact, description, tokenization, runner, probes)
    return runner


def _session(artifact: Artifact, model: str, options: LoadOptions) -> Session:
    """The session over one model file of an encoder, or over its safetensors in torch."""
    if options.torch_device:
        return open_torch_session(artifact, options.torch_device, half=model == _MODELS[FLOAT16][0])
    session: Session = open_session(_scanned(artifact, model), options.providers, _EMBEDDING)
    return session


def _pair_runner(artifact: Artifact, description: Description, options: LoadOptions) -> Runner:
    session = open_session(_scanned(artifact, "model.onnx"), options.providers, _SCORE, {_SEGMENTS})
    runner = PairRunner(session, pad_id=description.pad_id, segmented=_SEGMENTS in inputs_of(session))
    _warm(runner, description)
    return runner


def check_place(description: Description, space_id: str, dim: int | None) -> None:
    """Raises FailedPrecondition for a checkpoint of another kind, space or dimension than its label's."""
    version = description.version
    if (description.model_type == "cross-encoder") != (space_id == CROSS_ENCODERS):
        raise FailedPrecondition(f"checkpoint {version} is a {description.model_type}; space {space_id} has none")
    if description.space_id != space_id:
        raise FailedPrecondition(
            f"checkpoint {version} is of space {description.space_id}, the label is of space {space_id}"
        )
    if dim is not None and description.dim != dim:
        raise FailedPrecondition(f"checkpoint {version} has {description.dim} dimensions, its space has {dim}")


def _check_files(artifact: Artifact, max_file_bytes: int) -> None:
    unknown = set(artifact.files) - FILES
    if unknown:
        raise DataLoss(f"{artifact.path / min(unknown)} does not belong in a checkpoint; publish it without")
    for name, entry in artifact.files.items():
        limit = max_file_bytes if name.startswith("model.") else SMALL_FILE_BYTES
        if entry.size_bytes > limit:
            raise DataLoss(f"{artifact.path / name} has {entry.size_bytes:,} bytes, over the limit of {limit:,}")


def _scanned(artifact: Artifact, name: str) -> Path:
    """The path of a model file that nothing speaks against. Raises DataLoss."""
    path = artifact.file(name)
    if not artifact.files[name].size_bytes:
        raise DataLoss(f"{path} is empty; export it again")
    with path.open("rb") as file:
        # Closed by whoever holds the last view of it, which may be the traceback of what was found.
        check_onnx(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), str(path))
    return path


def _warm(runner: Runner, description: Description) -> None:
    """Runs texts of all magnitudes and the longest: no caller pays for first allocations. Checks the width, too."""
    shorter = [length for length in WARM_LENGTHS if length < description.max_tokens]
    for length in (*shorter, description.max_tokens):
        tokens = Tokens([description.pad_id + 1] * length, [0] * length)
        try:
            rows = runner.run([tokens])
        except Exception as error:
            raise DataLoss(f"checkpoint {description.version} fails at {length} tokens: {str(error)[:200]}") from error
        if rows.shape != (1, runner.width):
            raise DataLoss(
                f"checkpoint {description.version} gives {rows.shape[-1]} dimensions, its manifest says {runner.width}"
            )

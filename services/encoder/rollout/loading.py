"""Loading: the checks between the files of a checkpoint and a model that may serve.

    kind, space, dimension ──► file names, sizes ──► sha256 ──► ONNX scan ──► session ──► warm ──► golden check

The golden check compares the outputs here with those that the same file gave for its probes at export. Nothing here
touches the serving version. Loading is a generator of short steps, so it can be stopped, and go on in another thread,
between two of them.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import AeencError, DataLoss, FailedPrecondition
from services.corpus.arrays import map_array
from services.encoder.rollout.calibration import AUTO, Calibration, fastest, told
from services.encoder.runtime.model import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT8,
    Description,
    Model,
    Tokenization,
    TokenizerCache,
)
from services.encoder.runtime.onnx_session import CUDA, Placement, check_onnx, inputs_of, open_session
from services.encoder.runtime.openvino_session import OpenvinoSession, bfloat16_refusal
from services.encoder.runtime.runners import EMBEDDING, PaddedRunner, PairRunner, Runner, Session, Tokens
from services.encoder.runtime.torch_session import open_torch_session
from services.store.artifacts import Artifact
from services.store.registry_rows import CROSS_ENCODERS

MIN_COSINE = 0.999
SCORE_TOLERANCE = 1e-2  # of a cross-encoder's logit, which is a few units wide
SMALL_FILE_BYTES = 64 * 1024 * 1024
HASHED_BYTES = 8 * 1024 * 1024  # in one step, some 20 ms
WARM_LENGTHS = (4, 16, 64, 256, 1024, 4096)  # tokens, if below the model's limit
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
T = TypeVar("T")
Steps = Generator[None, None, Model]
_SCORE, _SEGMENTS = "score", "token_type_ids"
_MODELS = {
    INT8: ("model.int8.onnx", "probes.int8.npy"),
    BFLOAT16: ("model.onnx", "probes.npy"),
    FLOAT16: ("model.fp16.onnx", "probes.npy"),
}


@dataclass(frozen=True)
class LoadOptions:
    """The largest model file in bytes, the precision of queries, and the device.

    Precision AUTO measures what a version has on this CPU when it is loaded. `strict`: a version that cannot be
    computed in that precision here is not served under a label. With a `torch_device`, encoders run in torch there.
    Cross-encoders never do: their weights are in their ONNX file. `batch_tokens` is the most padded tokens in a batch,
    `workers` the number of threads that compute.
    """

    max_file_bytes: int
    precision: str
    placement: Placement
    torch_device: str = ""
    strict: bool = False
    batch_tokens: int = 0
    workers: int = 1

    @property
    def on_gpu(self) -> bool:
        """Whether encoders run on a GPU."""
        return self.torch_device.startswith("cuda") if self.torch_device else self.pairs_on_gpu

    @property
    def pairs_on_gpu(self) -> bool:
        """Whether cross-encoders run on a GPU."""
        return CUDA in self.placement.providers


def check_runtime(options: LoadOptions) -> None:
    """Raises FailedPrecondition for a precision asked for by name that this runtime can give no version."""
    if not options.strict:
        return
    if options.torch_device and options.precision in {INT8, BFLOAT16}:
        raise FailedPrecondition(
            f"AEENC_ENCODER_PRECISION={options.precision}, but the torch runtime has no {options.precision}; use "
            "onnxruntime for it"
        )
    if options.precision == BFLOAT16 and (reason := _bfloat16_refusal(options)):
        raise FailedPrecondition(f"AEENC_ENCODER_PRECISION=bfloat16, but {reason}")
    if options.precision == FLOAT16 and not options.on_gpu:
        raise FailedPrecondition("AEENC_ENCODER_PRECISION=float16, but half precision is for a GPU; set prefer-float16")


def all_of(steps: Generator[None, None, T]) -> T:
    """Takes all steps at once, and returns what they lead to."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def load_model(
    artifact: Artifact,
    options: LoadOptions,
    *,
    space_id: str,
    dim: int | None,
    tokenizers: TokenizerCache | None = None,
) -> Model:
    """Takes all the steps of `load_steps` at once."""
    return all_of(load_steps(artifact, options, space_id=space_id, dim=dim, tokenizers=tokenizers))


def load_steps(
    artifact: Artifact,
    options: LoadOptions,
    *,
    space_id: str,
    dim: int | None,
    tokenizers: TokenizerCache | None = None,
    calibration: Calibration | None = None,
) -> Steps:
    """Checks, loads and warms a checkpoint, step by step. `tokenizers` and `calibration` avoid doing things twice.

    Raises DataLoss or FailedPrecondition naming the wrong file or value.
    """
    description = Description.of(artifact)
    check_place(description, space_id, dim)
    _check_files(artifact, options.max_file_bytes)
    yield from _hash(artifact)
    tokenization = Tokenization((tokenizers or TokenizerCache()).of(artifact), description.max_tokens)
    yield
    runners, refused = yield from open_runners(artifact, description, tokenization, options)
    of_premises = description.premise_precision
    if of_premises not in runners:
        raise FailedPrecondition(
            f"premises of space {space_id} are {of_premises}, which this encoder cannot compute: {refused[of_premises]}"
        )
    asked = [FLOAT32, *_asked(options, description)]
    first, reasons = [name for name in asked if name in runners][-1], list(refused.values())
    if options.precision == AUTO and len(runners) > 1:
        sizes = tuple(entry.size_bytes for name, entry in artifact.files.items() if name.endswith(".onnx"))
        tokens = probe_tokens(artifact, description, tokenization)
        rates = yield from (calibration or Calibration()).rates(sizes, runners, tokens)
        first = fastest(rates)
        reasons.insert(0, told(rates))
    runners = {name: runners[name] for name in (first, FLOAT32, of_premises)}  # what does not serve takes no memory
    return Model(description, tokenization, runners, "; ".join(reasons))


def open_runners(
    artifact: Artifact, description: Description, tokenization: Tokenization, options: LoadOptions
) -> Generator[None, None, tuple[dict[str, Runner], dict[str, str]]]:
    """Opens, warms and checks a verified model in single precision and in the lower ones that the options name.

    Returns the runners, single precision first, and why each other precision was refused. Raises DataLoss or
    FailedPrecondition for single precision.
    """
    runner = _runner(artifact, description, options, FLOAT32)
    yield
    _warm(runner, description, options)
    yield
    _check_probes(artifact, description, tokenization, runner, "probes.npy")
    yield
    runners: dict[str, Runner] = {FLOAT32: runner}
    refused: dict[str, str] = {}
    for precision in _lower_precisions(options, description):
        try:
            runners[precision] = _low_precision(artifact, description, tokenization, options, precision)
        except AeencError as error:
            refused[precision] = error.message
        yield
    return runners, refused


def _lower_precisions(options: LoadOptions, description: Description) -> Sequence[str]:
    """The precisions to load beside single precision: those asked for, and that of the space's premises."""
    needed = {description.premise_precision} - {FLOAT32}
    return list(dict.fromkeys([*_asked(options, description), *needed]))


def _asked(options: LoadOptions, description: Description) -> Sequence[str]:
    """The lower precisions that the options name; a cross-encoder may have int8 on a CPU."""
    if description.model_type == "cross-encoder":
        return [INT8] if options.precision in {AUTO, INT8} and not options.pairs_on_gpu else []
    return [INT8, BFLOAT16] if options.precision == AUTO else [one for one in _MODELS if one == options.precision]


def _bfloat16_refusal(options: LoadOptions) -> str:
    return "bfloat16 is for a CPU; use float16 on a GPU" if options.on_gpu else bfloat16_refusal()


def _low_precision(
    artifact: Artifact, description: Description, tokenization: Tokenization, options: LoadOptions, precision: str
) -> Runner:
    """Opens the runner of a lower precision. Raises the reason to fall back to single precision."""
    model, probes = _MODELS[precision]
    in_torch = options.torch_device and description.model_type != "cross-encoder"
    if in_torch and precision in {INT8, BFLOAT16}:
        raise FailedPrecondition(f"the torch runtime has no {precision}; use onnxruntime for it")
    if precision == BFLOAT16 and (reason := _bfloat16_refusal(options)):
        raise FailedPrecondition(reason)
    if model not in artifact.files and not in_torch:
        measured = artifact.meta.get("int8" if precision == INT8 else "fp16", {}).get("reason", "")
        raise FailedPrecondition(f"checkpoint {artifact.id} has no {model}{f': {measured}' if measured else ''}")
    if precision == INT8 and not description.int8_passed:
        raise FailedPrecondition(f"checkpoint {artifact.id} has an int8 model that did not pass the trainer's gate")
    if precision == FLOAT16 and not options.on_gpu:
        raise FailedPrecondition("half precision is for a GPU; this encoder has none")
    runner = _runner(artifact, description, options, precision)
    _warm(runner, description, options)
    _check_probes(artifact, description, tokenization, runner, probes)
    return runner


def _runner(artifact: Artifact, description: Description, options: LoadOptions, precision: str) -> Runner:
    """Opens the runner of a precision."""
    model = "model.onnx" if precision == FLOAT32 else _MODELS[precision][0]
    if description.model_type == "cross-encoder":
        pairs = open_session(_scanned(artifact, model), options.placement, _SCORE, {_SEGMENTS})
        return PairRunner(pairs, pad_id=description.pad_id, segmented=_SEGMENTS in inputs_of(pairs))
    if options.torch_device:
        session: Session = open_torch_session(artifact, options.torch_device, half=precision == FLOAT16)
    elif precision == BFLOAT16:
        session = OpenvinoSession(_scanned(artifact, model), options.workers)
    else:
        session = open_session(_scanned(artifact, model), options.placement, EMBEDDING)
    return PaddedRunner(session, pad_id=description.pad_id, dim=description.dim)


def check_place(description: Description, space_id: str, dim: int | None) -> None:
    """Raises FailedPrecondition unless kind, space and dimension are those of the label's space."""
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


def model_bytes(artifact: Artifact, options: LoadOptions, kept: Collection[str] | None = None) -> int:
    """Returns the size of the model files that loading opens, about what the model takes in memory.

    With `kept`, that of these precisions: what calibration has not chosen takes none any more.
    """
    description = Description.of(artifact)
    in_torch = options.torch_device and description.model_type != "cross-encoder"
    names = ["model.safetensors"] if in_torch else ["model.onnx"]
    lower = [] if in_torch else _lower_precisions(options, description)
    lower = [precision for precision in lower if kept is None or precision in kept]
    names += [_MODELS[precision][0] for precision in lower if precision != BFLOAT16]
    halves = ["model.onnx"] * options.workers if BFLOAT16 in lower and not _bfloat16_refusal(options) else []
    sizes = {name: entry.size_bytes for name, entry in artifact.files.items()}
    return sum(sizes.get(name, 0) for name in names) + sum(sizes.get(name, 0) // 2 for name in halves)


def _hash(artifact: Artifact) -> Generator[None, None, None]:
    """Raises DataLoss for a file that has not the sha256 of the manifest."""
    for name, entry in artifact.files.items():
        path, digest = artifact.file(name), hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(HASHED_BYTES):
                digest.update(block)
                yield
        if digest.hexdigest() != entry.sha256:
            raise DataLoss(f"{path} does not have the sha256 of its manifest; restore it")


def _scanned(artifact: Artifact, name: str) -> Path:
    """Returns the path of a model file that passes the ONNX scan. Raises DataLoss."""
    path = artifact.file(name)
    if not artifact.files[name].size_bytes:
        raise DataLoss(f"{path} is empty; export it again")
    with path.open("rb") as file:
        # Closes with its last view, which may be in the traceback of an error.
        check_onnx(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), str(path))
    return path


def _warm(runner: Runner, description: Description, options: LoadOptions) -> None:
    """Runs texts of each magnitude up to the longest, so no caller pays for first allocations. Checks the width.

    On a GPU, whose memory then stays reserved, it also runs the largest batch.
    """
    longest = description.max_tokens
    shapes = [(1, length) for length in WARM_LENGTHS if length < longest] + [(1, longest)]
    on_gpu = options.pairs_on_gpu if description.model_type == "cross-encoder" else options.on_gpu
    if on_gpu and options.batch_tokens >= 2 * longest:
        shapes.append((options.batch_tokens // longest, longest))
    for texts, length in shapes:
        tokens = Tokens([description.pad_id + 1] * length, [0] * length)
        try:
            rows = runner.run([tokens] * texts)
        except Exception as error:
            asked = f"{texts} x {length} tokens" if texts > 1 else f"{length} tokens"
            raise DataLoss(f"checkpoint {description.version} fails at {asked}: {str(error)[:200]}") from error
        if rows.shape != (texts, runner.width):
            raise DataLoss(
                f"checkpoint {description.version} gives {rows.shape[-1]} dimensions, its manifest says {runner.width}"
            )


def _check_probes(
    artifact: Artifact, description: Description, tokenization: Tokenization, runner: Runner, expected_file: str
) -> None:
    """Compares the probes' outputs. Raises FailedPrecondition when one differs, DataLoss for bad probes."""
    tokens = probe_tokens(artifact, description, tokenization)
    if description.model_type == "cross-encoder":
        _check_scores(artifact, description, tokens, runner, expected_file)
    else:
        _check_vectors(artifact, description, tokens, runner, expected_file)


def _check_vectors(
    artifact: Artifact, description: Description, tokens: Sequence[Tokens], runner: Runner, expected_file: str
) -> None:
    expected = _expected(artifact, expected_file, (len(tokens), description.dim))
    vectors = _in_twos(runner, tokens)
    worst = float(np.einsum("nd,nd->n", vectors, expected).min())
    if not worst >= MIN_COSINE:
        raise FailedPrecondition(
            f"checkpoint {description.version} gives other vectors here than at export: cosine {worst:.4f} to its "
            f"probes ({expected_file}), {MIN_COSINE} is needed"
        )


def probe_tokens(artifact: Artifact, description: Description, tokenization: Tokenization) -> Sequence[Tokens]:
    """Returns the tokens of a model's probes: texts, or pairs. Raises DataLoss."""
    path = artifact.file("probes.json")
    if description.model_type != "cross-encoder":
        return tokenization.texts([str(text) for text in _read_probes(path, "texts")], truncate=True).tokens
    pairs = [(str(query), str(premise)) for query, premise in _read_probes(path, "pairs")]
    return [tokenization.pairs(query, [premise], truncate=True).tokens[0] for query, premise in pairs]


def _check_scores(
    artifact: Artifact, description: Description, tokens: Sequence[Tokens], runner: Runner, expected_file: str
) -> None:
    expected = _expected(artifact, expected_file, (len(tokens),))
    scores = np.concatenate([runner.run([pair]) for pair in tokens])[:, 0]
    worst = float(np.abs(scores - expected).max())
    if not worst <= SCORE_TOLERANCE:
        raise FailedPrecondition(
            f"cross-encoder {description.version} gives other scores here than at export: off by {worst:.4f} "
            f"from its probes ({expected_file}), {SCORE_TOLERANCE} is allowed"
        )


def _in_twos(runner: Runner, probes: Sequence[Tokens]) -> NDArray[np.float32]:
    """Computes the probes' vectors (n, dim) in pairs of similar length, which tests padding at little cost."""
    order = sorted(range(len(probes)), key=lambda n: len(probes[n].ids))
    twos = [runner.run([probes[n] for n in order[start : start + 2]]) for start in range(0, len(order), 2)]
    return np.concatenate(twos)[np.argsort(order)]


def _read_probes(path: Path, key: str) -> list[Any]:
    try:
        probes = list(json.loads(path.read_bytes())[key])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise DataLoss(f"{path} cannot be read ({error!r}); publish the checkpoint again") from error
    if not probes:
        raise DataLoss(f"{path} holds no probe; publish the checkpoint again")
    return probes


def _expected(artifact: Artifact, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    path = artifact.file(name)
    try:
        expected = np.array(map_array(path), dtype=np.float32)
    except (ValueError, TypeError, OSError) as error:
        raise DataLoss(f"{path} cannot be read ({error}); publish the checkpoint again") from error
    if expected.shape != shape:
        raise DataLoss(f"{path} has shape {expected.shape}, not {shape}; publish the checkpoint again")
    return expected

"""Loading: the checks between the files of a checkpoint and a model that may serve.

    kind, space, spec ──► file names, sizes ──► sha256 ──► ONNX scan ──► session ──► warm ──► golden check

The golden check compares the outputs here with those that the same file gave for its probes at export. Nothing here
touches the serving version. `pause` is called between steps of some 20 ms; what it raises ends the load.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import DataLoss, FailedPrecondition
from services.corpus.arrays import map_array
from services.devices import is_out_of_memory
from services.encoder.runtime.model import FLOAT16, FLOAT32, INT8, Description, Model, Tokenization, tokenizer_of
from services.encoder.runtime.onnx_session import check_onnx, inputs_of, multiplies_int8, open_session
from services.encoder.runtime.runners import EMBEDDING, PaddedRunner, PairRunner, Runner, Session, Tokens
from services.encoder.runtime.torch_session import WEIGHTS, open_torch_session
from services.onnx_devices import CUDA, Placement
from services.store.artifacts import Artifact
from services.store.formats import damage_is_data_loss
from services.store.registry_rows import CROSS_ENCODERS

MIN_COSINE = 0.999
NORM_TOLERANCE = 1e-3  # of the vectors at export
SCORE_TOLERANCE = 1e-2  # of a cross-encoder's logit, which is a few units wide
SMALL_FILE_BYTES = 64 * 1024 * 1024
HASHED_BYTES = 8 * 1024 * 1024  # in one step
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
AGAIN = "publish the checkpoint again"
_SCORE, _SEGMENTS = "score", "token_type_ids"
_ONNX = {FLOAT32: "model.onnx", INT8: "model.int8.onnx", FLOAT16: "model.fp16.onnx"}
_TORCH = {FLOAT32: WEIGHTS, FLOAT16: WEIGHTS}


@dataclass(frozen=True)
class LoadOptions:
    """The largest model file in bytes, and the device.

    With a `torch_device`, encoders run in torch there. Cross-encoders never do: their weights are in their ONNX file.
    `batch_tokens` is the most padded tokens in a batch.
    """

    max_file_bytes: int
    placement: Placement
    torch_device: str = ""
    batch_tokens: int = 0

    @property
    def on_gpu(self) -> bool:
        """Whether encoders run on a GPU."""
        return self.torch_device.startswith("cuda") if self.torch_device else self.pairs_on_gpu

    def places_on_gpu(self, description: Description) -> bool:
        """Whether a model runs on a GPU."""
        return self.pairs_on_gpu if description.is_cross_encoder else self.on_gpu

    @property
    def pairs_on_gpu(self) -> bool:
        """Whether cross-encoders run on a GPU."""
        return CUDA in self.placement.providers

    @property
    def faster(self) -> Mapping[str, str]:
        """The precision in which encoders compute faster here than in float32, and the file that it needs."""
        if self.on_gpu:
            return {FLOAT16: (_TORCH if self.torch_device else _ONNX)[FLOAT16]}
        return {INT8: _ONNX[INT8]} if not self.torch_device and multiplies_int8() else {}


def load_model(
    artifact: Artifact,
    options: LoadOptions,
    *,
    space_id: str,
    premises: Description | None = None,
    pause: Callable[[], None] = lambda: None,
) -> Model:
    """Checks, loads and warms a checkpoint in float32, and in the precision of the premises that it encodes.

    `premises` is the premise encoder of its space, if that is loaded. Raises DataLoss or FailedPrecondition naming the
    wrong file or value.
    """
    description = Description.of(artifact)
    check_place(description, space_id, premises)
    _check_files(artifact, options.max_file_bytes)
    _check_hashes(artifact, artifact.files, pause)
    tokenization = Tokenization(tokenizer_of(artifact), description.max_tokens)
    model = Model(description, tokenization)
    for precision in dict.fromkeys((FLOAT32, description.premise_precision)):
        add_precision(model, artifact, options, precision, pause=pause)
    return model


def add_precision(
    model: Model,
    artifact: Artifact,
    options: LoadOptions,
    precision: str,
    *,
    pause: Callable[[], None] = lambda: None,
) -> Model:
    """Opens, warms and checks a precision of a model. Raises FailedPrecondition or DataLoss where it cannot be."""
    description = model.description
    name = _file_of(description, options, precision)
    if not name:
        raise _cannot(description, precision, "half precision is for a GPU, int8 for onnxruntime on a CPU")
    if name not in artifact.files:
        measured = artifact.meta.get("int8" if precision == INT8 else "fp16", {}).get("reason", "")
        raise _cannot(description, precision, f"it has no {name}{f': {measured}' if measured else ''}")
    if precision == INT8 and not description.int8_passed:
        raise _cannot(description, precision, "its int8 model did not pass the trainer's gate")
    if model.runners:  # the first time, all files were read just now
        _check_hashes(artifact, [name], pause)
    runner = _runner(artifact, description, options, name, half=precision == FLOAT16)
    pause()
    _warm(runner, description, options, pause)
    probes = "probes.int8.npy" if precision == INT8 else "probes.npy"
    _check_probes(artifact, description, probe_tokens(artifact, description, model.tokenization), runner, probes)
    model.runners[precision] = runner
    return model


def _cannot(description: Description, precision: str, why: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"version {description.version} cannot be computed in {precision} here: {why}; publish it in float32, or serve "
        "it by encoders that can"
    )


def _file_of(description: Description, options: LoadOptions, precision: str) -> str:
    """Returns the file of a precision; "" for one that this encoder computes for no model of this type."""
    on_gpu, is_pair = options.places_on_gpu(description), description.is_cross_encoder
    if (precision == FLOAT16 and not on_gpu) or (precision == INT8 and is_pair and on_gpu):
        return ""
    return (_TORCH if options.torch_device and not is_pair else _ONNX).get(precision, "")


def _runner(artifact: Artifact, description: Description, options: LoadOptions, name: str, *, half: bool) -> Runner:
    if description.is_cross_encoder:
        pairs = open_session(_scanned(artifact, name), options.placement, _SCORE, {_SEGMENTS})
        return PairRunner(pairs, pad_id=description.pad_id, segmented=_SEGMENTS in inputs_of(pairs))
    if name == WEIGHTS:
        session: Session = open_torch_session(artifact, options.torch_device, half=half)
    else:
        session = open_session(_scanned(artifact, name), options.placement, EMBEDDING)
    return PaddedRunner(session, pad_id=description.pad_id, dim=description.dim)


def check_place(description: Description, space_id: str, premises: Description | None) -> None:
    """Raises FailedPrecondition unless kind and space are the label's, and the rest is as in the premise encoder."""
    version = description.version
    if description.is_cross_encoder != (space_id == CROSS_ENCODERS):
        kind = "cross-encoder" if description.is_cross_encoder else "sentence-encoder"
        raise FailedPrecondition(f"checkpoint {version} is a {kind}; space {space_id} has none")
    if description.space_id != space_id:
        raise FailedPrecondition(
            f"checkpoint {version} is of space {description.space_id}, the label is of space {space_id}"
        )
    if premises is None:
        return
    for name, found in description.space_spec.items():
        if found != (expected := premises.space_spec[name]):
            raise FailedPrecondition(
                f"checkpoint {version} has {name} {found!r}, its space has {expected!r}; publish it as it was trained"
            )


def _check_files(artifact: Artifact, max_file_bytes: int) -> None:
    unknown = set(artifact.files) - FILES
    if unknown:
        raise DataLoss(f"{artifact.path / min(unknown)} does not belong in a checkpoint; publish it without")
    for name, entry in artifact.files.items():
        limit = max_file_bytes if name.startswith("model.") else SMALL_FILE_BYTES
        if entry.size_bytes > limit:
            raise DataLoss(f"{artifact.path / name} has {entry.size_bytes:,} bytes, over the limit of {limit:,}")


def model_bytes(artifact: Artifact, options: LoadOptions, precision: str = "") -> int:
    """Returns the size of the files of a precision, or of all that `load_model` opens: what they take in memory."""
    description = Description.of(artifact)
    precisions = {precision} if precision else {FLOAT32, description.premise_precision}
    names = {_file_of(description, options, one) for one in precisions}
    return sum(entry.size_bytes for name, entry in artifact.files.items() if name in names)


def _check_hashes(artifact: Artifact, names: Collection[str], pause: Callable[[], None]) -> None:
    """Raises DataLoss for a file that has not the sha256 of the manifest."""
    for name in names:
        path, digest = artifact.file(name), hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(HASHED_BYTES):
                digest.update(block)
                pause()
        if digest.hexdigest() != artifact.files[name].sha256:
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


def _warm(runner: Runner, description: Description, options: LoadOptions, pause: Callable[[], None]) -> None:
    """Runs texts of each magnitude up to the longest, so no caller pays for first allocations. Checks the width.

    On a GPU, whose memory then stays reserved, it also runs the largest batch.
    """
    longest = description.max_tokens
    shapes = [(1, length) for length in WARM_LENGTHS if length < longest] + [(1, longest)]
    if options.places_on_gpu(description) and options.batch_tokens >= 2 * longest:
        shapes.append((options.batch_tokens // longest, longest))
    for texts, length in shapes:
        try:
            rows = runner.run([description.text_of(length)] * texts)
        except Exception as error:
            if texts > 1 and is_out_of_memory(error):
                break  # such batches are halved as they come
            asked = f"{texts} x {length} tokens" if texts > 1 else f"{length} tokens"
            raise DataLoss(f"checkpoint {description.version} fails at {asked}: {str(error)[:500]}") from error
        if rows.shape != (texts, runner.width):
            raise DataLoss(
                f"checkpoint {description.version} gives {rows.shape[-1]} dimensions, its manifest says {runner.width}"
            )
        pause()


def _check_probes(
    artifact: Artifact, description: Description, tokens: Sequence[Tokens], runner: Runner, expected_file: str
) -> None:
    """Raises FailedPrecondition for rows that are not close to those at export, DataLoss for bad probes."""
    path, computed = artifact.file(expected_file), _computed_in_twos(runner, tokens)
    if description.is_cross_encoder:
        computed = computed[:, 0]
    with damage_is_data_loss(path, AGAIN):
        expected = np.array(map_array(path), dtype=np.float64)
    if expected.shape != computed.shape:
        raise DataLoss(f"{path} has shape {expected.shape}, not {computed.shape}; {AGAIN}")
    if description.is_cross_encoder:
        worst = float(np.abs(computed - expected).max())
        is_close, is_off = worst <= SCORE_TOLERANCE, f"off by {worst:.4f}, {SCORE_TOLERANCE} is allowed"
    else:
        norms = np.linalg.norm(expected, axis=1)
        if not np.all(np.abs(norms - 1) <= NORM_TOLERANCE):
            raise DataLoss(f"{path} holds vectors without unit norm; {AGAIN}")
        worst = float((np.einsum("nd,nd->n", computed, expected) / norms).min())
        is_close, is_off = worst >= MIN_COSINE, f"cosine {worst:.4f}, {MIN_COSINE} is needed"
    if not is_close:
        about = f"checkpoint {description.version} gives other values for its probes than at export ({expected_file})"
        raise FailedPrecondition(f"{about}: {is_off}")


def probe_tokens(artifact: Artifact, description: Description, tokenization: Tokenization) -> Sequence[Tokens]:
    """Returns the tokens of a model's probes: texts, or pairs. Raises DataLoss."""
    path = artifact.file("probes.json")
    with damage_is_data_loss(path, AGAIN):
        probes = json.loads(path.read_bytes())["pairs" if description.is_cross_encoder else "texts"]
        if not description.is_cross_encoder:
            tokens = tokenization.texts(probes, truncate=True).tokens
        else:
            tokens = [tokenization.pairs(query, [text], truncate=True).tokens[0] for query, text in probes]
    if not tokens:
        raise DataLoss(f"{path} holds no probe; {AGAIN}")
    return tokens


def _computed_in_twos(runner: Runner, probes: Sequence[Tokens]) -> NDArray[np.float32]:
    """Computes the probes' rows (n, width), two of similar length at a time, which tests padding at little cost."""
    order = sorted(range(len(probes)), key=lambda n: len(probes[n].ids))
    twos = [runner.run([probes[n] for n in order[start : start + 2]]) for start in range(0, len(order), 2)]
    return np.concatenate(twos)[np.argsort(order)]

"""The golden check: a checkpoint must give here what its own file gave for its probes at export."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import DataLoss, FailedPrecondition
from services.encoder.model import Description
from services.encoder.runners import Runner, Tokens
from services.encoder.tokenization import Tokenization
from services.store.artifacts import Artifact

COSINE = 0.999
SCORE_TOLERANCE = 1e-2  # of a cross-encoder's logit, which is a few units wide


def check_vectors(
    artifact: Artifact, description: Description, tokenization: Tokenization, runner: Runner, expected_file: str
) -> None:
    """Compares vectors by cosine. Raises FailedPrecondition when one differs, DataLoss for probes that are none."""
    texts = [str(text) for text in _read(artifact.file("probes.json"), "texts")]
    expected = _expected(artifact, expected_file, (len(texts), description.dim))
    found = _in_twos(runner, tokenization.texts(texts, truncate=True).tokens)
    worst = float(np.einsum("nd,nd->n", found, expected).min())
    if not worst >= COSINE:
        raise FailedPrecondition(
            f"checkpoint {description.version} gives other vectors here than at export: cosine {worst:.4f} to its "
            f"probes ({expected_file}), {COSINE} is needed"
        )


def check_scores(artifact: Artifact, description: Description, tokenization: Tokenization, runner: Runner) -> None:
    """Compares scores. Raises FailedPrecondition when one differs, DataLoss for probes that are none."""
    pairs = [(str(query), str(premise)) for query, premise in _read(artifact.file("probes.json"), "pairs")]
    expected = _expected(artifact, "probes.npy", (len(pairs),))
    found = np.concatenate([runner.run(tokenization.pairs(q, [p], truncate=True).tokens) for q, p in pairs])[:, 0]
    worst = float(np.abs(found - expected).max())
    if not worst <= SCORE_TOLERANCE:
        raise FailedPrecondition(
            f"cross-encoder {description.version} gives other scores here than at export: off by {worst:.4f}, "
            f"{SCORE_TOLERANCE} is allowed"
        )


def _in_twos(runner: Runner, probes: Sequence[Tokens]) -> NDArray[np.float32]:
    """The probes' vectors (n, dim), two of similar length a run: padding is checked, and little of it is computed."""
    order = sorted(range(len(probes)), key=lambda n: len(probes[n].ids))
    found = [runner.run([probes[n] for n in order[start : start + 2]]) for start in range(0, len(order), 2)]
    return np.concatenate(found)[np.argsort(order)]


def _read(path: Path, key: str) -> list[Any]:
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
        expected = np.asarray(np.load(path, allow_pickle=False), dtype=np.float32)
    except (ValueError, TypeError, OSError) as error:
        raise DataLoss(f"{path} cannot be read ({error}); publish the checkpoint again") from error
    if expected.shape != shape:
        raise DataLoss(f"{path} has shape {expected.shape}, not {shape}; publish the checkpoint again")
    return expected

"""The files of a checkpoint beside its model and weights: the probes, by which the encoder service checks it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.trainer.models.space import SpaceSpec, pad_id_of, space_id_of

MAX_DIFFERENCE = 1e-4  # between onnxruntime and torch, per component of a unit vector

# Sixteen texts of one to several dozen words, so that loading a checkpoint probes every length bucket.
_CLAUSES = (
    "magnetism",
    "an iron nail is attracted by a magnet",
    "if an object is made of a magnetic metal then it is pulled towards a magnet",
    "the sun is a star; it gives light and heat to the planets that travel around it",
)
PROBES = tuple("; ".join([clause] * times) for clause in _CLAUSES for times in (1, 2, 3, 5))


def write_probes(path: Path, directory: Path, vectors: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Writes the probes with their `vectors` by onnxruntime into `path`, and copies what else comes from `directory`.

    Both (16, dim). Raises ValueError if they differ from those that torch computes.
    """
    difference = float(np.abs(vectors - expected).max())
    if not difference <= MAX_DIFFERENCE:
        raise ValueError(f"the exported model differs from the trained one by {difference:.2g}; it is not published")
    for name in ("config.json", "tokenizer.json"):
        shutil.copyfile(directory / name, path / name)
    (path / "probes.json").write_text(json.dumps({"texts": list(PROBES)}))
    np.save(path / "probes.npy", vectors, allow_pickle=False)


def spec_of(directory: Path, request: Mapping[str, Any]) -> SpaceSpec:
    """Reads the spec of a base model, as a request to export it asks for."""
    return SpaceSpec.of(
        directory,
        max_tokens=request["max_tokens"],
        query_prefix=request["query_prefix"],
        premise_prefix=request["premise_prefix"],
        pooling=request.get("pooling", ""),
        premise_precision=request.get("premise_precision", "float32"),
    )


def pretrained_meta(directory: Path, spec: SpaceSpec, base_model: str) -> dict[str, Any]:
    """Returns the meta of a base model: the premise encoder of its space and the first query encoder."""
    return {
        "space_id": space_id_of(directory, spec),
        "pretrained": True,
        "pad_id": pad_id_of(directory),
        "base_version": "",
        "job_id": "",
        "validation_map": 0.0,
        "lineage": {"base_model": base_model},
    }

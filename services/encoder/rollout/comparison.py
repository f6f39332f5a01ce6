"""Measures each precision of a checkpoint on this CPU: `python -m services.encoder.rollout.comparison ARTIFACTS`.

It takes the checkpoint that has most precisions, makes the checks of a load, and prints JSON for `aeenc doctor --cpu`.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np

from aeenc.errors import AeencError, FailedPrecondition
from services.encoder.rollout.calibration import AUTO, fastest, measured
from services.encoder.rollout.loading import LoadOptions, all_of, open_runners, probe_tokens
from services.encoder.runtime.model import BFLOAT16, FLOAT32, Description, Tokenization, TokenizerCache
from services.encoder.runtime.onnx_session import CPU, Placement
from services.store.artifacts import Artifact, ArtifactStore

FOLDER = "checkpoints"
_CPUINFO = Path("/proc/cpuinfo")


def compare(artifact: Artifact) -> list[dict[str, Any]]:
    """Returns for each precision its runtime, texts a second on one core, least cosine to float32, and a verdict."""
    description = Description.of(artifact)
    tokenization = Tokenization(TokenizerCache().of(artifact), description.max_tokens)
    options = LoadOptions(sys.maxsize, AUTO, Placement([CPU]))
    runners, refused = all_of(open_runners(artifact, description, tokenization, options))
    tokens = probe_tokens(artifact, description, tokenization)
    rates = all_of(measured(runners, tokens))
    vectors = {name: np.concatenate([runner.run([one]) for one in tokens]) for name, runner in runners.items()}
    rows = []
    for name in (*runners, *refused):
        cosine = float(np.einsum("nd,nd->n", vectors[name], vectors[FLOAT32]).min()) if name in runners else None
        passed = "passes; auto serves it" if name == fastest(rates) else "passes"
        rows.append(
            {
                "precision": name,
                "runtime": "OpenVINO" if name == BFLOAT16 else "onnxruntime",
                "texts_s": round(rates[name], 1) if name in runners else None,
                "cosine": None if cosine is None else round(cosine, 6),
                "verdict": refused.get(name, passed),
            }
        )
    return rows


def _chosen(store: ArtifactStore) -> Artifact:
    """Returns an encoder that has int8, else any. Raises FailedPrecondition when there is none."""
    found = [store.open(FOLDER, one, verify="size") for one in store.list(FOLDER)]
    encoders = [one for one in found if Description.of(one).model_type == "sentence-encoder"]
    if not encoders:
        raise FailedPrecondition(f"{store.root} holds no checkpoint to measure with; `aeenc up` makes the first")
    best = max(encoders, key=lambda one: "model.int8.onnx" in one.files)
    return store.open(FOLDER, best.id, verify="full")


def _cpu() -> str:
    lines = _CPUINFO.read_text(encoding="utf-8").splitlines() if _CPUINFO.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    """Prints the comparison; the error of a failure is the last line of standard error."""
    try:
        artifact = _chosen(ArtifactStore(Path(sys.argv[1])))
        print(json.dumps({"version": artifact.id, "cpu": _cpu(), "precisions": compare(artifact)}))  # noqa: T201 -- its answer
    except AeencError as error:
        sys.exit(error.message)


if __name__ == "__main__":
    main()

"""Imports what a job computes with and traces the tiny model: forks of a process with this imported need neither."""

from __future__ import annotations

import tempfile
from pathlib import Path

import tqdm

from services.trainer.models.batches import Batches
from services.trainer.train import job
from services.trainer.train.encoder import load_encoder, tensors_of
from services.trainer.train.export import checkpoint as export
from services.trainer.train.export.writer import PROBES, spec_of
from support.models.forks import Graphs
from support.models.tiny_base_models import write_tiny_base

__all__ = ["job"]


def trace() -> None:
    """Traces as an export does, but without onnxruntime and progress bars, which would leave threads."""
    tqdm.tqdm.monitor_interval = 0
    request = {"max_tokens": 64, "query_prefix": "", "premise_prefix": ""}
    with tempfile.TemporaryDirectory() as folder:
        base = write_tiny_base(Path(folder))
        spec = spec_of(base, request)
        example = tensors_of(Batches.of(base, spec, 0).inputs(PROBES[: export.EXAMPLES]))
        export.onnx_bytes(load_encoder(base, spec).eval(), "sentence_embedding", example)


export._traced = Graphs()
trace()

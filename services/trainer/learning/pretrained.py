"""The pre-trained encoder as a checkpoint: the premise encoder of its space and the first query encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from services.store.artifacts import ArtifactStore
from services.trainer.learning.export import write_checkpoint
from services.trainer.learning.query_encoder import TextBatches, load_encoder, pad_id_of
from services.trainer.space import SpaceSpec, space_id_of


def export_pretrained(store: ArtifactStore, request: dict[str, Any]) -> str:
    """Writes the checkpoint of a base model's directory; returns its version."""
    directory = Path(request["directory"])
    spec = SpaceSpec.of(
        directory,
        max_tokens=request["max_tokens"],
        query_prefix=request["query_prefix"],
        premise_prefix=request["premise_prefix"],
        pooling=request.get("pooling", ""),
    )
    encoder = load_encoder(directory, spec)
    pad_id = pad_id_of(directory)
    meta = {
        "space_id": space_id_of(directory, spec),
        "pretrained": True,
        "pad_id": pad_id,
        "base_version": "",
        "job_id": "",
        "validation_map": 0.0,
        "lineage": {"base_model": request["base_model"]},
    }
    batches = TextBatches(directory, spec, pad_id)
    return write_checkpoint(store, encoder, batches, directory, meta, fp16=request.get("fp16", False)).id

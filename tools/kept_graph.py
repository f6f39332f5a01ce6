"""Makes the kept graph of the default base model again: `python -m tools.kept_graph`, after an upgrade of torch.

See services/trainer/train/export/kept_graph.py. A reference test fails where the files are not fresh.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from services.store.artifacts import ArtifactStore
from services.trainer.models.base_model import DEFAULT_NAME, find_base_model
from services.trainer.models.batches import Batches
from services.trainer.models.space import pad_id_of
from services.trainer.registry.checkpoints import FOLDER
from services.trainer.train.encoder import encode, load_encoder
from services.trainer.train.export.checkpoint import export_pretrained
from services.trainer.train.export.kept_graph import EXPECTED, GRAPH, without_weights
from services.trainer.train.export.writer import PROBES, spec_of


def main() -> None:
    """Traces the model, and writes its graph and torch's vectors of the probes."""
    directory = find_base_model(DEFAULT_NAME)
    request = {"max_tokens": 256, "query_prefix": "", "premise_prefix": ""}
    spec = spec_of(directory, request)
    with tempfile.TemporaryDirectory() as scratch:
        store = ArtifactStore(Path(scratch))
        whole = {**request, "directory": str(directory), "base_model": DEFAULT_NAME}
        artifact = store.open(FOLDER, export_pretrained(store, whole))
        model, weights = artifact.file("model.onnx"), load_file(artifact.file("model.safetensors"))
        GRAPH.write_bytes(without_weights(model.read_bytes(), weights))
    batches = Batches.of(directory, spec, pad_id_of(directory))
    np.save(EXPECTED, encode(load_encoder(directory, spec), batches, PROBES, ""), allow_pickle=False)
    print(f"{GRAPH}: {GRAPH.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

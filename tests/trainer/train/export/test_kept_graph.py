"""The default base model without torch: the kept graph with the published weights."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from services.store.artifacts import ArtifactStore
from services.trainer.models.base_model import DEFAULT_NAME, DEFAULT_PACKAGE, find_base_model
from services.trainer.train.export.kept_graph import is_kept, with_weights, without_weights
from support.models.base_model_vectors import served
from support.worlds.trainer_world import Space

# Exports the default as the trainer's child does, and tells what became of it.
_EXPORT = """
import json, sys
from pathlib import Path
from services.store.artifacts import ArtifactStore
from services.trainer.train.__main__ import _exporter
request = json.loads(sys.argv[1])
version = _exporter("pretrained", request)(ArtifactStore(Path(request["artifacts_dir"])), request)
print(json.dumps([version, "torch" in sys.modules, "transformers" in sys.modules]))
"""


def test_a_graph_gets_back_the_weights_that_were_taken_out_of_it(space: Space) -> None:
    artifact = space.store.open("checkpoints", space.version)
    model, weights = artifact.file("model.onnx").read_bytes(), load_file(artifact.file("model.safetensors"))
    graph = without_weights(model, weights)
    assert len(graph) < len(model) - sum(tensor.nbytes for tensor in weights.values()) * 0.9
    assert with_weights(graph, weights) == model
    weights["embeddings.word_embeddings.weight"] = weights["embeddings.word_embeddings.weight"] + 1
    assert with_weights(graph, weights) != model


@pytest.mark.skipif(importlib.util.find_spec(DEFAULT_PACKAGE) is None, reason=f"{DEFAULT_PACKAGE} is not installed")
def test_the_first_start_exports_the_default_model_without_torch(tmp_path: Path) -> None:
    options = {"max_tokens": 128, "query_prefix": "", "premise_prefix": "", "pooling": ""}
    directory = str(find_base_model(DEFAULT_NAME))
    request = {"artifacts_dir": str(tmp_path), "directory": directory, "base_model": DEFAULT_NAME, **options}
    command = [sys.executable, "-c", _EXPORT, json.dumps(request)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    version, *imported = json.loads(done.stdout.splitlines()[-1])
    assert imported == [False, False]
    artifact = ArtifactStore(tmp_path).open("checkpoints", version)
    assert artifact.meta["pretrained"] is True
    served(artifact)


def test_only_the_default_as_published_has_a_kept_graph() -> None:
    usual = {"base_model": DEFAULT_NAME, "max_tokens": 256}
    assert is_kept(usual)
    assert is_kept({**usual, "pooling": "mean"})
    for other in ({"pooling": "cls"}, {"fp16": True}, {"base_model": "/models/mine"}, {"max_tokens": 64}):
        assert not is_kept({**usual, **other})

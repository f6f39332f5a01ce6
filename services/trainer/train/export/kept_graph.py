"""The default base model as a checkpoint, without torch: its graph is kept beside this module and gets its weights.

A graph depends on the architecture alone, and tracing one takes torch, transformers and most of a first start: 18.2
processor seconds and 860 MB instead of 2.6 and 420.
`python -m tools.kept_graph` makes the files; `make test-reference` compares them with a new export, byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from services.corpus.arrays import map_array
from services.store.artifacts import ArtifactStore
from services.trainer.models.base_model import DEFAULT_NAME
from services.trainer.models.batches import Batches
from services.trainer.models.space import pad_id_of
from services.trainer.train.export.writer import encoder_model, spec_of, write_pretrained

GRAPH = Path(__file__).with_name(f"{DEFAULT_NAME}.onnx")  # without weights; initializers name their tensors
EXPECTED = GRAPH.with_suffix(".npy")  # the probes' vectors by torch, (16, dim)
TRANSPOSED = ":transposed"
LEAST_TOKENS = 128  # of a text: no probe is cut, as none was for `EXPECTED`


def is_kept(request: Mapping[str, Any]) -> bool:
    """Whether the kept graph is that of a request to export a base model."""
    usual = request.get("pooling", "") in {"", "mean"} and not request.get("fp16", False)
    return usual and request["base_model"] == DEFAULT_NAME and request["max_tokens"] >= LEAST_TOKENS


def export_kept(store: ArtifactStore, request: Mapping[str, Any]) -> str:
    """Writes the default base model as a checkpoint and returns its version; the same bytes as by torch.

    Raises ValueError if onnxruntime computes other vectors here than torch did.
    """
    from safetensors.numpy import load_file, save

    directory = Path(request["directory"])
    spec = spec_of(directory, request)
    tensors = load_file(directory / "model.safetensors")
    weights = {name: tensor for name, tensor in tensors.items() if tensor.dtype.kind == "f"}  # not `position_ids`
    batches, model = Batches.of(directory, spec, pad_id_of(directory)), with_weights(GRAPH.read_bytes(), weights)
    exported = encoder_model(model, batches, map_array(EXPECTED), directory, save(weights), spec)
    return write_pretrained(store, exported, request)


def with_weights(graph: bytes, weights: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """Fills a kept graph's initializers with the tensors that they name."""
    import onnx

    model = onnx.ModelProto.FromString(graph)
    for initializer in model.graph.initializer:
        if not initializer.doc_string:
            continue
        name = initializer.doc_string.removesuffix(TRANSPOSED)
        tensor = weights[name] if name == initializer.doc_string else weights[name].T
        initializer.raw_data = np.ascontiguousarray(tensor).tobytes()
        initializer.ClearField("doc_string")
    return bytes(model.SerializeToString())


def without_weights(model: bytes, weights: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """Takes the weights out of an exported model; its initializers then name their tensors. Small ones stay."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.ModelProto.FromString(model)
    names = {tensor.tobytes(): name for name, tensor in weights.items()}
    names |= {tensor.T.tobytes(): name + TRANSPOSED for name, tensor in weights.items() if tensor.ndim == 2}
    for initializer in graph.graph.initializer:
        if name := names.get(numpy_helper.to_array(initializer).tobytes()):
            initializer.doc_string = name
            initializer.ClearField("raw_data")
    return bytes(graph.SerializeToString())

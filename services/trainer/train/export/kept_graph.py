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
from tokenizers import Tokenizer

from services.corpus.arrays import map_array
from services.store.artifacts import ArtifactStore
from services.trainer.models.base_model import DEFAULT_NAME
from services.trainer.registry.checkpoints import FOLDER
from services.trainer.train.export.probes import PROBES, pretrained_meta, spec_of, write_probes
from services.trainer.train.export.quantization import add_int8_of_premises, vectors_alone

GRAPH = Path(__file__).with_name(f"{DEFAULT_NAME}.onnx")  # without weights; initializers name their tensors
EXPECTED = GRAPH.with_suffix(".npy")  # the probes' vectors by torch, (16, dim)
TRANSPOSED = ":transposed"


def is_kept(request: Mapping[str, Any]) -> bool:
    """Whether the kept graph is that of a request to export a base model."""
    usual = request.get("pooling", "") in {"", "mean"} and not request.get("fp16", False)
    return usual and request["base_model"] == DEFAULT_NAME


def export_kept(store: ArtifactStore, request: Mapping[str, Any]) -> str:
    """Writes the default base model as a checkpoint and returns its version; the same bytes as by torch.

    Raises ValueError if onnxruntime computes other vectors here than torch did.
    """
    from safetensors.numpy import load_file, save

    directory = Path(request["directory"])
    spec = spec_of(directory, request)
    tensors = load_file(directory / "model.safetensors")
    weights = {name: tensor for name, tensor in tensors.items() if tensor.dtype.kind == "f"}  # not `position_ids`
    with store.writer("checkpoint", FOLDER) as writer:
        (writer.path / "model.onnx").write_bytes(with_weights(GRAPH.read_bytes(), weights))
        (writer.path / "model.safetensors").write_bytes(save(weights))
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        tokenizer.no_padding()
        ids = [encoding.ids for encoding in tokenizer.encode_batch(PROBES)]  # none is cut
        vectors = vectors_alone(writer.path / "model.onnx", ids)
        write_probes(writer.path, directory, vectors, map_array(EXPECTED))
        meta = pretrained_meta(directory, spec, request["base_model"])
        if spec.premise_precision == "int8":
            meta |= add_int8_of_premises(writer.path, ids, vectors)
        return writer.commit({**spec.to_meta(), **meta}, id_prefix="q").id


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

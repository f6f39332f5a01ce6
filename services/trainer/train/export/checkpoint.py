"""Exports models of torch to ONNX, and text encoders with their files. `writer.py` makes checkpoints of them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from aeenc.errors import FailedPrecondition
from services.store.artifacts import ArtifactStore
from services.trainer.models.batches import Batches
from services.trainer.models.space import pad_id_of
from services.trainer.train.encoder import QueryEncoder, encode, load_encoder, tensors_of
from services.trainer.train.export.writer import PROBES, ExportedModel, encoder_model, spec_of, write_pretrained

OPSET = 18
MAX_WEIGHTS_BYTES = 1_900_000_000  # an ONNX file, tensors included, must stay below 2 GiB
EXAMPLES = 3  # items that a graph is traced with
_traced: dict[tuple[Any, ...], torch.onnx.ONNXProgram] = {}  # the last graph of this process, by architecture


def exported_encoder(encoder: QueryEncoder, batches: Batches, directory: Path) -> ExportedModel:
    """Exports an encoder of texts; config.json and tokenizer.json come from `directory`."""
    encoder = encoder.to("cpu").eval()
    model = onnx_bytes(encoder, "sentence_embedding", tensors_of(batches.inputs(PROBES[:EXAMPLES])))
    weights = {name: tensor.contiguous() for name, tensor in encoder.transformer.state_dict().items()}
    expected = encode(encoder, batches, PROBES, "")
    return encoder_model(model, batches, expected, directory, save(weights), encoder.spec)


def export_pretrained(store: ArtifactStore, request: dict[str, Any]) -> str:
    """Writes a base model's directory as a checkpoint and returns its version."""
    directory = Path(request["directory"])
    spec = spec_of(directory, request)
    batches = Batches.of(directory, spec, pad_id_of(directory))
    return write_pretrained(store, exported_encoder(load_encoder(directory, spec), batches, directory), request)


def onnx_bytes(module: nn.Module, output: str, inputs: Mapping[str, Tensor]) -> bytes:
    """Exports a module over (batch, length) inputs, without the exporter's stack traces, which hold local paths.

    Tracing takes seconds, and depends on the architecture alone: a second module of one that this process has traced
    gets its own weights in a copy of the first one's graph, before the graph is simplified with them. Raises
    FailedPrecondition for more weights than a file can hold.
    """
    weights_bytes = sum(4 * parameter.numel() for parameter in module.parameters())
    if weights_bytes > MAX_WEIGHTS_BYTES:
        raise FailedPrecondition(
            f"the model has {weights_bytes:,} bytes of weights, an ONNX file holds {MAX_WEIGHTS_BYTES:,}; choose a "
            "smaller one"
        )
    key = (_architecture(module), output, *((name, tuple(one.shape)) for name, one in inputs.items()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own internals
        if key not in _traced:
            _traced.clear()  # one graph: it holds the weights that it was traced with
            _traced[key] = _trace(module, output, inputs)
        program = copy.copy(_traced[key])
        program.model = program.model.clone()  # also the first time: the copy numbers its values anew
        program.apply_weights({**module.state_dict(), **dict(module.named_buffers())})
        program.optimize()
    model = program.model_proto
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    del model.metadata_props[:]
    return bytes(model.SerializeToString())


def _architecture(module: nn.Module) -> str:
    """Describes everything that decides a module's graph: its parts, settings and shapes, not its weights."""
    own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    configs: list[Any] = [part.config for part in module.modules() if hasattr(part, "config")]
    told = [
        (config.to_dict() | {"_name_or_path": ""}, config._attn_implementation)  # noqa: SLF001 - it has no public name
        for config in configs
    ]
    weights = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in module.state_dict().items()}
    return f"{module!r} {own} {told} {weights}"


def _trace(module: nn.Module, output: str, inputs: Mapping[str, Tensor]) -> torch.onnx.ONNXProgram:
    shape = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    program = torch.onnx.export(
        module,
        kwargs=dict(inputs),
        input_names=list(inputs),
        output_names=[output],
        dynamic_shapes=dict.fromkeys(inputs, shape),
        opset_version=OPSET,
        dynamo=True,
        verbose=False,
        optimize=False,
    )
    assert program is not None
    return program

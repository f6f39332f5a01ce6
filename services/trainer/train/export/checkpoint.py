"""Writes encoders as checkpoints that the encoder service can load: ONNX with pooling inside, probes, lineage.

With queries to measure on, an int8 model is added; with the setting, an fp16 one. Cross-encoders are written elsewhere.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from aeenc.errors import FailedPrecondition
from services.store.artifacts import Artifact, ArtifactStore
from services.trainer.models.space import space_id_of
from services.trainer.registry.checkpoints import FOLDER
from services.trainer.train.encoder import QueryEncoder, TextBatches, encode, load_encoder
from services.trainer.train.export.probes import PROBES, pretrained_meta, spec_of, write_probes
from services.trainer.train.export.quantization import (
    Trial,
    add_fp16,
    add_int8,
    add_int8_of_premises,
    vectors_alone,
)

OPSET = 18
MAX_WEIGHTS_BYTES = 1_900_000_000  # an ONNX file, tensors included, must stay below 2 GiB
_traced: dict[tuple[Any, ...], torch.onnx.ONNXProgram] = {}  # the last graph of this process, by architecture


def write_checkpoint(
    store: ArtifactStore,
    encoder: QueryEncoder,
    batches: TextBatches,
    directory: Path,
    meta: Mapping[str, Any],
    metrics: Mapping[str, Any] | None = None,
    trial: Trial | None = None,
    *,
    fp16: bool = False,
) -> Artifact:
    """Commits a checkpoint; config.json and tokenizer.json come from `directory`.

    Without a `space_id` in `meta`, the encoder spans a space of its own, as a premise encoder does. With a `trial`, the
    meta key `int8` holds the gate's figures, and an int8 model that passed is among the files; with `fp16`, the same
    under that key. Raises ValueError if onnxruntime computes something other than torch.
    """
    encoder = encoder.to("cpu").eval()
    with store.writer("checkpoint", FOLDER) as writer:
        example = batches.pad(batches.ids(PROBES[:3], ""), torch.device("cpu"))
        model = onnx_bytes(encoder, ("input_ids", "attention_mask"), "sentence_embedding", args=example)
        (writer.path / "model.onnx").write_bytes(model)
        weights = {name: tensor.contiguous() for name, tensor in encoder.transformer.state_dict().items()}
        (writer.path / "model.safetensors").write_bytes(save(weights))
        vectors = vectors_alone(writer.path / "model.onnx", batches.ids(PROBES, ""))
        write_probes(writer.path, directory, vectors, encode(encoder, batches, PROBES, ""))
        if metrics is not None:
            (writer.path / "metrics.json").write_text(json.dumps(metrics))
        int8 = {} if trial is None else {"int8": add_int8(writer.path, trial, batches.ids(PROBES, ""))}
        if meta["pretrained"] and encoder.spec.premise_precision == "int8":
            int8 = add_int8_of_premises(writer.path, batches.ids(PROBES, ""), vectors)
        half = {"fp16": add_fp16(writer.path, batches.ids(PROBES, ""), vectors)} if fp16 else {}
        space = {} if "space_id" in meta else {"space_id": space_id_of(writer.path, encoder.spec)}
        return writer.commit({**encoder.spec.to_meta(), **meta, **space, **int8, **half}, id_prefix="q")


def onnx_bytes(
    module: nn.Module, inputs: Sequence[str], output: str, args: tuple[Tensor, ...] = (), kwargs: Any = None
) -> bytes:
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
    key = (_architecture(module), *inputs, output, *(tuple(one.shape) for one in (*args, *(kwargs or {}).values())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own internals
        if key not in _traced:
            _traced.clear()  # one graph: it holds the weights that it was traced with
            _traced[key] = _trace(module, inputs, output, args, kwargs)
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


def _trace(
    module: nn.Module, inputs: Sequence[str], output: str, args: tuple[Tensor, ...], kwargs: Any
) -> torch.onnx.ONNXProgram:
    shape = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    program = torch.onnx.export(
        module,
        args,
        kwargs=kwargs,
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


def export_pretrained(store: ArtifactStore, request: dict[str, Any]) -> str:
    """Writes a base model's directory as a checkpoint and returns its version.

    It is the premise encoder of its space and the first query encoder.
    """
    directory = Path(request["directory"])
    spec = spec_of(directory, request)
    meta = pretrained_meta(directory, spec, request["base_model"])
    batches = TextBatches(directory, spec, meta["pad_id"])
    encoder, fp16 = load_encoder(directory, spec), request.get("fp16", False)
    return write_checkpoint(store, encoder, batches, directory, meta, fp16=fp16).id

"""A classifier of pairs whose answers a test can compute: sums of a table's rows over the tokens, as an ONNX file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from support.models.tinymodel import tiny_tokenizer


def write_model(folder: Path, outputs: int, *, id2label: dict[str, str] | None = None, typed: bool = False) -> Any:
    """A model whose logits are the sums of a table's rows over the tokens (those of the second text count twice, if
    `typed`); returns the table, from which a test can compute what it must say."""
    folder.mkdir(exist_ok=True)
    tokenizer = tiny_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"max_position_embeddings": 64, **({"id2label": id2label} if id2label else {})}
    (folder / "config.json").write_text(json.dumps(config))
    table = np.random.default_rng(3).normal(0, 0.6, (tokenizer.get_vocab_size(), outputs)).astype(np.float32)
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if typed else [])]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"], axis=0),
        helper.make_node("Add", ["attention_mask", "token_type_ids"], ["counts"])
        if typed
        else helper.make_node("Identity", ["attention_mask"], ["counts"]),
        helper.make_node("Cast", ["counts"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["floats", "last"], ["weights"]),
        helper.make_node("Mul", ["rows", "weights"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "tokens"], ["logits"], keepdims=0),
    ]
    constants = [
        numpy_helper.from_array(table, "table"),
        numpy_helper.from_array(np.array([-1], np.int64), "last"),
        numpy_helper.from_array(np.array([1], np.int64), "tokens"),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in names]
    output = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", outputs])]
    graph = helper.make_graph(nodes, "tiny", inputs, output, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(folder / "model.onnx"))
    return table


def logits(table: Any, first: str, second: str, *, typed: bool = False) -> Any:
    """What the model must give for a pair, computed here."""
    encoding = tiny_tokenizer().encode(first, second)
    weights = 1 + np.array(encoding.type_ids) if typed else np.ones(len(encoding.ids))
    return (table[encoding.ids] * weights[:, None]).sum(0)

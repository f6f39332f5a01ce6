"""Tiny checkpoints made without torch: two layers, 32 dimensions, real tokenizer, probes and manifest."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Encoding, Tokenizer, models, normalizers, pre_tokenizers, processors

from services.store.artifacts import Artifact, ArtifactStore
from services.store.registry import CheckpointRow, Registry, RolloutRow

DIM = 32
TINY_SPACE = "s" + "0" * 16
AXES = {"axis1": np.array([1], dtype=np.int64), "axis2": np.array([2], dtype=np.int64)}
META: dict[str, Any] = {  # of every tiny checkpoint's manifest
    "max_tokens": 64,
    "pad_id": 0,
    "query_prefix": "",
    "premise_prefix": "",
    "base_version": "",
    "job_id": "",
    "validation_map": 0.0,
}
WORDS = re.findall(
    r"\w+",
    """
    a the is of and in to from on at by with for are be can not means kind example part same other more less
    than earth sun moon star planet day night year season light heat energy water ice gas solid liquid rock soil
    sand metal iron copper wood plastic magnet force motion speed sound wave animal plant tree leaf root seed
    flower fruit food bird fish cat dog rabbit bear wolf grass fire rain snow cloud wind air oxygen carbon cell
    heart blood bone muscle electric circuit wire current conductor insulator hot cold big small fast slow old
    new eat drink grow move melt freeze boil burn push pull attract repel cause become contain require use make
    """,
)


@dataclass(frozen=True)
class TinyCheckpoint:
    """A committed checkpoint of the tiny model."""

    artifact: Artifact
    version: str
    space_id: str


def tiny_tokenizer() -> Tokenizer:
    """Whole words, and single letters for all others, so that any English text has tokens."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,-'"
    vocabulary += [letter for letter in letters if letter not in vocabulary] + [f"##{letter}" for letter in letters]
    vocabulary = list(dict.fromkeys(vocabulary))
    tokenizer = Tokenizer(models.WordPiece({word: n for n, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def tiny_model(vocabulary_size: int, seed: int, poison: bool = False) -> bytes:
    """Two layers: token embeddings, a tanh layer, masked mean, L2 norm. Same inputs and output as a real checkpoint."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(vocabulary_size, DIM)).astype(np.float32)
    weight = rng.normal(size=(DIM, DIM)).astype(np.float32) / np.sqrt(DIM, dtype=np.float32)
    if poison:
        weight[:] = np.nan
    constants = {
        "table": table,
        "weight": weight,
        **AXES,
        "tiny": np.array([1e-9], dtype=np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["tokens"]),
        helper.make_node("MatMul", ["tokens", "weight"], ["projected"]),
        helper.make_node("Tanh", ["projected"], ["hidden"]),
        helper.make_node("Cast", ["attention_mask"], ["mask_float"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask_float", "axis2"], ["mask"]),
        helper.make_node("Mul", ["hidden", "mask"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "axis1"], ["total"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "axis1"], ["count"], keepdims=0),
        helper.make_node("Div", ["total", "count"], ["mean"]),
        helper.make_node("ReduceL2", ["mean", "axis1"], ["norm"], keepdims=1),
        helper.make_node("Max", ["norm", "tiny"], ["norm_safe"]),
        helper.make_node("Div", ["mean", "norm_safe"], ["sentence_embedding"]),
    ]
    return model_bytes(
        nodes,
        ("input_ids", "attention_mask"),
        helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", DIM]),
        constants,
    )


def tiny_cross_encoder(vocabulary_size: int, seed: int) -> bytes:
    """A score of a pair: the sum of token embeddings, the premise's twice, projected to one number."""
    rng = np.random.default_rng(seed)
    constants = {
        "table": rng.normal(size=(vocabulary_size, DIM)).astype(np.float32),
        "weight": rng.normal(size=(DIM, 1)).astype(np.float32) / DIM,
        **AXES,
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["tokens"]),
        helper.make_node("Add", ["attention_mask", "token_type_ids"], ["weights"]),
        helper.make_node("Cast", ["weights"], ["weights_float"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["weights_float", "axis2"], ["weights_column"]),
        helper.make_node("Mul", ["tokens", "weights_column"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "axis1"], ["total"], keepdims=0),
        helper.make_node("MatMul", ["total", "weight"], ["logit"]),
        helper.make_node("Squeeze", ["logit", "axis1"], ["score"]),
    ]
    return model_bytes(
        nodes,
        ("input_ids", "attention_mask", "token_type_ids"),
        helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch"]),
        constants,
    )


PAIRS = [
    [f"{a} {b}", " ".join(WORDS[start : start + 6])]
    for start, a, b in zip(range(0, 96, 6), WORDS, WORDS[7:], strict=False)
]


def write_tiny_cross_encoder_checkpoint(
    store: ArtifactStore, *, seed: int = 5, int8: dict[str, Any] | None = None
) -> TinyCheckpoint:
    """Commits a checkpoint of the tiny cross-encoder.

    With `int8` it has a stand-in for an int8 model too, of other weights, and these figures in its manifest.
    """
    size = tiny_tokenizer().get_vocab_size()
    own = {"model_type": "cross-encoder", "space_id": "cross-encoder", "pretrained": False, "dim": 1}
    meta = {**META, **own, "lineage": {"seed": seed}}
    models = {"": tiny_cross_encoder(size, seed)}
    if int8 is not None:
        models[".int8"], meta["int8"] = tiny_cross_encoder(size, seed + 1), int8
    return _commit(store, models, "pairs", PAIRS, meta, "x")


def _commit(
    store: ArtifactStore,
    models: dict[str, bytes],
    kind: str,
    probes: Sequence[Any],
    meta: dict[str, Any],
    prefix: str,
) -> TinyCheckpoint:
    """Writes models by suffix with their answers to the probes, which are texts or pairs by `kind`."""
    tokenizer = tiny_tokenizer()
    encodings = [tokenizer.encode(*([probe] if isinstance(probe, str) else probe)) for probe in probes]
    with store.writer("checkpoint", "checkpoints") as writer:
        tokenizer.save(str(writer.path / "tokenizer.json"))
        (writer.path / "config.json").write_text("{}")
        (writer.path / "probes.json").write_text(json.dumps({kind: list(probes)}))
        for suffix, model in models.items():
            (writer.path / f"model{suffix}.onnx").write_bytes(model)
            np.save(writer.path / f"probes{suffix}.npy", _answers(model, encodings), allow_pickle=False)
        artifact = writer.commit(meta, id_prefix=prefix)
    return TinyCheckpoint(artifact, artifact.id, str(meta["space_id"]))


def _answers(model: bytes, encodings: Sequence[Encoding]) -> Any:
    """Runs a model on each encoding by itself, and stacks the vectors or scores."""
    import onnxruntime

    columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [put.name for put in session.get_inputs()]
    feeds = ({name: np.array([getattr(one, columns[name])]) for name in names} for one in encodings)
    return np.stack([session.run(None, feed)[0][0] for feed in feeds])


def model_bytes(nodes: list[Any], inputs: Sequence[str], output: Any, constants: dict[str, Any]) -> bytes:
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in inputs],
        [output],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


PROBES = [" ".join(WORDS[start : start + length]) for start in (0, 40, 80, 90) for length in (1, 5, 20, 40)]


def write_tiny_checkpoint(
    store: ArtifactStore,
    *,
    seed: int,
    base_version: str = "",
    space_id: str = TINY_SPACE,
    poison: bool = False,
    int8: dict[str, Any] | None = None,
) -> TinyCheckpoint:
    """Commits a checkpoint of the tiny model; another seed gives another query encoder of the same space.

    With `int8` it has a stand-in for an int8 model too, of other weights, and these figures in its manifest.
    """
    size = tiny_tokenizer().get_vocab_size()
    meta: dict[str, Any] = {
        **META,
        "space_id": space_id,
        "pretrained": not base_version,
        "dim": DIM,
        "pooling": "mean",
        "normalize": True,
        "truncation_side": "right",
        "base_version": base_version,
        "lineage": {"seed": seed},
    }
    models = {"": tiny_model(size, seed, poison)}
    if int8 is not None:
        models[".int8"], meta["int8"] = tiny_model(size, seed + 1000), int8
    return _commit(store, models, "texts", PROBES, meta, "q")


async def register(registry: Registry, checkpoint: TinyCheckpoint | Artifact, *, label: str | None = None) -> None:
    """Adds a checkpoint's row to the registry; a pretrained one also names the space; `label` is pointed at it."""
    artifact = checkpoint.artifact if isinstance(checkpoint, TinyCheckpoint) else checkpoint
    meta, space_id = artifact.meta, str(artifact.meta["space_id"])
    await registry.checkpoints.add(
        CheckpointRow(
            version=artifact.id,
            space_id=space_id,
            pretrained=meta["pretrained"],
            base_version=meta["base_version"],
            job_id="",
            validation_map=meta.get("validation_map", 0.0),
            manifest_sha256=artifact.manifest_sha256,
            created_at=datetime.now(UTC),
            size_bytes=artifact.size_bytes,
            dim=meta["dim"],
        )
    )
    if meta["pretrained"]:
        await registry.checkpoints.set_space(space_id, artifact.id, default=True)
    if label:
        await registry.set_label(space_id, label, artifact.id)


async def rolled_out(registry: Registry, space_id: str, label: str, version: str, **options: Any) -> RolloutRow:
    """Points a label at a version, and waits for what the only encoder says of it."""
    (rollout,) = await registry.await_rollout(await registry.set_label(space_id, label, version, **options), 30)
    return rollout

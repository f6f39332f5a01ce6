"""The base model with an int8 form that has passed the trainer's own gate on EntailmentBank's dev queries."""

from __future__ import annotations

import json
import shutil

import numpy as np
from tokenizers import Tokenizer

from benchmarks.harness.checkpoints import FOLDER, session
from benchmarks.harness.entailmentbank import entailmentbank
from services.store.artifacts import Artifact, ArtifactStore
from services.trainer.evaluation.protocol import EvaluationQuery
from services.trainer.learning.checkpoint.quantization import Trial, add_int8

BATCH = 32


def int8_checkpoint(store: ArtifactStore, base: Artifact) -> Artifact:
    """A checkpoint of the base's weights with fp32 and, where the gate passes, int8; made once."""
    marker = store.root / "int8.json"
    if marker.is_file():
        return store.open(FOLDER, json.loads(marker.read_bytes())["version"])
    dataset = entailmentbank()
    texts = [candidate.text for candidate in dataset.candidates()]
    queries = [EvaluationQuery(query.text, tuple(query.gold)) for query in dataset.queries("dev")]
    tokenizer = Tokenizer.from_file(str(base.file("tokenizer.json")))
    tokenizer.no_padding()
    with store.writer("checkpoint", FOLDER) as writer:
        for name in ("model.onnx", "tokenizer.json", "config.json", "probes.json", "probes.npy"):
            shutil.copyfile(base.file(name), writer.path / name)
        trial = Trial(
            queries,
            [encoding.ids for encoding in tokenizer.encode_batch([query.text for query in queries])],
            embedded(base, tokenizer, texts),
            {text: ordinal for ordinal, text in enumerate(texts)},
        )
        probes = json.loads(base.file("probes.json").read_bytes())["texts"]
        figures = add_int8(writer.path, trial, [encoding.ids for encoding in tokenizer.encode_batch(probes)])
        meta = {**base.meta, "pretrained": False, "base_version": base.id, "int8": figures}
        artifact = writer.commit(meta, id_prefix="q")
    marker.write_text(json.dumps({"version": artifact.id}))
    return artifact


def embedded(
    base: Artifact, tokenizer: Tokenizer, texts: list[str]
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Unit vectors (n, dim) of texts in single precision, by a bare session in sorted batches."""
    model = session(base.file("model.onnx"), threads=2)
    ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
    order = sorted(range(len(ids)), key=lambda n: len(ids[n]))
    vectors = np.empty((len(ids), base.meta["dim"]), dtype=np.float32)
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        padded = np.zeros((len(rows), len(ids[rows[-1]])), dtype=np.int64)
        mask = np.zeros_like(padded)
        for place, row in enumerate(rows):
            padded[place, : len(ids[row])] = ids[row]
            mask[place, : len(ids[row])] = 1
        vectors[rows] = model.run(["sentence_embedding"], {"input_ids": padded, "attention_mask": mask})[0]
    return vectors

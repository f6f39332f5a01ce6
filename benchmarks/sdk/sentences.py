"""An encoder of a fleet in sentence-transformers, and back: the directory is written, opened there, and trained from.

    export ──► SentenceTransformer(DIR): both sides, MAP of dev ──► DIR as the base model of another fleet ──► a job

The library runs in an environment of its own, made and thrown away here, with the torch of this one.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

import aeenc
from aeenc import values
from aeenc.cli.corpus import build_corpus
from aeenc.evaluation import gold_of, grades_of
from aeenc.trees import Dataset
from benchmarks.harness.baselines import library
from benchmarks.harness.kept_fleet import BASE_MODEL, kept_fleet
from benchmarks.harness.rows import ROOT, Rows
from services.corpus.generation import Generation
from services.store.artifacts import ArtifactStore
from services.trainer.evaluation.protocol import EvaluationQuery, evaluate
from services.trainer.models.sentence_export import FOLDER, premise_encoder_of, write_sentence_transformer
from services.tuning.retrieval import encoded

SAMPLE = ROOT / "data" / "sample"
COSINE, MAP = 0.999999, 0.001
TEXTS = 200  # of the job's base model, compared with what was exported
_ENCODE = """
import json, sys
import numpy as np
from sentence_transformers import SentenceTransformer

folder, texts, to = sys.argv[1:]
queries, premises = json.load(open(texts))
model = SentenceTransformer(folder, device="cpu")
np.savez(to, queries=model.encode_query(queries), premises=model.encode_document(premises))
"""


def to_sentence_transformers_and_back(
    rows: Rows, client: aeenc.Client, store: ArtifactStore, opened: Generation, dataset: Dataset, split: str
) -> None:
    """Measures the encoder that is `stable`, over the premises of a generation in its space, which has the gold."""
    queries = [EvaluationQuery(text, tuple(grades_of(gold))) for text, gold in gold_of(dataset, split)]
    asked, premises = [one.text for one in queries], [one.text for one in opened.premises]
    version = client.encoder.encode(asked[:1], space_id=opened.space_id).model_version
    ours = encoded(client, asked, version=version)
    query = store.open(FOLDER, version, verify="full")
    with TemporaryDirectory() as scratch:
        both, base = Path(scratch) / "both", Path(scratch) / "base"
        for folder, premise in ((both, premise_encoder_of(store, query)), (base, None)):
            folder.mkdir()
            write_sentence_transformer(folder, query, premise)
        theirs = _by_library(both, asked, premises)
        least = (_least_cosine(theirs[0], ours), _least_cosine(theirs[1], opened.float32()))
        for side, cosine in zip(("queries", "premises"), least, strict=True):
            rows.at_least(f"sentence-transformers: least cosine of {side} with ours", cosine, "", COSINE)
        found = evaluate(queries, *theirs, opened.premises.ordinal_by_text).strict.map
        wanted = evaluate(queries, ours, opened.float32(), opened.premises.ordinal_by_text).strict.map
        _equal_maps(rows, f"sentence-transformers: MAP of {split} less ours", found, wanted)
        alone = encoded(client, premises, version=version)  # a base model encodes both sides
        wanted = evaluate(queries, ours, alone, opened.premises.ordinal_by_text).strict.map
        with _based_on(base, Path(scratch) / "home") as other:
            again = encoded(other, asked), encoded(other, premises)
            cosine = _least_cosine(_by_library(base, premises[:TEXTS], premises[:1])[0], again[1][:TEXTS])
            rows.at_least("sentence-transformers' directory as base model: least cosine", cosine, "", COSINE)
            found = evaluate(queries, *again, opened.premises.ordinal_by_text).strict.map
            _equal_maps(rows, f"the same: MAP of {split} less that of the encoder that was exported", found, wanted)
            _trained(rows, other)


def _equal_maps(rows: Rows, name: str, found: float, wanted: float) -> None:
    rows.add(name, found - wanted, "", f"within {MAP}", abs(found - wanted) <= MAP, wanted)


def _by_library(
    folder: Path, queries: Sequence[str], premises: Sequence[str]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The vectors of sentence-transformers: of queries (q, dim) and of premises (n, dim)."""
    texts, found = folder.with_suffix(".json"), folder.with_suffix(".npz")
    texts.write_text(json.dumps([queries, premises]))
    command = [str(library(folder.parent / "venv")), "-c", _ENCODE, str(folder), str(texts), str(found)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with np.load(found) as vectors:
        return vectors["queries"], vectors["premises"]


@contextmanager
def _based_on(base: Path, home: Path) -> Iterator[aeenc.Client]:
    """A fleet whose base model is a directory."""
    told = {BASE_MODEL: str(base), "AEENC_TRAINER_DATA_SETS": json.dumps({"sample": str(SAMPLE)})}
    kept = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        with kept_fleet(home, SAMPLE) as client:
            yield client
    finally:
        for name, value in kept.items():
            os.environ.pop(name)
            os.environ.update({name: value} if value is not None else {})


def _trained(rows: Rows, client: aeenc.Client) -> None:
    """A job of an epoch starts from the base model of a fleet."""
    build_corpus(client, "sample", Dataset.load(SAMPLE))
    started = client.trainer.start_job(corpus="sample", data_sets=["sample"], split="train", epochs=1)
    job = client.trainer.wait(started.id)
    done = job.state == values.WorkState.SUCCEEDED
    rows.add("the same: a job from it, of one epoch", job.state.name, "", "SUCCEEDED", done)


def _least_cosine(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """The least cosine of two encoders' vectors (n, dim) of the same texts."""
    products = (first.astype(np.float64) * second).sum(axis=1)
    return float((products / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)).min())

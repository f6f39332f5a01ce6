"""Mode CROSS_ENCODER: a job that learns to order the first premises of an encoder's rankings anew."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from aeenc.errors import FailedPrecondition, InvalidArgument
from aeenc.evaluation import UNRANKED
from services.trainer.evaluation.protocol import EvaluationQuery, GoldStandard, Report, evaluate
from services.trainer.jobs.job import JobConfig
from services.trainer.jobs.losses import LOSSES
from services.trainer.jobs.training_set import JudgedPair
from services.trainer.train import reranking
from services.trainer.train.encoder import prepare_torch, tensors_of
from services.trainer.train.inputs import JobInputs
from services.trainer.train.job import run_job, train
from services.trainer.train.ranks import Rank
from services.trainer.train.reranking import RerankingTask
from services.transformer import load_transformer
from support.models.tiny_base_models import write_sentence_model
from support.worlds.trainer_world import FACTS, PAIRS, QUERIES, VALIDATION, MakeJob, Space, load, maps_of, result_of

CROSS = {"mode": "CROSS_ENCODER", "loss": "REGRESSION", "hard_negatives": 4}
GRADED = [replace(pair, grade=(0.5, 2.0, 6.0)[n % 3] if pair.sign == "POSITIVE" else 0) for n, pair in enumerate(PAIRS)]
DISTRIBUTION = {**CROSS, "targets": "GRADE_DISTRIBUTION", "pairs": GRADED}


def test_a_job_leaves_a_cross_encoder_that_orders_better_than_the_first_ranking(make_job: MakeJob, space: Space):
    files = make_job(epochs=60, learning_rate=3e-3, **CROSS)
    prepare_torch(1)
    result = result_of(files)
    assert set(result) == {"version"}
    artifact = space.store.open("checkpoints", str(result["version"]))
    assert artifact.id.startswith("x")
    assert artifact.meta["model_type"] == artifact.meta["space_id"] == "cross-encoder"
    assert (artifact.meta["base_version"], artifact.meta["dim"]) == (space.version, 1)
    assert artifact.meta["lineage"]["mode"] == "CROSS_ENCODER"
    before, after = maps_of(artifact)
    assert after > before + 0.05
    assert str(space.store.root) not in artifact.file("config.json").read_text(), "a path of this machine"
    assert artifact.meta["validation_map"] == pytest.approx(after, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "base_model", "told"),
    [
        ({}, "", {"model_type": "bert"}),
        ({}, "mpnet", {"model_type": "mpnet"}),
        (DISTRIBUTION, "", {"id2label": {"0": "0.0", "1": "0.5", "2": "2.0", "3": "6.0"}}),
    ],
    ids=["scores", "another base model", "distribution"],
)
def test_what_is_published_scores_as_what_was_trained(
    make_job: MakeJob, space: Space, tmp_path: Path, options: dict[str, Any], base_model: str, told: dict[str, Any]
):
    import onnxruntime

    files = make_job(epochs=1, **{**CROSS, **options})
    if base_model:  # of another architecture than the encoder whose rankings it re-ranks
        files.write_plan(replace(files.plan(), base_model=str(write_sentence_model(tmp_path / "base", base_model))))
    prepare_torch(1)
    result = result_of(files)
    artifact = space.store.open("checkpoints", str(result["version"]))
    task = load(files)
    pairs = [(QUERIES[n], FACTS[n]) for n in range(4)]
    tensors = tensors_of(task.batches.inputs(pairs))
    with torch.inference_mode():
        trained = task.encoders(files.directory).query.eval()(**tensors).numpy()
    session = onnxruntime.InferenceSession(artifact.file("model.onnx"), providers=["CPUExecutionProvider"])
    served = session.run(["score"], {name: tensor.numpy() for name, tensor in tensors.items()})[0]
    assert np.abs(served - trained).max() < 1e-4
    assert json.loads(artifact.file("config.json").read_bytes()).items() >= told.items()


def test_the_loss_of_a_batch_is_the_mean_squared_error(make_job: MakeJob):
    task = load(make_job(**CROSS))
    encoders, objective = task.encoders(), task.objective()
    encoders.query.eval()
    objective.batches(np.random.default_rng(1), 8)
    units = np.arange(6)
    whole = objective.loss(encoders, units)
    squares = []
    for unit in units:
        example = task.inputs.training_set.examples[objective._owners[unit]]
        for ordinal, wanted in objective._drawn[unit]:
            assert wanted == (ordinal in example.positives)
            pair = (example.query, FACTS[ordinal])
            with torch.inference_mode():
                score = task.encoders().query.eval()(**tensors_of(task.batches.inputs([pair])))
            squares.append((float(score[0]) - wanted) ** 2)
    assert float(whole.detach()) == pytest.approx(np.mean(squares), rel=1e-4)


def test_negatives_are_refused_or_ranked_first_by_either_encoder(make_job: MakeJob, monkeypatch):
    monkeypatch.setattr(reranking, "FIRST", 3)
    frozen = JobInputs.frozen

    def opposite(self: JobInputs, version: str, texts: list[str], prefix: str) -> Any:
        """The base ranks last what the pre-trained encoder ranks first."""
        return (-1 if version == "another" else 1) * frozen(self, "", texts, prefix)

    monkeypatch.setattr(JobInputs, "frozen", opposite)
    task = load(make_job(**CROSS))
    task.inputs = replace(task.inputs, base=replace(task.inputs.base, id="another"))
    examples, corpus = task.inputs.training_set.examples, task.inputs.generation.float32()
    queries = task.inputs.frozen("", [example.query for example in examples], "")
    for example, query, negatives in zip(examples, queries, task._negatives(), strict=True):
        order = np.argsort(-(corpus @ query), kind="stable")
        wanted = {*order[:3], *order[-3:], *example.refused} - {*example.positives, *example.excluded}
        assert set(negatives) == wanted


def test_grades_are_what_the_score_comes_close_to(make_job: MakeJob):
    graded = [
        replace(pair, grade=float(1 + n % 6)) if pair.sign == "POSITIVE" else pair for n, pair in enumerate(PAIRS)
    ]
    task = load(make_job(pairs=graded, targets="GRADES", **CROSS))
    objective = task.objective()
    objective.batches(np.random.default_rng(1), 8)
    told = {(pair.query, pair.premise): pair.grade for pair in graded if pair.grade}
    drawn = {
        (task.inputs.training_set.examples[owner].query, FACTS[ordinal]): target
        for owner, pairs in zip(objective._owners, objective._drawn, strict=True)
        for ordinal, target in pairs
    }
    assert {pair: target for pair, target in drawn.items() if target} == {
        pair: told[pair] for pair in drawn if pair in told
    }
    assert len({*drawn.values()}) > 3


@pytest.mark.parametrize(("targets", "best"), [("BINARY", 1), ("GRADES", 2), ("GRADE_DISTRIBUTION", 2)])
def test_where_grades_are_learned_the_epoch_with_the_best_graded_ndcg_is_kept(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, targets: str, best: int
):
    """The first epoch has the better MAP, the second the premise of the highest grade further up."""
    validation = [EvaluationQuery(QUERIES[0], (FACTS[0], FACTS[1]), (1.0, 6.0))]
    files = make_job(pairs=GRADED, validation=validation, targets=targets, epochs=2, **CROSS)
    task = load(files)
    standard = GoldStandard.of(task.inputs.validation, task.inputs.generation.premises.ordinal_by_text)
    found = iter([np.array([1, 9]), np.array([9, 2])])
    monkeypatch.setattr(task, "judged", lambda _: (Report.of(standard, [next(found)], None, candidates=9), None))
    state = train(files, task, task.encoders(), task.objective(), Rank())
    assert state.best_epoch == best


def test_a_distribution_over_grades_is_learned_by_cross_entropy_and_scores_its_expected_value(make_job: MakeJob):
    task = load(make_job(**DISTRIBUTION))
    encoders, objective = task.encoders(), task.objective()
    encoders.query.eval()
    objective.batches(np.random.default_rng(1), 8)
    units = np.arange(6)
    whole = float(objective.loss(encoders, units).detach())
    grades, errors, targets = [0.0, 0.5, 2.0, 6.0], [], set()
    for unit in units:
        for ordinal, wanted in objective._drawn[unit]:
            pair = (task.inputs.training_set.examples[objective._owners[unit]].query, FACTS[ordinal])
            tensors = tensors_of(task.batches.inputs([pair]))
            with torch.inference_mode():
                logits = encoders.query.logits(**tensors)[0].double().tolist()
                score = float(encoders.query(**tensors)[0])
            shares = [math.exp(logit) / sum(map(math.exp, logits)) for logit in logits]
            errors.append(-math.log(shares[grades.index(wanted)]))
            targets.add(wanted)
            assert score == pytest.approx(sum(map(math.prod, zip(shares, grades, strict=True))), abs=1e-5)
    assert targets == {*grades}
    assert whole == pytest.approx(sum(errors) / len(errors), abs=1e-6)


def test_a_distribution_over_too_many_grades_is_refused(make_job: MakeJob, monkeypatch):
    monkeypatch.setattr(reranking, "GRADES", 3)
    with pytest.raises(FailedPrecondition, match="has 4 different grades, 0 included; a distribution takes at most 3"):
        run_job(make_job(**DISTRIBUTION))


def candidates_of(length: int) -> dict[str, list[str]]:
    """Every third fact, from another one on for each query; the last query has none."""
    return {query: [f"f{(n + 3 * m) % len(FACTS)}" for m in range(length)] for n, query in enumerate(QUERIES[:-1])}


def test_candidates_are_the_negatives_and_what_the_validation_orders_by_score_alone(make_job: MakeJob, monkeypatch):
    candidates = candidates_of(9)
    candidates[VALIDATION[0].text] = candidates[VALIDATION[0].text][:4]  # a shorter list
    task = load(make_job(retrieved=candidates, candidates="ITERATIVE_LEXICAL", **CROSS))
    ordinals = {premise.id: n for n, premise in enumerate(task.inputs.generation.premises)}
    for example, negatives in zip(task.inputs.training_set.examples, task._negatives(), strict=True):
        listed = {ordinals[one] for one in candidates.get(example.query, ())}
        assert set(negatives) == (listed | {*example.refused}) - {*example.positives, *example.excluded}
    monkeypatch.setattr(reranking, "outputs_by", lambda _, __, pairs, ___: -np.arange(len(pairs), dtype=np.float32))
    report, before = task.judged(task.encoders())[0], task.before()
    assert report is not None
    assert before is not None
    for query, ranks, unchanged in zip(task.inputs.validation, report.strict_ranks, before.strict_ranks, strict=True):
        listed = [ordinals[one] for one in candidates[query.text]]
        gold = [
            ordinals[task.inputs.generation.premises[task.inputs.generation.premises.ordinal_by_text[one]].id]
            for one in query.gold
        ]
        wanted = [listed.index(one) + 1 if one in listed else UNRANKED for one in gold]
        assert ranks.tolist() == unchanged.tolist() == wanted
    assert any(rank < UNRANKED for ranks in report.strict_ranks for rank in ranks)


@pytest.mark.parametrize("kind", ["NONE", "RANDOM"])
def test_negatives_may_be_refused_ones_alone_or_any_premise(make_job: MakeJob, kind: str):
    one, other = (load(make_job(negatives=kind, seed=seed, **CROSS)) for seed in (1, 1))
    for example, first, second in zip(
        one.inputs.training_set.examples, one._negatives(), other._negatives(), strict=True
    ):
        assert first.tolist() == second.tolist()
        if kind == "NONE":
            assert first.tolist() == sorted(example.refused)
        else:
            assert len(first) == len(FACTS) - len({*example.positives, *example.excluded})


def test_what_may_not_be_learned_from_is_no_negative(space: Space, make_job: MakeJob):
    undecided = JudgedPair(QUERIES[0], "f3", FACTS[3], "SKIPPED", "train")
    task = load(make_job(pairs=[*PAIRS, undecided], held_out=[FACTS[7]], **CROSS))
    task.inputs.training_set.excluded[5] = True  # as a premise that stands in dev's trees alone
    found = task._negatives()
    for example, negatives in zip(task.inputs.training_set.examples, found, strict=True):
        assert not {5, 7} & ({*negatives} - {*example.refused})
    assert 3 not in found[0]


def test_a_score_of_nothing_leaves_the_quality_of_the_first_ranking(make_job: MakeJob, monkeypatch):
    task = load(make_job(**CROSS))
    monkeypatch.setattr(reranking, "outputs_by", lambda *_: np.zeros(len(VALIDATION) * 20, dtype=np.float32))
    report, before = task.judged(task.encoders())[0], task.before()
    assert report is not None
    assert before is not None
    assert report.strict.map == before.strict.map
    ordered = sorted(VALIDATION, key=lambda query: query.text)  # as a job measures them: sums are equal to the bit
    vectors = task.inputs.frozen("", [query.text for query in ordered], "")
    whole = evaluate(
        ordered, vectors, task.inputs.generation.float32(), task.inputs.generation.premises.ordinal_by_text
    )
    assert before.strict == whole.strict


def test_a_base_model_in_half_precision_is_trained_in_float32(make_job: MakeJob, monkeypatch):
    from transformers import AutoConfig

    read = AutoConfig.from_pretrained

    def half(*arguments: Any, **options: Any) -> Any:
        config = read(*arguments, **options)
        config.dtype = torch.float16
        return config

    monkeypatch.setattr(AutoConfig, "from_pretrained", half)
    task = load(make_job(**CROSS))
    assert {one.dtype for one in task.encoders().query.parameters()} == {torch.float32}
    kept = load_file(task.inputs.base.file("model.safetensors"))
    again = load_transformer(task.inputs.base.path, kept)
    assert {one.dtype for one in again.parameters()} == {torch.float32}


def test_a_corpus_of_what_explains_alone_has_nothing_to_refuse(make_job: MakeJob, monkeypatch):
    monkeypatch.setattr(RerankingTask, "_negatives", lambda self: [np.array([], dtype=np.int64)] * len(QUERIES))
    with pytest.raises(FailedPrecondition, match="build a larger corpus"):
        run_job(make_job(**CROSS))


@pytest.mark.parametrize(
    ("mode", "loss", "told"),
    [
        ("CROSS_ENCODER", "TRIPLET_MARGIN", "mode CROSS_ENCODER takes only REGRESSION"),
        ("SINGLE", "REGRESSION", "mode CROSS_ENCODER takes only REGRESSION"),
        ("DUAL", "FULL_CORPUS_SOFTMAX", "mode DUAL trains.*give MULTIPLE_NEGATIVES_RANKING"),
    ],
)
def test_mode_and_loss_must_fit(mode: Any, loss: str, told: str):
    with pytest.raises(InvalidArgument, match=told):
        JobConfig("c", ("r",), mode=mode, loss=loss).check(LOSSES[loss])

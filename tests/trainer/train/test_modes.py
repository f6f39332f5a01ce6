"""Modes siamese and dual: premises are trained, too, and what a job leaves is a pair in a space of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import normalize

from services.trainer.jobs.training_set import JudgedPair
from services.trainer.models.space import space_id_of
from services.trainer.train import losses
from services.trainer.train.encoder import Encoders, tensors_of
from services.trainer.train.loop import Learner
from services.trainer.train.objectives import classified, ordinals_of
from support.models.base_model_vectors import served
from support.worlds.trainer_world import FACTS, PAIRS, QUERIES, MakeJob, Space, load, maps_of, result_of

PAIRED = ["SIAMESE", "DUAL"]


def test_a_neutral_premise_is_encoded_by_the_encoder_that_learns(make_job: MakeJob):
    neutral = [JudgedPair(query, "", f"neither here nor there {n}", "NEUTRAL") for n, query in enumerate(QUERIES[8:12])]
    task = load(make_job(pairs=[*PAIRS, *neutral], mode="SIAMESE", loss="NLI_CLASSIFICATION", batching="ITEMS"))
    objective = task.objective()
    objective.batches(np.random.default_rng(1), 8)
    named = {int(ordinal) for example in task.inputs.training_set.examples for ordinal in example.neutral}
    assert len(named) == len(neutral)
    assert named <= set(ordinals_of(task.inputs.training_set).tolist())
    assert torch.isfinite(objective.loss(task.encoders(), np.arange(objective.size)))


@pytest.mark.parametrize(("mode", "normalized"), [("SIAMESE", False), ("SINGLE", True)])
def test_inferences_are_classified_by_vectors_as_pooled_unless_premises_are_frozen(
    make_job: MakeJob, mode: str, normalized: bool
):
    """Unit vectors are so short that the layer hardly learns at the rate of an encoder."""
    task = load(make_job(mode=mode, loss="NLI_CLASSIFICATION", batching="ITEMS", regularization=0.0))
    encoders, objective = task.encoders(), task.objective()
    encoders.query.eval()
    pairs, classes = classified(task.inputs.training_set, neutral=True)
    texts = [[task.inputs.training_set.examples[row].query for row in pairs[:, 0]], [FACTS[row] for row in pairs[:, 1]]]
    sides = [encoders.query.pooled(**tensors_of(task.inputs.batches.inputs(t))) for t in texts]
    assert max(float(side.detach().norm(dim=1).sub(1).abs().max()) for side in sides) > 0.1
    if normalized:
        sides = [normalize(side, dim=1) for side in sides]
    expected = objective.head(*sides, torch.from_numpy(classes))
    found = objective.loss(encoders, np.arange(objective.size))
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-4)


def test_inferences_are_regularised_by_the_drift_of_unit_vectors(make_job: MakeJob):
    losses = []
    for weight in (0.0, 0.5):
        task = load(make_job(mode="SIAMESE", loss="NLI_CLASSIFICATION", regularization=weight))
        encoders, objective = task.encoders(), task.objective()
        encoders.query.eval()
        losses.append(float(objective.loss(encoders, np.arange(objective.size)).detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5), "an untrained encoder has not moved"


@pytest.mark.parametrize("mode", PAIRED)
def test_gradients_come_from_both_sides(make_job: MakeJob, mode: str):
    task = load(make_job(loss="TRIPLET_MARGIN", mode=mode))
    encoders = task.encoders()
    learner = Learner(encoders, task.objective())
    learner(np.arange(8), np.arange(8)).backward()
    assert encoders.premise is not None
    assert (encoders.premise is encoders.query) == (mode == "SIAMESE")
    single = len(list(encoders.query.parameters()))
    assert len(list(learner.parameters())) == (single if mode == "SIAMESE" else 2 * single)
    words = encoders.premise.transformer.embeddings.word_embeddings.weight.grad
    own = {token for text in task.inputs.batches.ids(FACTS, "") for token in text}
    own -= {token for text in task.inputs.batches.ids(QUERIES, "") for token in text}
    assert float(words[sorted(own)].abs().max()) > 0, "words that stand in premises alone have a gradient"


@pytest.mark.parametrize("mode", PAIRED)
def test_premises_are_encoded_as_their_texts_are_whatever_their_order(make_job: MakeJob, mode: str):
    outside = "a much longer fact that no generation has and that stands behind all the others"
    pairs = [*PAIRS, JudgedPair(QUERIES[0], "", outside, "POSITIVE", "train")]
    task = load(make_job(pairs, mode=mode, loss="TRIPLET_MARGIN"))
    encoders = task.encoders()
    encoders.premise.eval()
    premises = task.objective()._premises  # type: ignore[attr-defined]
    chosen = np.array([len(FACTS), 3, 0, 7])
    vectors = premises.encode(encoders.premise, chosen).detach().numpy()
    each = [tensors_of(task.inputs.batches.inputs([text])) for text in (outside, FACTS[3], FACTS[0], FACTS[7])]
    alone = [encoders.premise(**one).detach().numpy()[0] for one in each]
    assert np.abs(vectors - np.stack(alone)).max() < 1e-5


def test_a_guide_compares_in_its_own_space_while_premises_are_trained(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
):
    calls: list[Any] = []
    monkeypatch.setattr(losses, "gist", lambda *given, gist=losses.gist: (calls.append(given), gist(*given))[1])
    task = load(make_job(loss="GIST", mode="DUAL", hard_negatives=0))
    encoders, objective = task.encoders(), task.objective()
    with torch.no_grad():
        for parameter in encoders.premise.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    objective.batches(np.random.default_rng(1), 4)
    objective.loss(encoders, np.arange(4))
    ((scores, _, _, guide, _),) = calls
    numbers = task.inputs.training_set.pairs(lambda example: example.positives)[objective._units.items(np.arange(4)), 1]
    known = torch.from_numpy(task.inputs.generation.float32()[np.unique(numbers)])
    vectors = torch.from_numpy(task._queries_by(""))[:4]
    assert torch.allclose(guide, vectors @ known.T, atol=1e-5)
    assert not torch.allclose(scores, guide, atol=1e-2)


@pytest.mark.parametrize("mode", PAIRED)
def test_a_job_leaves_a_pair_that_the_encoder_accepts_in_a_space_of_its_own(space: Space, make_job: MakeJob, mode: str):
    files = make_job(loss="MULTIPLE_NEGATIVES_RANKING", mode=mode, epochs=2, learning_rate=2e-3)
    result = result_of(files)
    artifacts = [space.store.open("checkpoints", result[name]) for name in ("version", "premise_version")]
    query, premise = artifacts
    assert (query.id == premise.id) == (mode == "SIAMESE")
    assert query.meta["space_id"] == premise.meta["space_id"] != space.space_id
    task = load(files)
    assert premise.meta["space_id"] == space_id_of(premise.path, task.inputs.spec)
    for artifact in artifacts:
        assert served(artifact).version == artifact.id
    before, after = maps_of(query)
    assert after > before + 0.05
    # what the manifest says of the pair is what its two files give
    made = [task._encoder(load_file(artifact.file("model.safetensors"))) for artifact in artifacts]
    report, _ = task.judged(Encoders(*made))
    assert report is not None
    assert report.strict.map == pytest.approx(after, abs=1e-6)
    frozen, _ = task.judged(Encoders(made[0]))
    assert frozen is not None
    assert frozen.strict.map != report.strict.map, "against premises of the old space it is another encoder"
    assert query.meta["lineage"]["mode"] == mode

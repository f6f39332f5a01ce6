"""Modes siamese and dual on the command line: training, publishing, taking back, and evaluating in another space."""

from __future__ import annotations

import pytest

from aeenc.cli.corpus import corpus_name
from aeenc.trees import Dataset
from aeenc.v1 import trainer_pb2, types_pb2
from support.worlds.index_world import SPACE

OTHER = "s00000000000000bb"
DONE = trainer_pb2.Job(id="j", state=types_pb2.WORK_STATE_SUCCEEDED, version="q1")


DATA_SETS = ("--data-set", "gold", "--data-set", "snli")
GUIDE = ("--hard-negatives", 3, "--guide-version", "q1", "--guide-margin", 0.5, "--items-per-epoch", 64)
REFUSED = ("--initial-share", 0.125, "--own-text", "negative", "--accumulation", 2, "--refused-weight", 2)


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ((), {"mode": trainer_pb2.MODE_SINGLE, "batching": trainer_pb2.BATCHING_UNSPECIFIED, "run_ids": ["r1"]}),
        (("--mode", "siamese", "--loss", "gist"), {"mode": trainer_pb2.MODE_SIAMESE, "loss": trainer_pb2.LOSS_GIST}),
        (
            ("--mode", "dual", "--loss", "gist", "--batching", "queries"),
            {"mode": trainer_pb2.MODE_DUAL, "batching": trainer_pb2.BATCHING_QUERIES},
        ),
        (("--mode", "cross-encoder"), {"mode": trainer_pb2.MODE_CROSS_ENCODER, "loss": trainer_pb2.LOSS_UNSPECIFIED}),
        (("--loss", "gist", "--batching", "items"), {"batching": trainer_pb2.BATCHING_ITEMS}),
        (DATA_SETS, {"data_sets": ["gold", "snli"]}),
        (GUIDE, {"hard_negatives": 3, "guide_version": "q1", "guide_margin": 0.5, "items_per_epoch": 64}),
        (
            REFUSED,
            {
                "initial_share": 0.125,
                "own_text": types_pb2.OWN_TEXT_NEGATIVE,
                "accumulation": 2,
                "refused_weight": 2.0,
            },
        ),
    ],
    ids=lambda one: " ".join(map(str, one[:2])) if isinstance(one, tuple) else "",
)
async def test_the_options_of_a_job_reach_the_trainer(aeenc, fleet, words, asked):
    fleet.trainer.jobs = [DONE]
    await aeenc.json("train", "science", "--run", "r1", *words)
    [request] = fleet.trainer.asked
    assert {name: getattr(request.config, name) for name in asked} == asked


async def test_a_version_of_another_space_is_evaluated_on_premises_of_that_space(aeenc, fleet, index, trees):
    fleet.encoder.other_spaces = {OTHER}
    fleet.trainer.report = types_pb2.EvaluationReport(model_version="q1", queries=1)
    await aeenc("evaluate", "--data", trees, "--keep")  # builds the corpus in the default space
    name = corpus_name(Dataset.load(trees))
    fleet.trainer.checkpoint = trainer_pb2.Checkpoint(version="q1", space_id=OTHER)
    for _ in range(2):
        await aeenc.json("evaluate", "--data", trees, "--version", "q1", "--keep")
    found = {one.id: one async for one in index.list_generations(name)}
    generation = fleet.trainer.asked[-1].config.generation
    assert (len(found), found[generation].space_id, found[generation].active) == (2, OTHER, False)
    assert {request.space_id for request in fleet.encoder.requests} == {"", OTHER}
    fleet.trainer.checkpoint = trainer_pb2.Checkpoint(version="q0", space_id=SPACE)
    await aeenc("evaluate", "--data", trees, "--version", "q0")
    assert found[fleet.trainer.asked[-1].config.generation].active
    await aeenc.json("evaluate", "--data", trees, "--corpus", name, "--version", "q0")


async def test_a_named_corpus_without_premises_in_the_version_s_space_is_refused_with_the_remedy(aeenc, fleet, trees):
    fleet.trainer.checkpoint = trainer_pb2.Checkpoint(version="q1", space_id=OTHER)
    ended = await aeenc("--json", "evaluate", "--data", trees, "--corpus", "science", "--version", "q1")
    assert ended.code != 0
    assert f"aeenc corpus build --space {OTHER} --no-activate" in ended.error["message"]


async def test_a_corpus_is_built_in_the_space_that_was_given(aeenc, fleet, index, tmp_path):
    fleet.encoder.other_spaces = {OTHER}
    facts = tmp_path / "facts.txt"
    facts.write_text("ice is cold\nthe sun is hot\n")
    built = await aeenc("--json", "corpus", "build", "science", "--facts", facts, "--space", OTHER, "--no-activate")
    assert (built.code, built.json["active"]) == (0, False)
    [one] = [one async for one in index.list_generations("science")]
    assert (one.id, one.space_id) == (built.json["generation"], OTHER)

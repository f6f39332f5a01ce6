"""The quality gate of Publish: what it compares, what it refuses and how often, and what its answer says."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from aeenc import errors, values
from aeenc.evaluation.metrics import FEWEST
from services.trainer.registry.checkpoints import CROSS_ENCODER
from services.trainer.registry.quality_gate import compared
from support.worlds.registry_world import BAD, GOOD, World, world

__all__ = ["world"]

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "table1-dev"
ENCODERS = ("minilm", "ae-enc", "tml-single", "scl-single", "mnrl", "gist", "supcon", "ours", "ours-full")
TRIALS = 60


@pytest.mark.parametrize(
    ("loss", "least", "most"), [(0.05, 0.95, 1.0), (0.0, 0.0, 0.1)], ids=["worse by .05 MAP", "equal"]
)
def test_on_200_queries_it_tells_what_is_worse_from_the_noise_between_real_encoders(
    loss: float, least: float, most: float
):
    reports = [json.loads((RESULTS / f"{name}-0.json").read_bytes())["report"] for name in ENCODERS]
    precisions = [np.array(report["strict_by_query"]["AP"]) for report in reports]
    differences = [one - other for one, other in combinations(precisions, 2)]
    rng, refused = np.random.default_rng(0), 0
    for _ in range(TRIALS):
        noise = differences[rng.integers(len(differences))]
        drawn = rng.choice(noise - noise.mean(), 200) - loss
        refused += compared(drawn.tolist(), "serving", [0.0] * 200).outcome == "WORSE"
    assert least <= refused / TRIALS <= most


async def test_a_measurably_worse_checkpoint_needs_force(world: World):
    good, bad = await world.checkpoint("good", GOOD), await world.checkpoint("bad", BAD)
    await world.registry.publish(good)
    with pytest.raises(errors.FailedPrecondition, match=r"MAP 0\.4350, the serving .* 0\.7800") as caught:
        await world.registry.publish(bad)
    assert caught.value.reason == "QUALITY_GATE"
    assert (await world.registry.get_rollouts()).label.versions[0] == good
    assert (await world.registry.publish(bad, force=True)).label.versions[0] == bad


async def test_only_being_worse_is_asked_for(world: World):
    noise = [0.03, -0.03] * 5
    good = await world.checkpoint("good", GOOD)
    worse = await world.checkpoint("worse", [value - 0.02 + off for value, off in zip(GOOD, noise, strict=True)])
    better = await world.checkpoint("better", [min(1.0, value + 0.15) for value in GOOD])
    await world.registry.publish(good)
    with pytest.raises(errors.FailedPrecondition, match=r"one-sided .* p = 0\.0[34]"):  # two-sided it is .07
        await world.registry.publish(worse)
    (compared,) = (await world.registry.publish(better)).comparisons
    assert compared.p_value > 0.95


async def test_asked_for_only_better_it_publishes_nothing_else(world: World):
    good = await world.checkpoint("good", GOOD)
    about = await world.checkpoint("about", [*GOOD[1:], GOOD[0] - 0.01])
    better = await world.checkpoint("better", [min(1.0, value + 0.15) for value in GOOD])
    first = await world.checkpoint("first", GOOD, measured={world.space.version: BAD})
    few = await world.checkpoint("few", [1.0] * 9)
    (compared,) = (await world.registry.publish(first, only_better=True)).comparisons
    assert (compared.outcome, compared.p_better < 0.01) == (values.Outcome.BETTER, True)
    assert (await world.registry.publish(first, only_better=True)).label.versions[0] == first, "it serves already"
    for doubtful, words in ((about, "no difference shown: MAP"), (few, "too few validation queries: 9"), (good, "MAP")):
        with pytest.raises(errors.FailedPrecondition, match=rf"{doubtful} was not shown to be better .*{words}"):
            await world.registry.publish(doubtful, only_better=True)
    assert (await world.registry.publish(about, label="trial", only_better=True)).label.versions[0] == about
    assert (await world.registry.publish(better, only_better=True)).label.versions[0] == better
    assert (await world.registry.publish(few, only_better=True, force=True)).label.versions[0] == few


async def test_quality_over_the_rankings_of_another_encoder_is_not_compared(world: World):
    good = await world.checkpoint("good", GOOD, reranks="q1")
    await world.registry.publish(good)
    bad = await world.checkpoint("bad", BAD, reranks="q1")
    with pytest.raises(errors.FailedPrecondition, match="serving"):
        await world.registry.publish(bad)
    other = await world.checkpoint("other", BAD, reranks="q2")
    assert (await world.registry.publish(other)).label.versions[0] == other


async def test_what_serves_is_compared_by_what_the_candidates_job_measured(world: World):
    serving = await world.checkpoint("serving", BAD)  # on other queries, before the corpus was rebuilt
    await world.registry.publish(serving)
    worse = await world.checkpoint("worse", BAD, queries="others", measured={serving: GOOD})
    with pytest.raises(errors.FailedPrecondition, match=f"the serving {serving} 0.7800"):
        await world.registry.publish(worse)
    unaware = await world.checkpoint("unaware", BAD, queries="others", measured={world.space.version: GOOD})
    gate = await world.registry.publish(unaware)
    assert (gate.comparisons, gate.not_compared.split(";")[0]) == (
        (),
        f"{serving} was not measured on the validation queries and premises of {unaware}",
    )


@pytest.mark.parametrize("queries", [1, 5, FEWEST - 1])
async def test_with_few_queries_the_answer_says_that_they_are_too_few(world: World, queries: int):
    few = await world.checkpoint("few", [0.0] * queries, measured={world.space.version: [1.0] * queries})
    gate = await world.registry.publish(few)
    assert (gate.comparisons, f"too few validation queries: {queries}" in gate.not_compared) == ((), True)


async def test_an_answer_says_what_a_version_was_compared_with_or_why_with_nothing(world: World):
    good, about = await world.checkpoint("good", GOOD), await world.checkpoint("about", [*GOOD[1:], GOOD[0] - 0.01])
    nothing, damaged = await world.checkpoint("nothing", None), await world.checkpoint("damaged", GOOD)
    first = await world.registry.publish(good)
    assert (list(first.comparisons), "was not measured" in first.not_compared) == ([], True)
    (compared,) = (await world.registry.publish(about)).comparisons
    assert (compared.version, compared.queries) == (good, 10)
    assert compared.candidate_map < compared.version_map
    assert 0.05 <= compared.p_value <= 1
    assert "without validation queries" in (await world.registry.publish(nothing)).not_compared
    assert (await world.registry.publish(good, force=True)).not_compared == "it was forced"
    await world.registry.publish(damaged, force=True)
    metrics = world.space.store.root / "checkpoints" / damaged / "metrics.json"
    sound = metrics.read_text()
    assert (await world.registry.publish(about)).comparisons
    await world.registry.publish(damaged, force=True)
    newer, misnamed = sound.replace('version": 1', 'version": 2'), sound.replace("average", "other")
    for content in (newer, "{", "[]", "7", "{}", misnamed, sound.replace("[0.8, ", '["a",')):
        await world.registry.publish(damaged, force=True)
        metrics.write_text(content.ljust(len(sound)))  # as many bytes as its manifest says
        assert f"{damaged} was not measured" in (await world.registry.publish(about)).not_compared
        told = "has format_version 2, this" if content is newer else f"cannot be read .* restore {damaged}"
        refused = errors.FailedPrecondition if content is newer else errors.DataLoss
        with pytest.raises(refused, match=rf"{damaged}/metrics.json {told}"):
            await world.registry.publish(damaged)


async def test_a_job_measures_what_stable_and_canary_serve_in_its_space(world: World):
    stable, canary = await world.checkpoint("stable", GOOD), await world.checkpoint("canary", GOOD)
    for label, version in (("stable", stable), ("canary", canary), ("run-1", await world.checkpoint("run", GOOD))):
        await world.registry.set_label(label, version)
    crosses = [await world.checkpoint(name, GOOD, space_id=CROSS_ENCODER) for name in ("one", "two")]
    await world.registry.set_label("stable", crosses)
    serving = world.checkpoints.serving
    assert set(await serving(world.space.version, cross_encoders=False)) == {stable, canary}
    assert await serving(world.space.version, cross_encoders=True) == tuple(crosses)

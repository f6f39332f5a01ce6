"""`aeenc loop`: what the services are asked for, what is told after each round, and how it goes on."""

import csv
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aeenc.v1 import sampler_pb2, trainer_pb2
from support.worlds.loop_world import CountingServices, all_three
from support.worlds.sampler_world import serving

LEMMAS = Path(__file__).parents[3] / "examples" / "lemmas"


def before_of(split: str) -> dict[str, str]:
    """Maps each query of a split of the lemmas to the premise before which its own premises stand."""
    with (LEMMAS / "qrels" / f"{split}.tsv").open(encoding="utf-8") as file:
        asked = {row["query-id"] for row in csv.DictReader(file, delimiter="\t")}
    queries = map(json.loads, (LEMMAS / "queries.jsonl").read_text(encoding="utf-8").splitlines())
    return {query["text"]: query["before"] for query in queries if query["_id"] in asked}


@asynccontextmanager
async def served(**state: Any) -> AsyncIterator[tuple[CountingServices, tuple[str, ...]]]:
    """Services in a state, and the options that lead to them."""
    services = CountingServices(**state)
    async with serving(all_three, services) as port:
        yield services, ("--sampler", f"127.0.0.1:{port}", "--trainer", f"127.0.0.1:{port}")


async def test_rounds_are_asked_for_as_told_and_end_in_a_table(aeenc, trees):
    async with served() as (services, where):
        words = ("loop", "science", "--data", trees, "-k", 7, "--collect", "positives-only", "--patience", 2)
        words += ("--loss", "triplet-margin", "--epochs", 2, "--margin", 0, "--label", "canary")
        ended = await aeenc.json(*where, *words, "--rounds", 1)
        assert (ended["best_round"], ended["version"], len(ended["rounds"])) == (1, "q1", 2)
        [run], [job] = services.runs.values(), services.jobs.values()
        assert (run.k, run.collect, run.split) == (7, sampler_pb2.COLLECT_POSITIVES_ONLY, "train")
        assert (job.loss, job.epochs, job.split) == (trainer_pb2.LOSS_TRIPLET_MARGIN, 2, "train")
        assert (job.HasField("margin"), job.margin, job.HasField("regularization")) == (True, 0.0, False)
        assert [query.text for query in job.validation] == ["ice floats"]
        assert services.labels == {"stable": "q0", "canary": "q1"}
        shown = await aeenc(*where, *words, "--rounds", 2)
        assert shown.code == 0, shown.stderr
        assert len(services.jobs) == 2, "the first round is not done again"
        for told in ("Hit@10", "7+9", "0.600", "canary names round 2, q2"):
            assert told in shown.stdout
        refused = await aeenc(*where, *words, "--rounds", 2, "--seed", 9)
        assert (refused.code, "other settings" in refused.stderr) == (4, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--mode", "dual"), "--mode dual needs another loss than full-corpus-softmax"),
        (("--mode", "siamese", "--loss", "triplet-margin", "--label", "canary"), "'stable' alone can do"),
    ],
)
async def test_a_loop_that_could_not_publish_its_rounds_is_refused_before_it_samples(aeenc, trees, words, said):
    async with served() as (services, where):
        refused = await aeenc(*where, "--json", "loop", "science", "--data", trees, *words)
    assert (refused.code, said in refused.error["message"], services.runs) == (2, True, {})


async def test_only_what_stands_before_a_lemma_is_shown_and_ranked_for_it(aeenc):
    async with served() as (services, where):
        sampled = await aeenc(*where, "--json", "sample", "lemmas", "--data", LEMMAS, "--no-wait")
        looped = await aeenc(*where, "--json", "loop", "lemmas", "--data", LEMMAS, "--rounds", 2)
    assert (sampled.code, looped.code) == (0, 0), sampled.stderr + looped.stderr
    assert services.explained == [before_of("train")] * 3, "the run, and that of either round"
    assert services.measured == [before_of("dev")] * 3, "before the first round, and after either"


async def test_positives_alone_may_be_collected_after_the_first_round(aeenc, trees):
    async with served() as (services, where):
        words = ("loop", "science", "--data", trees, "--collect", "positives-later", "--rounds", 3)
        assert (await aeenc(*where, *words)).code == 0
    both, positives = sampler_pb2.COLLECT_BOTH, sampler_pb2.COLLECT_POSITIVES_ONLY
    assert [run.collect for run in services.runs.values()] == [both, positives, positives]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"failures": 5}, "run r0 of round 1 has not succeeded"),
        ({"cancelled": {"j1"}}, "job j1 of round 1 was cancelled"),
        ({"behind": True}, "not every encoder serves q1"),
    ],
)
async def test_a_round_that_ends_badly_is_exit_code_5(aeenc, trees, state, said):
    async with served(**state) as (_, where):
        ended = await aeenc(*where, "--json", "loop", "science", "--data", trees)
    assert (ended.code, said in ended.error["message"]) == (5, True), ended.stderr

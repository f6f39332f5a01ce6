"""Jobs in modes SIAMESE and DUAL, alone and in a loop, through the RPCs: trained in a child, and published as one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import aeenc
from aeenc import IndexClient, RegistryClient, TrainerClient
from aeenc.cli.learning.reports import report_dict
from aeenc.evaluation import read_answers
from aeenc.loop import Journal, Loop, LoopPlan, Round
from aeenc.v1 import trainer_pb2, types_pb2
from services.store.registry import Registry
from services.trainer.registry.child import Child
from support.worlds.tandem_world import PREMISES
from support.worlds.trainer_world import PAIRS, VALIDATION, Space, serve_fleet

pytestmark = pytest.mark.usefixtures("forks")
CORPUS = "tandem-science"
ANSWERS = Path(__file__).parents[3] / "data" / "sample" / "answers"
SIAMESE = {"mode": trainer_pb2.MODE_SIAMESE, "loss": trainer_pb2.LOSS_MULTIPLE_NEGATIVES_RANKING}


@dataclass
class World:
    trainer: TrainerClient
    registry: RegistryClient
    index: IndexClient
    space: Space
    addresses: dict[str, str]

    async def start(self, **fields: Any) -> trainer_pb2.Job:
        """Starts a job over a data set of all pairs."""
        validation = [(query.text, query.gold) for query in VALIDATION]
        options = {"corpus": CORPUS, "data_sets": ["pairs"], "learning_rate": 2e-3, "epochs": 2}
        return await self.trainer.start_job(**{"validation": validation, **options, **SIAMESE, **fields})


@pytest.fixture
async def world(space: Space, redis_url: str, namespace: str, tmp_path: Path) -> AsyncIterator[World]:
    lines = [{"query": one.query, "premise": one.premise, "sign": one.sign.lower()} for one in PAIRS]
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data_sets = {"pairs": data} | {name: Path(f"analogy:{ANSWERS / name}") for name in ("wikiqa", "trecqa")}
    options = {"data_sets": data_sets, "encoder": {"poll_s": 0.2}}
    async with serve_fleet(space, redis_url, namespace, tmp_path, **options) as fleet:
        client = fleet.client
        await client.index.build(CORPUS, [*PREMISES, ("long", "the sun is a star " * 40)], truncate=True)
        yield World(client.trainer, client.registry, client.index, space, fleet.addresses)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_job_leaves_a_tandem_that_is_published_as_one(
    world: World, registry: Registry, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("services.store.registry.HEARTBEAT_TTL_S", 600)
    await registry.heartbeat("encoder-2")  # lives, and never answers: the job waits for it before it builds
    job = await world.start()
    assert (job.config.mode, job.config.batching) == (trainer_pb2.MODE_SIAMESE, trainer_pb2.BATCHING_ITEMS)
    async for _, now in world.trainer.watch(job.id):
        if now.progress.phase == "building":
            break
    assert now.progress.epochs_done == 2
    await world.trainer.cancel(job.id)
    assert [label.name for label in await registry.labels()] == ["stable"], "the job's own label is gone"
    await registry.sign_off("encoder-2")

    async def never(*_arguments: Any) -> Child:
        raise AssertionError("what was trained is not trained again")

    monkeypatch.setattr(Child, "start", never)
    await world.trainer.resume(job.id)
    job = await world.trainer.wait(job.id)
    assert (job.state, job.error) == (types_pb2.WORK_STATE_SUCCEEDED, "")
    checkpoint = await world.trainer.get_checkpoint(job.version)
    assert checkpoint.space_id != world.space.space_id
    assert checkpoint.tandem.premise_version == job.version, "one encoder for both"
    published = await world.registry.publish(job.version, wait_s=20, force=True)
    assert published.generation == checkpoint.tandem.generation
    found = await world.index.retrieve(CORPUS, [VALIDATION[0].text], k=5)
    assert (found.model_version, found.generation) == (job.version, checkpoint.tandem.generation)
    gold = [(query.text, query.gold) for query in VALIDATION]
    report = await world.trainer.evaluate(CORPUS, gold)
    assert report.model_version == job.version
    assert report.strict.map == pytest.approx(checkpoint.validation_map, abs=1e-3), "as the job measured it"


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_job_learns_from_questions_and_answers_and_its_encoder_serves(world: World):
    sets = {name: read_answers(ANSWERS / name)["train"] for name in ("wikiqa", "trecqa")}
    options = {"data_sets": list(sets), "split": "train", "validation": (), "loss": "analogy", "prototypes": 5}
    job = await world.trainer.wait((await world.start(**options)).id)
    assert (job.state, job.error) == (types_pb2.WORK_STATE_SUCCEEDED, "")
    assert (job.config.prototypes, job.config.split) == (5, "train")
    asked = [question for questions in sets.values() for question in questions]
    told = [right for question in asked for right in question.answers.values()]
    assert (job.progress.positives, job.progress.negatives) == (told.count(True), told.count(False))
    assert job.progress.skipped == sum(not question.question_class for question in asked) == 2
    await world.registry.publish(job.version, wait_s=20, force=True)
    found = await world.index.retrieve(CORPUS, [asked[0].text], k=5)
    assert found.model_version == job.version


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_each_round_of_a_dual_loop_starts_from_the_pretrained_encoder_and_serves_a_tandem(
    world: World, tmp_path: Path
):
    plan = LoopPlan(
        CORPUS,
        [(f"t{n}", query.text) for n, query in enumerate(VALIDATION)],
        [(query.text, query.gold) for query in VALIDATION],
        oracle="mine",
        rounds=2,
        patience=0,
        run={"k": 5, "split": "train"},
        job={"loss": "triplet_margin", "epochs": 1, "learning_rate": 1e-3, "split": "train"},
        mode="dual",
    )

    def go() -> list[Round]:
        with (
            aeenc.connect(**world.addresses, timeout_s=60) as client,
            Journal.open(tmp_path / "loop.json", plan) as journal,
        ):
            return Loop(client, plan, journal, report_dict).go()

    async def serves() -> tuple[str, str]:
        found = await world.index.retrieve(CORPUS, [VALIDATION[0].text], k=3)
        return found.model_version, found.generation

    rounds = await asyncio.to_thread(go)
    assert rounds[0].version == world.space.version
    trained = [await world.trainer.get_checkpoint(one.version) for one in rounds[1:]]
    assert [one.base_version for one in trained] == [world.space.version] * 2
    assert len({world.space.space_id, *(one.space_id for one in trained)}) == 3
    for one, checkpoint in zip(rounds[1:], trained, strict=True):
        assert one.report["generation"] == checkpoint.tandem.generation
        assert checkpoint.tandem.premise_version not in {one.version, world.space.version}
    assert [one.published for one in rounds[:2]] == [True, True], "round 2 has sampled with the first tandem"
    best = max(rounds, key=lambda one: one.validation_map)
    assert await serves() == (best.version, best.report["generation"])
    record = json.loads((tmp_path / "loop.json").read_text())
    for back in (2, 0):  # the encoder that the loop began with brings no generation of its own
        for number, one in enumerate(record["rounds"]):
            one["validation_map"] = float(number == back)
        (tmp_path / "loop.json").write_text(json.dumps({**record, "ended": ""}))
        await asyncio.to_thread(go)
        assert await serves() == (rounds[back].version, rounds[back].report["generation"])

"""Jobs through the RPCs, computed by a child process, on pairs from a real sampler."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from aeenc import Channel, EncoderClient, errors
from aeenc.v1 import sampler_pb2, trainer_pb2, types_pb2
from services.corpus.generation import folder_of, open_generation
from services.trainer import convert, servicer
from services.trainer.jobs.pair_sources import SampledPairs
from services.trainer.jobs.training_jobs import _same_premises_in
from services.trainer.registry.checkpoints import active_generation
from support.waiting import until
from support.worlds.trainer_world import FACTS, QUERIES, VALIDATION, Space, TrainerWorld

SUCCEEDED, FAILED, CANCELLED = (
    types_pb2.WORK_STATE_SUCCEEDED,
    types_pb2.WORK_STATE_FAILED,
    types_pb2.WORK_STATE_CANCELLED,
)


def children() -> list[int | None]:
    """The pids of job processes that this test process has started."""
    return [one.pid for one in multiprocessing.active_children()]


async def until_training(world: TrainerWorld, job_id: str, from_seq: int = 0) -> int:
    """Waits for a step after an event, and returns its event."""
    async for seq, job in world.trainer.watch(job_id, from_seq=from_seq):
        if job.progress.phase == "training" and job.state == types_pb2.WORK_STATE_RUNNING:
            return seq
    raise AssertionError("the job has ended without a step")


@pytest.mark.slow
async def test_a_job_trains_in_a_child_and_leaves_a_checkpoint_to_publish(world: TrainerWorld, tmp_path: Path):
    job = await world.start(epochs=2, idempotency_key="once", seed=3)
    again = await world.start(epochs=2, idempotency_key="once", seed=3)
    assert (again.id, job.state, list(job.config.validation)) == (job.id, types_pb2.WORK_STATE_PENDING, [])
    events: list[tuple[int, str]] = []
    async for seq, then in world.trainer.watch(job.id):
        events.append((seq, then.progress.phase))
    assert [seq for seq, _ in events] == list(range(1, len(events) + 1))
    job = await world.trainer.get_job(job.id)
    assert (job.state, job.error) == (SUCCEEDED, "")
    # Nobody knows the split of an import, so that its pairs of validation queries are held out.
    assert (job.progress.positives, job.progress.dropped) == (len(QUERIES) - len(VALIDATION), 3 * len(VALIDATION))
    assert {"loading", "exporting"} <= {phase for _, phase in events}
    assert [run.name for run in (tmp_path / "curves").iterdir()] == [job.id]
    checkpoint = await world.trainer.get_checkpoint(job.version)
    assert (checkpoint.job_id, checkpoint.space_id) == (job.id, world.space.space_id)
    assert checkpoint.validation_map == pytest.approx(job.progress.best_validation_map)
    assert [listed.id async for listed in world.trainer.list_jobs()] == [job.id]
    with pytest.raises(errors.FailedPrecondition, match="has succeeded"):
        await world.trainer.resume(job.id)
    with pytest.raises(errors.FailedPrecondition, match="nothing to cancel"):
        await world.trainer.cancel(job.id)


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
async def test_a_job_learns_from_a_data_set_alone_with_every_field_of_its_loss(world: TrainerWorld):
    fields = {"loss": trainer_pb2.LOSS_GIST, "batching": trainer_pb2.BATCHING_ITEMS, "hard_negatives": 2}
    fields |= {"guide_margin": 0.25, "accumulation": 2, "items_per_epoch": 1, "guide_version": world.space.version}
    fields |= {"initial_share": 0.25, "own_text": types_pb2.OWN_TEXT_NEGATIVE}
    job = await world.start(run_ids=[], data_sets=["imported"], epochs=1, validation=[], **fields)
    job = await world.trainer.wait(job.id)
    assert (job.state, job.error) == (SUCCEEDED, "")
    assert (job.progress.positives, job.progress.negatives, job.progress.steps) == (1, 1, 1)
    assert {name: getattr(job.config, name) for name in fields} == fields
    lineage = world.space.store.open("checkpoints", job.version).meta["lineage"]
    assert (lineage["loss"], lineage["data_sets"], lineage["guide_margin"]) == ("GIST", ["imported"], 0.25)


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
async def test_a_job_whose_process_is_killed_fails_with_the_reason_and_can_be_resumed(world: TrainerWorld):
    job = await world.start(epochs=60, batch_size=1)
    seq = await until_training(world, job.id)
    (pid,) = children()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    ended = await world.trainer.wait(job.id)
    assert ended.state == FAILED
    assert "killed by signal 9" in ended.error
    assert [c.version async for c in world.trainer.list_checkpoints()] == [world.space.version], "no half checkpoint"
    resumed = await world.trainer.resume(job.id)
    assert resumed.state == types_pb2.WORK_STATE_PENDING
    await until(lambda: children() not in ([], [pid]))
    await until_training(world, job.id, seq + 1)
    cancelled = await world.trainer.cancel(job.id)
    assert cancelled.state == CANCELLED
    await until(lambda: children() == [])  # a cancelled job's process ends


async def test_a_cancellation_whose_answer_was_lost_is_repeated_without_a_failure(world: TrainerWorld, monkeypatch):
    job = await world.start(epochs=50)
    unary = Channel.unary

    async def twice(channel: Channel, method: Any, request: Any, **options: Any) -> Any:
        await unary(channel, method, request, **options)
        return await unary(channel, method, request, **options)

    monkeypatch.setattr(Channel, "unary", twice)
    assert (await world.trainer.cancel(job.id)).state == CANCELLED
    monkeypatch.setattr(Channel, "unary", unary)
    with pytest.raises(errors.FailedPrecondition, match="nothing to cancel"):
        await world.trainer.cancel(job.id)


async def test_the_trainer_keeps_answering_while_it_evaluates_as_served(world: TrainerWorld, monkeypatch):
    queries = [(query.text, query.gold) for query in VALIDATION]
    asked: list[dict[str, Any]] = []
    encode = EncoderClient.encode

    async def noted(self: EncoderClient, texts: Any, **options: Any) -> Any:
        asked.append(options)
        return await encode(self, texts, **options)

    def elsewhere(work: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: (threads.append(threading.get_ident()), work(*given))[1]

    threads: list[int] = []
    monkeypatch.setattr(convert, "_query", elsewhere(convert._query))
    monkeypatch.setattr(servicer, "to_report", elsewhere(servicer.to_report))
    monkeypatch.setattr(EncoderClient, "encode", noted)
    report = await world.trainer.evaluate(world.corpus, queries)
    assert len(threads) == len(VALIDATION) + 1
    assert threading.get_ident() not in threads, "thousands of queries and ranks take a second"
    assert {options["precision"] for options in asked} == {"float32"}
    assert asked[0]["label"] == "stable", "named, so that an evaluation is no traffic for a canary"
    assert (report.queries, report.candidates) == (len(VALIDATION), len(FACTS))
    assert report.model_version == world.space.version
    assert 0 < report.strict.map <= 1


async def test_wrong_jobs_are_refused_with_a_remedy(world: TrainerWorld):
    empty = (await world.sampler.import_pairs(world.corpus, [types_pb2.Pair(query="q", premise="p", sign=2)])).run_id
    wrong: list[tuple[dict[str, Any], type[errors.AeencError], str]] = [
        ({"corpus": ""}, errors.InvalidArgument, "name a corpus"),
        ({"corpus": "../etc"}, errors.InvalidArgument, "is not a corpus name"),
        ({"corpus": "unknown"}, errors.NotFound, "build it"),
        ({"run_ids": []}, errors.InvalidArgument, "at least one"),
        ({"data_sets": ["nothing"]}, errors.NotFound, "names: imported"),
        ({"loss": 99}, errors.InvalidArgument, "config.loss: 99 is unknown"),
        ({"batching": 99}, errors.InvalidArgument, "config.batching: 99 is unknown"),
        ({"hard_negatives": 65}, errors.InvalidArgument, "0 to 64"),
        ({"accumulation": 33}, errors.InvalidArgument, "1 to 32"),
        ({"initial_share": 1.5}, errors.InvalidArgument, "0 to 1"),
        ({"own_text": 99}, errors.InvalidArgument, "config.own_text: 99 is unknown"),
        ({"own_text": 2, "mode": 2, "loss": 2}, errors.InvalidArgument, "one vector as query and as premise"),
        ({"mode": 9}, errors.InvalidArgument, "config.mode: 9 is unknown"),
        ({"mode": "siamese", "loss": 1}, errors.InvalidArgument, "FULL_CORPUS_SOFTMAX.*mode SIAMESE trains"),
        ({"mode": "cross_encoder", "loss": "gist"}, errors.InvalidArgument, "loss: is GIST, but mode CROSS_ENCODER"),
        ({"mode": "cross_encoder", "hard_negatives": 0}, errors.InvalidArgument, "hard_negatives: is 0; give 1 to 64"),
        ({"mode": "cross_encoder", "base_model": "/tmp"}, errors.NotFound, "BASE_MODELS names: another"),
        ({"loss": "analogy", "prototypes": 10_001}, errors.InvalidArgument, "prototypes: is 10001; give 1 to 10000"),
        ({"guide_margin": 2.0}, errors.InvalidArgument, "-1 to 1"),
        ({"guide_version": "qnothing", "loss": "gist"}, errors.NotFound, "ListCheckpoints"),
        ({"run_ids": ["nothing"]}, errors.NotFound, "ListRuns"),
        ({"run_ids": [empty]}, errors.FailedPrecondition, "no positive pair"),
        ({"epochs": 101}, errors.InvalidArgument, "0 to 100"),
        ({"batch_size": 5000}, errors.InvalidArgument, "1 to 1024"),
        ({"learning_rate": float("nan")}, errors.InvalidArgument, "learning_rate"),
        ({"note": "x" * 16_385}, errors.TooLarge, r"config\.note\[0\]: 16,385 bytes are over the limit of 16,384"),
        ({"temperature": -1.0}, errors.InvalidArgument, "temperature"),
        ({"base_version": "qnothing"}, errors.NotFound, "ListCheckpoints"),
        ({"validation": [("a query", [])]}, errors.InvalidArgument, "at least one premise"),
        ({"validation": [("", ["x"])]}, errors.InvalidArgument, "is empty"),
        ({"validation": [(f"q {n}", [FACTS[0]]) for n in range(1025)]}, errors.TooLarge, "give a sample of them"),
        ({"validation": [("q", [FACTS[0]]), ("q", ["gone"])]}, errors.InvalidArgument, "'gone' of query 'q' is not in"),
        ({"validation": [(FACTS[0], [FACTS[0]])]}, errors.InvalidArgument, "own text"),
    ]
    for fields, kind, remedy in wrong:
        with pytest.raises(kind, match=remedy):
            await world.start(**fields)
    assert [one async for one in world.trainer.list_jobs()] == []
    for job_id in ("", "nothing"):
        with pytest.raises(errors.NotFound, match="ListJobs"):
            await world.trainer.get_job(job_id)


async def test_a_run_over_hypotheses_of_another_split_is_not_learned_from():
    class OneRun:
        async def get_run(self, run_id: str) -> sampler_pb2.Run:
            config = sampler_pb2.RunConfig(corpus="c", split="dev")
            return sampler_pb2.Run(id=run_id, config=config, progress=sampler_pb2.RunProgress(positives=3))

    pairs = SampledPairs(OneRun())  # type: ignore[arg-type]
    await pairs.check("c", ("r",), "dev")
    await pairs.check("c", ("r",), "")
    with pytest.raises(errors.FailedPrecondition, match=r"split 'dev'.*'train'.*leave the run out"):
        await pairs.check("c", ("r",), "train")


async def test_an_amended_pair_replaces_the_earlier_ones_of_its_run_alone():
    def pair(premise: str, sign: str, *, amended: bool = False) -> types_pb2.Pair:
        told = types_pb2.Pair(query="q", premise_id=premise, premise=premise, sign=f"PAIR_SIGN_{sign}")
        told.provenance.amended = amended
        return told

    logs = {
        "r1": [pair("a", "POSITIVE"), pair("b", "NEGATIVE"), pair("a", "NEGATIVE", amended=True)],
        "r2": [pair("a", "POSITIVE"), pair("b", "NEGATIVE"), pair("b", "POSITIVE")],
    }

    class Runs:
        async def get_run(self, _run_id: str) -> sampler_pb2.Run:
            return sampler_pb2.Run(config=sampler_pb2.RunConfig(split="train"))

        async def list_pairs(self, run_id: str) -> AsyncIterator[types_pb2.Pair]:
            for one in logs[run_id]:
                yield one

    found = await SampledPairs(Runs()).read(("r1", "r2"))  # type: ignore[arg-type]
    assert [(pair.premise, pair.sign) for pair in found] == [
        ("a", "NEGATIVE"),
        ("b", "NEGATIVE"),
        ("a", "POSITIVE"),
        ("b", "NEGATIVE"),
        ("b", "POSITIVE"),
    ]


@pytest.mark.parametrize("manifest", ["{", '{"format_version": 2}'], ids=["damaged", "newer"])
def test_a_generation_that_cannot_be_read_keeps_no_job_from_that_of_its_base(
    space: Space, corpus: str, manifest: str
) -> None:
    opened = open_generation(space.store, corpus, active_generation(space.store, corpus))
    (unreadable := space.store.root / folder_of(corpus) / "a").mkdir()
    (unreadable / "manifest.json").write_text(manifest)
    found = _same_premises_in(space.store, opened, space.space_id)
    assert (found.id, found is opened) == (opened.id, False)

"""A job in several processes: the gradient is that of the whole batch, and one that dies ends the job by name."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from aeenc.errors import FailedPrecondition
from services.trainer.jobs.files import ComputeOptions, JobFiles
from services.trainer.jobs.training_set import JudgedPair
from services.trainer.train import ranks
from services.trainer.train.inputs import EncoderTask, JobInputs
from services.trainer.train.job import run_job, train
from services.trainer.train.loop import BEST_PREMISES, best_weights
from services.trainer.train.ranks import Rank
from support.worlds.trainer_world import FACTS, PAIRS, QUERIES, MakeJob, Space, make_space


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Space:
    """The tiny space without dropout, which each process draws for itself."""
    return make_space(tmp_path_factory.mktemp("steady"), dropout=0.0)


def test_the_shares_of_a_batch_are_disjoint_and_their_mean_is_the_sum():
    units = np.arange(7)
    shares = [Rank(number, 3).share(units) for number in range(3)]
    assert sorted(np.concatenate([own for own, _ in shares])) == list(range(7))
    assert sum(own.sum() * weight for own, weight in shares) / 3 == units.sum()
    assert [weight for _, weight in (Rank(n, 3).share(np.arange(1)) for n in range(3))] == [3.0, 0.0, 0.0]


@pytest.mark.parametrize(("premises", "at_least_s"), [(0, 1800), (1_000_000, 50_000)])
def test_others_wait_as_long_as_a_corpus_may_take_to_be_encoded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, premises: int, at_least_s: float
):
    told: dict[str, Any] = {}
    monkeypatch.setattr(ranks.distributed, "init_process_group", lambda *_, **options: told.update(options))
    monkeypatch.setattr(ranks.distributed, "destroy_process_group", lambda: None)
    with ranks.together(tmp_path, Rank(1, 2), torch.device("cpu"), premises):
        assert told["timeout"].total_seconds() >= at_least_s


def test_the_leader_waits_until_the_others_of_this_attempt_have_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    loading = [1, 2]
    for number in loading:
        ranks._here(tmp_path, number).touch()  # of an earlier attempt
    load_one = SimpleNamespace(sleep=lambda _: ranks._here(tmp_path, loading.pop()).touch())
    monkeypatch.setattr(ranks, "time", load_one)
    monkeypatch.setattr(ranks.subprocess, "Popen", lambda *_, **__: Mock(poll=lambda: None))
    monkeypatch.setattr(ranks, "distributed", Mock())
    with ranks.together(tmp_path, Rank(0, 3), torch.device("cpu")):
        assert loading == []


@pytest.mark.parametrize(("device", "cards", "backend"), [("cuda", 2, "nccl"), ("cuda", 1, "gloo"), ("cpu", 0, "gloo")])
def test_nccl_serves_processes_that_have_a_gpu_each(monkeypatch, device: str, cards: int, backend: str):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    assert ranks._backend_of(torch.device(device), 2) == backend


def weights_after(files: JobFiles) -> dict[str, torch.Tensor]:
    """What is learned, without the export."""
    rank = Rank(0, files.plan().means.processes)
    task = EncoderTask(JobInputs.load(files, rank))
    train(files, task, task.encoders(), task.objective(), rank)
    of_premises = best_weights(files.directory, BEST_PREMISES)
    return {**best_weights(files.directory), **{f"premises/{name}": value for name, value in of_premises.items()}}


@pytest.mark.usefixtures("forks")
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["SINGLE", "SIAMESE", "DUAL"])
def test_two_processes_learn_what_one_learns(make_job: MakeJob, mode: str):
    options = {
        "epochs": 2,
        "batch_size": 7,
        "loss": "TRIPLET_MARGIN",
        "validation": [],
        "accumulation": 2,
        "mode": mode,
    }
    uneven = [JudgedPair(QUERIES[0], "", fact, "NEGATIVE", "train") for fact in FACTS[-9:]]
    options["pairs"] = [*PAIRS, *uneven]
    one = weights_after(make_job(**options, means=ComputeOptions(processes=1)))
    two = weights_after(make_job(**options, means=ComputeOptions(threads=2, processes=2)))
    apart = max(float((one[name] - two[name]).abs().max()) for name in one)
    assert apart < 1e-4, "the same gradient, but for the order of a sum"
    if mode == "DUAL":  # the others' encoder is one of its two
        again = weights_after(make_job(**options, means=ComputeOptions(threads=2, processes=2)))
        assert all(torch.equal(two[name], again[name]) for name in two)


@pytest.mark.slow
@pytest.mark.parametrize("status", [5, 0])
def test_a_process_that_ends_before_all_have_met_ends_the_job_by_number(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, status: int
):
    start = ranks.subprocess.Popen

    def broken(command: list[str], **options: object) -> object:
        return start([command[0], "-c", f"raise SystemExit({status})"], **options)

    monkeypatch.setattr(ranks.subprocess, "Popen", broken)
    with pytest.raises(FailedPrecondition, match=f"process 1 of 2 ended with status {status}"):
        run_job(make_job(validation=[], means=ComputeOptions(threads=2, processes=2)))


@pytest.mark.usefixtures("forks")
@pytest.mark.slow
def test_a_process_that_dies_at_work_ends_the_job_by_number(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch):
    started: list[subprocess.Popen[bytes]] = []
    start, meet = ranks.subprocess.Popen, Rank.meet

    def kept(*arguments: Any, **options: Any) -> Any:
        started.append(start(*arguments, **options))
        return started[-1]

    def killed(rank: Rank) -> None:
        started[0].kill()
        meet(rank)

    monkeypatch.setattr(ranks.subprocess, "Popen", kept)
    monkeypatch.setattr(Rank, "meet", killed)
    with pytest.raises(FailedPrecondition, match="process 1 of 2 ended with status -9"):
        run_job(make_job(validation=[], epochs=3, means=ComputeOptions(threads=2, processes=2)))

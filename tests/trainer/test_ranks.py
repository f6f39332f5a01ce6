"""A job in several processes: the gradient is that of the whole batch, and one that dies ends the job by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from trainer_world import MakeJob, Space, make_space

from aeenc.errors import FailedPrecondition
from services.trainer.job_files import JobFiles, Means
from services.trainer.learning import ranks
from services.trainer.learning.epoch_state import BEST
from services.trainer.learning.job import run_job, train
from services.trainer.learning.materials import Materials
from services.trainer.learning.ranks import Rank


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Space:
    """The tiny space without dropout, which each process draws for itself."""
    return make_space(tmp_path_factory.mktemp("steady"), dropout=0.0)


def test_the_shares_of_a_batch_are_disjoint_and_count_as_many_as_they_are():
    units = np.arange(7)
    shares = [Rank(number, 3).share(units) for number in range(3)]
    assert sorted(np.concatenate([own for own, _ in shares])) == list(range(7))
    means = [own.mean() * weight for own, weight in shares]
    assert sum(means) / 3 == pytest.approx(units.mean())


def test_a_process_without_a_unit_takes_part_without_weight():
    assert [weight for _, weight in (Rank(n, 3).share(np.arange(1)) for n in range(3))] == [3.0, 0.0, 0.0]


def weights_after(files: JobFiles) -> dict[str, torch.Tensor]:
    """What is learned, without the export."""
    rank = Rank(0, files.plan().means.processes)
    materials = Materials.load(files, rank)
    train(files, materials, materials.encoder(), materials.objective(), rank)
    return load_file(files.directory / BEST)


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(make_job: MakeJob):
    options = {"epochs": 2, "batch_size": 7, "loss": "TRIPLET_MARGIN", "validation": [], "accumulation": 2}
    one = weights_after(make_job(**options, means=Means(processes=1)))
    two = weights_after(make_job(**options, means=Means(threads=2, processes=2)))
    again = weights_after(make_job(**options, means=Means(threads=2, processes=2)))
    apart = max(float((one[name] - two[name]).abs().max()) for name in one)
    assert apart < 1e-4, "the same gradient, but for the order of a sum"
    assert all(torch.equal(two[name], again[name]) for name in two)


@pytest.mark.slow
def test_a_process_that_dies_ends_the_job_by_number(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch):
    start = ranks.subprocess.Popen

    def broken(command: list[str], **options: object) -> object:
        return start([command[0], "-c", "raise SystemExit(5)"], **options)

    monkeypatch.setattr(ranks.subprocess, "Popen", broken)
    monkeypatch.setattr(ranks, "PATIENCE", ranks.timedelta(seconds=3))
    with pytest.raises(FailedPrecondition, match="process 1 of 2 ended with status 5"):
        run_job(make_job(validation=[], means=Means(threads=2, processes=2)))

"""Fixtures: the tiny space, the corpus in it, the tiny cross-encoder, a job's runner, services around a trainer."""

import pytest

from services.trainer.learning.checkpoint import export
from support.models.forks import Graphs, forks
from support.models.tiny_cross_encoders import Exported, shared_cross_encoder
from support.worlds.job_bench import bench
from support.worlds.trainer_world import corpus, make_job, space, world

__all__ = ["bench", "corpus", "forks", "make_job", "space", "world"]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A tiny cross-encoder and its checkpoint."""
    return shared_cross_encoder(tmp_path_factory)


@pytest.fixture(scope="session", autouse=True)
def _graphs() -> None:
    """Has this process trace each tiny architecture once."""
    export._traced = Graphs()

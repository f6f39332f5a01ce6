"""Fixtures: the tiny space, the corpus in it, the tiny cross-encoder, a job's runner, services around a trainer."""

import pytest

from support.models.tiny_cross_encoders import Exported, shared_cross_encoder
from support.worlds.job_bench import bench
from support.worlds.trainer_world import corpus, make_job, space, world

__all__ = ["bench", "corpus", "make_job", "space", "world"]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A tiny cross-encoder and its checkpoint."""
    return shared_cross_encoder(tmp_path_factory)

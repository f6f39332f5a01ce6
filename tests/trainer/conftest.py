"""The tiny space, the corpus in it, the tiny cross-encoder and a job's runner as fixtures."""

import pytest
from job_bench import bench
from tiny_cross_encoder import Exported, export_tiny_cross_encoder
from trainer_world import corpus, make_job, space

__all__ = ["bench", "corpus", "make_job", "space"]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A tiny cross-encoder and its checkpoint."""
    return export_tiny_cross_encoder(tmp_path_factory.mktemp("cross"))

"""The tiny space, the corpus in it and the tiny cross-encoder as fixtures."""

import pytest
from tiny_cross_encoder import Exported, export_tiny_cross_encoder
from trainer_world import corpus, make_job, space

__all__ = ["corpus", "make_job", "space"]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A tiny cross-encoder and its checkpoint."""
    return export_tiny_cross_encoder(tmp_path_factory.mktemp("cross"))

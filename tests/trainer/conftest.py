"""Fixtures: the tiny space, the corpus in it, the tiny cross-encoder, a job's runner, services around a trainer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from services.trainer.train.encoder import QueryEncoder
from services.trainer.train.export import checkpoint as export
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


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[int]]:
    """Computes the loss of all units of what a job trains; gives how many texts each pass through an encoder takes."""

    def counted(task: Any) -> list[int]:
        encoders, objective = task.encoders(), task.objective()
        taken: list[int] = []
        hidden = QueryEncoder.hidden
        monkeypatch.setattr(
            QueryEncoder, "hidden", lambda self, ids, mask: taken.append(len(ids)) or hidden(self, ids, mask)
        )
        objective.batches(np.random.default_rng(1), objective.size)
        objective.loss(encoders, np.arange(objective.size))
        return taken

    return counted

"""A job also measures the versions that serve, on its own validation queries: the quality gate compares with them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from services.trainer.jobs.files import ComputeOptions, JobFiles
from services.trainer.train.encoder import prepare_torch
from support.worlds.trainer_world import FACTS, VALIDATION, MakeJob, Space, load, result_of

CROSS = {"mode": "CROSS_ENCODER", "loss": "REGRESSION"}
FAST = ComputeOptions(int8=False)


def metrics_of(space: Space, files: JobFiles, *serving: str) -> tuple[str, dict[str, Any]]:
    """Runs a job while some versions serve; returns its version and its metrics."""
    prepare_torch(1)
    files.write_plan(replace(files.plan(), serving=serving))
    version = result_of(files)["version"]
    return version, json.loads(space.store.open("checkpoints", version).file("metrics.json").read_bytes())


@pytest.mark.parametrize(
    ("first", "second"),
    [({}, {}), ({}, {"mode": "SIAMESE", "loss": "MULTIPLE_NEGATIVES_RANKING"}), (CROSS, CROSS)],
    ids=["single", "siamese", "cross-encoder"],
)
def test_what_serves_is_measured_on_the_jobs_queries_in_whatever_order_they_come(
    space: Space, make_job: MakeJob, first: dict[str, Any], second: dict[str, Any]
):
    serving, itself = metrics_of(space, make_job(epochs=2, means=FAST, **first))
    files = make_job(epochs=1, means=FAST, validation=VALIDATION[::-1], seed=1, **second)
    _, metrics = metrics_of(space, files, space.version, serving, "qgone")
    assert list(metrics["measured"]) == [space.version, serving], "what is gone fails no job"
    assert metrics["measured"][serving] == pytest.approx(itself["average_precisions"])
    assert metrics["queries_sha256"] == itself["queries_sha256"]


def test_cross_encoders_over_other_candidates_have_no_rankings_in_common(make_job: MakeJob):
    def names(shift: int) -> str:
        found = {query.text: [f"f{(n + shift) % len(FACTS)}" for n in range(20)] for query in VALIDATION}
        return load(make_job(candidates="LEXICAL", retrieved=found, **CROSS)).rankings

    assert names(0) == names(0) != names(5)

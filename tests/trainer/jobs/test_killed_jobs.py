"""Jobs killed by SIGKILL at random moments end with the weights of one that was left alone, to the bit."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import pytest

from services.trainer.jobs.files import ComputeOptions, JobFiles
from services.trainer.registry.child import MODULE
from support.worlds.trainer_world import MakeJob, Space

JOBS = 3
MOST_KILLS = 20


def start(files: JobFiles) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", MODULE, "job", str(files.directory)]
    return subprocess.Popen(command, stdin=subprocess.PIPE)  # it lives as long as its standard input


def weights_of(space: Space, files: JobFiles) -> list[str]:
    result = files.result()
    assert result is not None
    made = [result[name] for name in ("version", "premise_version") if name in result]
    files_of = [space.store.open("checkpoints", version).files for version in made]
    return [files.get("model.safetensors", files["model.onnx"]).sha256 for files in files_of]


@pytest.mark.crash
@pytest.mark.parametrize(
    ("loss", "mode"),
    [
        *((loss, "SINGLE") for loss in ("FULL_CORPUS_SOFTMAX", "TRIPLET_MARGIN", "GIST", "NLI_CLASSIFICATION")),
        ("TRIPLET_MARGIN", "SIAMESE"),
        ("PAIRWISE_CONTRASTIVE", "DUAL"),
        ("REGRESSION", "CROSS_ENCODER"),
        ("ANALOGY", "SIAMESE"),
    ],
)
def test_jobs_killed_at_random_moments_end_with_the_same_weights(space: Space, make_job: MakeJob, loss: str, mode: str):
    options = {
        "loss": loss,
        "mode": mode,
        "epochs": 20,
        "regularization": 0.1,
        "means": ComputeOptions(threads=2, int8=False),
    }
    whole = make_job(**options)
    begun = time.monotonic()
    assert start(whole).wait() == 0
    lasted_s = time.monotonic() - begun
    draw, kills = random.Random(loss), 0
    for _ in range(JOBS):
        files = make_job(**options)
        while files.result() is None:
            process = start(files)
            try:
                process.wait(draw.uniform(0.3, 1.1) * lasted_s if kills < MOST_KILLS else None)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
        assert weights_of(space, files) == weights_of(space, whole)
    assert kills

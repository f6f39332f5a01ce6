"""`make bench NAME=trainer-speed`: both trainers run in the same precision."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from aeenc.trees import Dataset
from benchmarks.harness.rows import ROOT
from services.trainer.learning import devices


@pytest.fixture
def speed(monkeypatch, tmp_path):
    """The benchmark, with a folder of its own."""
    path = ROOT / "benchmarks" / "trainer" / "trainer-speed.py"
    spec = importlib.util.spec_from_file_location("trainer_speed_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HOME", tmp_path / "speed")
    monkeypatch.setattr(module, "with_packages", dict)
    return module


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_their_trainer_gets_bfloat16_exactly_where_a_job_of_ours_chooses_it(speed, trees, monkeypatch, precision):
    asked = []

    def run(command, **_):
        request = Path(command[-1])
        asked.append((command[2], json.loads(request.read_text())))
        for name in ("queries", "premises"):
            texts = asked[0][1][name]
            np.save(request.with_name(f"{name}.npy"), np.ones((len(texts), 1), np.float32))
        return SimpleNamespace(stdout='{"seconds": 2.0}\n')

    monkeypatch.setattr(devices, "precision_of", lambda wanted, device: precision)
    monkeypatch.setattr(speed.subprocess, "run", run)
    found = speed.theirs(Dataset.load(trees), Path("model"), [("a", "b", "c")], margin=0.1)
    [(script, request)] = asked
    assert found.seconds == 2.0
    assert request["bf16"] == (precision == "bfloat16")
    assert 'bf16=request["bf16"]' in script

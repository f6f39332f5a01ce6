"""Where a trainer's jobs compute: what was found on the machine, not what was asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aeenc import errors
from services.trainer.jobs.files import ComputeOptions
from services.trainer.registry.child import Child, Device
from services.trainer.train import __main__ as child
from services.trainer.train.encoder import device_of
from services.trainer.train.inputs import JobInputs
from services.trainer.train.ranks import Rank
from support.torn_disk import full_disk
from support.waiting import until
from support.worlds.trainer_world import MakeJob

ANSWERS = "import pathlib, sys; pathlib.Path(sys.argv[2]).with_suffix('.result').write_text(sys.argv[-1])"


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_without_a_gpu_a_job_computes_on_the_cpu_unless_one_was_asked_for_by_name(no_gpu: None):
    assert [str(device_of(wanted)) for wanted in ("auto", "cpu")] == ["cpu", "cpu"]
    with pytest.raises(errors.FailedPrecondition, match="AEENC_TRAINER_DEVICE=auto"):
        device_of("cuda")


def test_each_process_of_a_job_has_a_gpu_of_its_own_as_far_as_they_go(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    devices = [str(device_of(wanted, number)) for wanted in ("auto", "cuda") for number in range(3)]
    assert devices == ["cuda:0", "cuda:1", "cuda:0"] * 2


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Two cards of 4 GiB, and what a process may take of which."""
    found: list[tuple[float, int]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=4 * 2**30))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: found.append(given))
    return found


def test_a_job_takes_no_more_of_its_card_than_it_may(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, shares: list[tuple[float, int]]
):
    files = make_job(means=ComputeOptions(device="cuda", gpu_bytes=2**30))
    assert JobInputs.load(files, Rank(1, 2)).device == torch.device("cuda", 1)
    assert shares == [(0.25, 1)]
    device_of("auto")
    assert len(shares) == 1, "0 bounds nothing"


def test_more_memory_than_the_card_has_is_refused_by_name_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shares: list[tuple[float, int]]
):
    monkeypatch.setattr(child, "end_with_parent", lambda _: None)
    request = tmp_path / "device.json"
    request.write_text(json.dumps({"wanted": "auto", "gpu_bytes": 5 * 2**30}))
    monkeypatch.setattr(sys, "argv", ["", "device", str(request)])
    child.main()
    told = json.loads(request.with_suffix(".result").read_bytes())["error"]
    assert told == (
        "AEENC_TRAINER_GPU_BYTES=5368709120, but cuda:0 has 4,294,967,296 bytes; set at most these, or 0 for no limit"
    )
    assert shares == []


def test_an_answer_that_the_disk_did_not_take_is_none(tmp_path: Path, no_gpu: None):
    request = tmp_path / "device.json"
    request.write_text(json.dumps({"wanted": "cpu", "gpu_bytes": 0}))
    with full_disk(4), pytest.raises(OSError, match="too large"):
        child._answer("device", request)
    assert not request.with_suffix(".result").exists()


@pytest.mark.parametrize(
    ("answer", "name"), [('{"device": "cuda:0"}', "cuda:0"), ('{"error": "no GPU"}', "")], ids=["found", "missing"]
)
async def test_the_device_is_what_a_child_process_answers(answer: str, name: str, monkeypatch: pytest.MonkeyPatch):
    children: list[Child] = []

    asked: list[tuple[str, Any]] = []

    async def start(cls: type[Child], *arguments: str) -> Child:
        asked.append((arguments[0], json.loads(Path(arguments[1]).read_bytes())))  # noqa: ASYNC240 - a few bytes
        children.append(cls(sys.executable, "-c", ANSWERS, *arguments, answer))
        return children[0]

    monkeypatch.setattr(Child, "start", classmethod(start))
    monkeypatch.setattr("services.trainer.registry.child.has_gpu_driver", lambda: True)
    device = Device("cuda", 2**30)
    device.ask()
    assert device.name == ""
    await until(lambda: device._asking is not None and device._asking.done())
    assert device.name == name
    assert asked == [("device", {"wanted": "cuda", "gpu_bytes": 2**30})]
    await device.close()


async def test_without_a_gpu_driver_the_device_is_known_at_once_and_no_process_is_started(
    monkeypatch: pytest.MonkeyPatch,
):
    def forbidden(*_: str) -> None:
        raise AssertionError("torch would be loaded")

    monkeypatch.setattr(Child, "start", forbidden)
    monkeypatch.setattr("services.trainer.registry.child.has_gpu_driver", lambda: False)
    names = {}
    for wanted in ("auto", "cuda", "cpu"):
        device = Device(wanted)
        device.ask()
        names[wanted] = device.name
        await device.close()
    assert names == {"auto": "cpu", "cuda": "", "cpu": "cpu"}

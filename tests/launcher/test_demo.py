"""The demo as a test: its promises on the sample, and on the real data where they are at hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.real_data import ENTAILMENTBANK, without_test


def demo(home: Path, *arguments: str) -> dict[str, Any]:
    """Runs `aeenc demo` and returns its report."""
    command = [str(Path(sys.executable).with_name("aeenc")), "--json", "demo", "--home", str(home), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((home / "demo" / "report.json").read_bytes())
    assert json.loads(done.stdout) == report
    return report


def holds(report: dict[str, Any]) -> None:
    """What holds on any data: no call fails during the swap, and the index stays as it was."""
    assert report["swap"]["failed"] == 0
    assert report["swap"]["requests"] > 100
    assert report["index_sha256"]["before"] == report["index_sha256"]["after"]
    assert report["versions"]["before"] != report["versions"]["after"]


@pytest.mark.demo
def test_the_sample_gets_better_within_two_minutes(tmp_path: Path):
    report = demo(tmp_path)
    holds(report)
    assert report["after"]["strict"]["MAP"] >= report["before"]["strict"]["MAP"]
    assert report["seconds"]["total"] <= 120


@pytest.mark.demo
def test_entailmentbank_reaches_its_marks_within_eight_minutes(tmp_path: Path):
    report = demo(tmp_path / "home", "--data", str(without_test(ENTAILMENTBANK, tmp_path / "data")))
    holds(report)
    assert (report["candidates"], report["queries"]) == (15_243, 594)
    assert report["before"]["strict"]["MAP"] == pytest.approx(0.494, abs=0.003)
    assert report["before"]["paper"]["MAP"] == pytest.approx(0.370, abs=0.003)
    assert report["after"]["strict"]["MAP"] >= 0.520
    assert report["after"]["strict"]["Hit@10"] >= 0.75
    assert report["seconds"]["total"] <= 480

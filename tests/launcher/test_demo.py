"""The demo as a test: its promises on the sample, and on the real data where they are at hand; and its end."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from services.launcher import demo as demo_loop
from services.launcher.fleet import Fleet
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


def test_the_last_table_is_followed_by_what_its_columns_are():
    swap = {"requests": 1, "failed": 0, "publish_to_serving_s": 0.5}
    told = demo_loop._summary({"swap": swap, "index_sha256": {"before": "a", "after": "a"}, "seconds": {"total": 1.0}})
    assert "strict" in told[0]
    assert "paper" in told[0]


# A demo whose fleet is one process that does not end by itself, and that waits for ever once this has started.
WAITING_DEMO = """
import os, signal, sys, time
from pathlib import Path
from aeenc.cli.output import Output
from services.launcher import demo, processes
from services.launcher.fleet import Fleet, Options

def up(fleet, options, say):
    started = processes.start(["sleep", "60"], {}, Path(sys.argv[1]) / "log")
    fleet._write(options, {}, {"index": started}, "")
    while True:  # Python sees a signal that comes just before a sleep only after it
        time.sleep(0.1)

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup may have started the tests
os.close(os.open(os.ttyname(0), os.O_RDWR))  # makes it the terminal whose end ends this process
Fleet.up = up
demo.run_demo(demo.Path(sys.argv[2]), Path(sys.argv[1]), Output(as_json=False), 1)
"""
SAMPLE = Path(__file__).parents[2] / "data" / "sample"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_a_signal_or_its_closing_terminal_ends_leaves_no_process(tmp_path: Path, number: signal.Signals):
    ours, terminal = pty.openpty()
    command = [sys.executable, "-c", WAITING_DEMO, str(tmp_path), str(SAMPLE)]
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    ) as demonstration:
        os.close(terminal)
        while not (running := Fleet(tmp_path / "fleet").running()):
            assert demonstration.poll() is None, os.read(ours, 65536).decode()
            time.sleep(0.02)
        if number == signal.SIGTERM:
            demonstration.terminate()
            assert demonstration.wait(10) == 128 + number
        os.close(ours)  # the kernel sends SIGHUP, and what is still written to the terminal fails
        demonstration.wait(10)
    assert not running["index"].alive

"""The log file of a service: bounded, whole lines, and nothing lost when the process dies."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.kit.logs import LOGS_KEPT, set_aside

MOST_BYTES = 4096
PROCESS = """
import os, signal, sys
from pathlib import Path
from services.kit import logs
from services.kit.server import GrpcServer, run
from services.kit.settings import ServiceSettings

def build(settings):
    server = GrpcServer(settings)
    logs.get("test").warning("computes on a CPU")
    async def end():
        os.kill(os.getpid(), signal.SIGTERM)
    server.on_start(end)
    return server

run(build, ServiceSettings(log_format="json", log_file=Path(sys.argv[1])))
"""
LINES = 400
SERVICE = f"""
import os, signal, sys
from pathlib import Path
from services.kit import logs

logs.configure(log_format="json", log_level="info", service="test", instance="1",
               log_file=Path(sys.argv[1]), log_file_bytes={MOST_BYTES})
log = logs.get("test")
for number in range({LINES}):
    log.info("line", number=number)
    if number == {LINES} - 2:
        os.write(2, b"from a C library\\n")
        print("from a library", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_log_file_stays_bounded_and_has_the_last_lines_of_a_process_that_was_killed(tmp_path: Path):
    path = tmp_path / "index.log"
    done = subprocess.run([sys.executable, "-c", SERVICE, str(path)], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGKILL, b"", b"")
    files = sorted(tmp_path.iterdir(), reverse=True)
    assert [file.name for file in files] == ["index.log.3", "index.log.2", "index.log.1", "index.log"]
    assert all(file.stat().st_size < MOST_BYTES + 400 for file in files), "a file ends with the line that fills it"
    text = "".join(file.read_text() for file in files)
    kept = [int(number) for number in re.findall(r'"number": (\d+)', text)]
    assert kept == list(range(kept[0], LINES)), "no line is lost or out of order"
    assert len(kept) > 3 * MOST_BYTES // 200
    assert {"from a C library", "from a library"} <= set(text.splitlines())


def test_what_is_logged_while_a_service_is_built_is_in_its_log_as_all_else(tmp_path: Path):
    path = tmp_path / "index.log"
    done = subprocess.run([sys.executable, "-c", PROCESS, str(path)], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    first = json.loads(path.read_text().splitlines()[0])
    assert (first["event"], first["service"]) == ("computes on a CPU", "service")


def test_logs_that_are_set_aside_keep_their_order_and_the_oldest_goes(tmp_path: Path):
    path = tmp_path / "index.log"
    for number in range(LOGS_KEPT + 2):
        path.write_text(str(number))
        set_aside(path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "index.log.1": "4",
        "index.log.2": "3",
        "index.log.3": "2",
    }
    set_aside(path)
    assert (tmp_path / "index.log.1").read_text() == "4", "without a log nothing moves"


def test_a_log_file_that_cannot_be_written_stops_the_start_by_name(tmp_path: Path):
    command = [sys.executable, "-c", PROCESS, str(tmp_path / "none" / "x.log")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert ended.returncode == 1
    told = r"^the service stopped: log_file .*x\.log cannot be written \(No such file or directory\); name another"
    assert re.search(told, ended.stderr)


FULL = """
import os, sys
from pathlib import Path
from services.kit import logs

told = os.dup(1)
path = None if sys.argv[1] == "stderr" else Path(sys.argv[1])
logs.configure(log_format="json", log_level="info", service="test", instance="1", log_file=path, log_file_bytes=4096)
log = logs.get("test")
for number in range(400):
    log.info("line", number=number)
    try:
        raise OSError("a failure")
    except OSError:
        log.exception("failed")
os.write(told, str(logs.LogOutput.lost).encode())
os._exit(7)
"""


@pytest.mark.parametrize("place", ["/dev/full", "stderr"])
def test_lines_that_cannot_be_written_are_lost_and_counted_and_raise_nothing(place: str):
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-c", FULL, place]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, timeout=60, check=False)
    assert done.returncode == 7
    assert 0 < int(done.stdout) <= 800

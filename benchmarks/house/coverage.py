"""Which branches do the tests run, beside those of another revision? `make bench NAME=coverage`.

    clone of a revision, with its own `make setup` ─► its tests, every process of them measured ─► lines and branches

    make bench NAME=coverage ARGS='--tests tests/index'   some of the tests

Counts `services` and `clients` without generated code. An hour and a half on two cores that do nothing else: processes
are killed in the tests, and what was killed while it wrote its figures is left out. A test that fails is named and
stops nothing. Needs a package index for `coverage`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness.rows import ROOT, Rows
from benchmarks.house.weight import STOOD

MOST_LOST = 0.5  # points
SETTINGS = """[run]
branch = True
parallel = True
sigterm = True
concurrency = thread, multiprocessing
data_file = {folder}/data/.coverage
source =
    {repository}/services
    {repository}/clients
[report]
omit =
    */v1/*
    */_pb2*
"""


def measured(revision: str, tests: Sequence[str], folder: Path) -> Mapping[str, float]:
    """The totals of `coverage json` over the tests of a revision, run in a clone in `folder`."""
    repository, settings = folder / "repository", folder / "coverage.ini"
    python, environment = repository / ".venv/bin/python", {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)

    def run(*command: str | Path, check: bool = True, **added: str) -> str:
        told = subprocess.run(
            command, cwd=repository, env={**environment, **added}, stdout=subprocess.PIPE, text=True, check=check
        )
        return told.stdout

    subprocess.run(["git", "clone", "-q", ROOT, repository], check=True)
    (folder / "data").mkdir()
    settings.write_text(SETTINGS.format(folder=folder, repository=repository))
    run("git", "checkout", "-q", revision)
    run("make", "setup", "VENV=.venv")  # whatever the one of `make bench` is
    run(python, "-m", "pip", "install", "-q", "coverage")
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip()
    (Path(packages) / "measured.pth").write_text("import coverage; coverage.process_startup()")
    options = ["-q", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--timeout", "600", "--color=no"]
    told = run(python, "-m", "pytest", *options, *tests, check=False, COVERAGE_PROCESS_START=str(settings))
    print(
        *[line for line in told.splitlines() if line.startswith(("FAILED", "ERROR"))], told.splitlines()[-1], sep="\n"
    )
    of = ("--rcfile", str(settings), "-q")
    run(python, "-m", "coverage", "combine", *of, folder / "data", check=False)
    run(python, "-m", "coverage", "json", *of, "-o", folder / "found.json")
    totals: Mapping[str, float] = json.loads((folder / "found.json").read_bytes())["totals"]
    return totals


def main() -> None:
    """Measures HEAD, and the other revision before it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", default=STOOD, metavar="REV", help="the other revision")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="files or folders")
    given = parser.parse_args()
    found = []
    for revision in (given.against, "HEAD"):
        with tempfile.TemporaryDirectory(prefix="coverage-") as folder:
            found.append(measured(revision, given.tests, Path(folder)))
    before, now = found
    rows, branches = Rows("coverage"), "percent_branches_covered"
    rows.note("lines that the tests run", now["percent_statements_covered"], "%", before["percent_statements_covered"])
    rows.at_least("branches that the tests run", now[branches], "%", before[branches] - MOST_LOST, before[branches])
    rows.finish()


if __name__ == "__main__":
    main()

"""The loop on real data: quality before and after, the swap under load, the time. `make bench NAME=loop`.

The untrained encoder is the baseline, measured in the same run. Needs EntailmentBank in
`data/entailmentbank`, or in the directory of AEENC_BENCH_DATA.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness.entailmentbank import DATA, check_there
from benchmarks.harness.rows import ROOT, Rows

TOLERANCE = 0.003


def add_claims(rows: Rows, report: dict[str, Any]) -> None:
    """Adds what a demo's report must show."""
    before, after = report["before"], report["after"]
    swap, hashes = report["swap"], report["index_sha256"]
    for protocol, expected in (("strict", 0.494), ("paper", 0.370)):
        found = before[protocol]["MAP"]
        is_near = abs(found - expected) <= TOLERANCE
        rows.add(f"dev, {protocol}, untrained", found, "MAP", f"{expected} ± {TOLERANCE}", is_near)
    for metric, least in (("MAP", 0.520), ("Hit@10", 0.75)):
        rows.at_least("dev, strict, one round", after["strict"][metric], metric, least, before["strict"][metric])
    rows.at_most("failed calls during the swap", swap["failed"], "calls", 0, swap["requests"])
    rows.note("publish to serving", swap["publish_to_serving_s"], "s")
    rows.add("index files", hashes["after"][:12], "sha256", "as before", hashes["after"] == hashes["before"])
    rows.at_most("in all", report["seconds"]["total"], "s", 480)


def main() -> None:
    """Runs the demo and prints the table."""
    check_there()
    home = ROOT / ".aeenc" / "bench"
    command = [str(Path(sys.executable).with_name("aeenc")), "--json", "demo", "--data", str(DATA), "--home", str(home)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rows = Rows("loop")
    add_claims(rows, json.loads((home / "demo" / "report.json").read_bytes()))
    rows.finish()


if __name__ == "__main__":
    main()

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
from benchmarks.harness.rows import RESULTS, ROOT

TOLERANCE = 0.003


def rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a claim: value, unit, bar, whether it holds, and the baseline."""
    before, after = report["before"], report["after"]
    swap, hashes, seconds = report["swap"], report["index_sha256"], report["seconds"]

    def row(name: str, value: Any, unit: str, bar: str, ok: bool, baseline: Any = None) -> dict[str, Any]:
        return {"row": name, "value": value, "unit": unit, "bar": bar, "ok": bool(ok), "baseline": baseline}

    strict, paper = before["strict"]["MAP"], before["paper"]["MAP"]
    tuned, hit = after["strict"]["MAP"], after["strict"]["Hit@10"]
    return [
        row("dev MAP strict, untrained", strict, "MAP", f".494 ± {TOLERANCE}", abs(strict - 0.494) <= TOLERANCE),
        row("dev MAP paper, untrained", paper, "MAP", f".370 ± {TOLERANCE}", abs(paper - 0.370) <= TOLERANCE),
        row("dev MAP strict, one round", tuned, "MAP", "≥ .520", tuned >= 0.520, strict),
        row("dev Hit@10 strict, one round", hit, "share", "≥ .75", hit >= 0.75, before["strict"]["Hit@10"]),
        row("failed calls during the swap", swap["failed"], "calls", "0", swap["failed"] == 0, swap["requests"]),
        row("publish to serving", swap["publish_to_serving_s"], "s", "none", True),
        row("index files", hashes["after"][:12], "sha256", "as before", hashes["after"] == hashes["before"]),
        row("in all", seconds["total"], "s", "≤ 480", seconds["total"] <= 480),
    ]


def main() -> None:
    """Runs the demo and prints the table."""
    check_there()
    home = ROOT / ".aeenc" / "bench"
    command = [str(Path(sys.executable).with_name("aeenc")), "--json", "demo", "--data", str(DATA), "--home", str(home)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    table = rows(json.loads((home / "demo" / "report.json").read_bytes()))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "loop.json").write_text(json.dumps(table, indent=1))
    for line in table:
        value = f"{line['value']:.4g}" if isinstance(line["value"], float) else line["value"]
        print(f"{'ok  ' if line['ok'] else 'FAIL'}  {line['row']:<32} {value:>14} {line['unit']:<7} {line['bar']}")
    sys.exit(0 if all(line["ok"] for line in table) else 1)


if __name__ == "__main__":
    main()

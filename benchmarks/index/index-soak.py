"""The index killed by SIGKILL again and again: what was acknowledged and is lost. `make bench NAME=index-soak`.

Loopback only, no data, ends by itself; `--kills` makes it shorter and the rows then say how many there were.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

from benchmarks.harness.rows import Rows
from benchmarks.index.crash import crash

KILLS = 300
LEAST_HITS = 0.1  # of the kills, for each phase: so many must have broken into it


async def main(options: argparse.Namespace) -> None:
    """Runs the crash harness and says what was lost."""
    rows = Rows("index-soak")
    begun = time.monotonic()
    report = await crash(options.kills, options.seed)
    kills = sum(report.kills.values())
    rows.at_least("kills", kills, "kills", options.kills, dict(report.kills))
    for phase in ("build", "activate", "delete"):
        least = round(LEAST_HITS * kills)
        rows.at_least(f"kills in the middle of {phase}", report.broken[phase], "kills", least, report.kills[phase])
    commits = report.broken["commit"]
    rows.at_least("kills in the middle of a commit", commits, "kills", round(0.01 * kills), report.kills["commit"])
    lost = report.lost_premises
    rows.at_most("acknowledged premises lost", lost, "premises", 0, report.acknowledged_premises)
    rows.at_most("acknowledged vectors encoded again", report.encoded_again, "vectors", 0, report.acknowledged_rows)
    rows.at_most("acknowledged generations lost", report.lost_generations, "", 0, report.checked)
    rows.at_most("acknowledged activations lost", report.lost_activations, "", 0, report.broken["activate"])
    rows.at_most("acknowledged deletions undone", report.undone_deletions, "", 0, report.broken["delete"])
    rows.at_most("corrupt or half-built generations served", report.corrupt, "", 0, f"{report.checked} checked")
    rows.add("wrong answers", len(report.wrong), "", "0", not report.wrong, report.wrong[:3] or report.searches)
    rows.note("generations finished and not acknowledged", report.unacknowledged, "")
    rows.note("premises that a resumed build did not stream again", report.resumed, "premises")
    rows.note("start to answering, median", statistics.median(report.starts_s), "s")
    rows.note("in all", time.monotonic() - begun, "s")
    rows.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=1)
    asyncio.run(main(parser.parse_args()))

"""The promises of the contracts, held against a running fleet. `make bench NAME=promises`, about an hour and a quarter.

    findings        what reading every service found, and the tests that protect each mend
    cancellations   calls cancelled at random moments under load, then kills: nothing half done, nothing lost
    requests        every call that changes something sent again, with the same and with other content
    fleet           trainers, samplers, encoders and an index among kills, and clocks a minute apart
    authorisation   every RPC against every credential
    retention       runs, jobs and checkpoints come and go: Redis and disk stop growing

Loopback only and small models only; ends by itself. `--only PART` runs one part (ARGS='--only fleet' of make),
`--minutes` and `--trials` make it shorter, and the rows then say so.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from typing import Any

from benchmarks.harness.baselines import run
from benchmarks.harness.rows import Rows
from benchmarks.promises.authorisation import authorisation
from benchmarks.promises.findings import findings
from benchmarks.promises.fleet_soak import fleet_soak
from benchmarks.promises.mutations.cancellations import cancellations
from benchmarks.promises.mutations.repeated_requests import repeated_requests
from benchmarks.promises.retention import retention

PARTS: dict[str, Callable[[Rows, argparse.Namespace], Any]] = {
    "findings": lambda rows, _: findings(rows),
    "cancellations": lambda rows, options: cancellations(rows, options.trials, options.seed, options.rpc),
    "requests": lambda rows, options: repeated_requests(rows, options.rpc),
    "fleet": lambda rows, options: fleet_soak(rows, options.minutes, options.seed),
    "authorisation": lambda rows, _: authorisation(rows),
    "retention": lambda rows, options: retention(rows, options.minutes),
}


def main() -> None:
    """Runs all parts, or the one that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="one part; its results get a name of their own")
    parser.add_argument("--minutes", type=float, default=30.0, help="of the parts fleet and retention")
    parser.add_argument("--trials", type=int, default=300, help="cancellations of each RPC")
    parser.add_argument("--rpc", default="", help="cancellations and requests of RPCs with this in their name alone")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rows = Rows(f"promises-{options.only}" if options.only else "promises")
    for name in [options.only] if options.only else PARTS:
        if inspect.isawaitable(part := PARTS[name](rows, options)):
            run(part)
    rows.finish()


if __name__ == "__main__":
    main()

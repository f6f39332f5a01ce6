"""People at a human queue, with kills. `make bench NAME=sampler-people`, about three minutes; loopback only."""

from __future__ import annotations

import argparse

from harness.baselines import run
from harness.people import people
from harness.rows import Rows


async def main(options: argparse.Namespace) -> None:
    """Runs it."""
    rows = Rows("sampler-people")
    await people(rows, hypotheses=options.hypotheses, kills=options.kills)
    rows.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hypotheses", type=int, default=200)
    parser.add_argument("--kills", type=int, default=30)
    run(main(parser.parse_args()))

"""`make bench NAME=mixed-versions`: an earlier release and today's, side by side as a rolling upgrade makes them.

    pairings    each of the four services and the SDK alone in one release, all else in the other
    upgrade     one fleet, from the earlier release to today's, one service after the other
    way back    today's writes everything and is killed; the earlier release goes on with it, then today's again

The loop of mixed_caller.py has to pass in every pairing. The earlier release is commit 03bd31b, out of the history of
this checkout, with the packages that are installed. `--only PART` and `--pairing TEXT` choose. Loopback only, small
models, a quarter of an hour.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aeenc.values import JobState
from benchmarks.harness.baselines import run
from benchmarks.harness.rows import ROOT, Rows
from benchmarks.promises.fleet import JOB, SERVICES, Fleet
from benchmarks.promises.releases.pairings import PARTS, SDK, Pairing, pairings, upgrade
from benchmarks.promises.releases.state import go_on, take_snapshot
from benchmarks.promises.releases.versions import EARLIER, check_out, described, written
from support.models.tiny_base_models import write_tiny_base
from support.service_process import RedisProcess
from support.worlds.trainer_world import FACTS, QUERIES, VALIDATION

CALLER = ROOT / "benchmarks" / "fleet" / "mixed_caller.py"
LOOP_S = 400.0
# What commit 03bd31b cannot do with today's state, as docs/operations.md says: how it fails, and why.
LIMITS = {
    "the half-done job": ("internal error (TypeError)", "it fails the job, whose pairs name more than it reads"),
    "calls that had an id, sent again": ("import: {", "it takes today's note of an import for the name of a run"),
}
DONE_THERE = {"the half-done job", "the people's run"}  # by the earlier release, or before
Roots = dict[str, Path]  # by release: "earlier", "today"


@asynccontextmanager
async def running(home: Path, roots: Roots, pairing: Pairing) -> AsyncIterator[Fleet]:
    """A fleet over `home`, each service of its release; everything ends with the block."""
    redis = RedisProcess(home / "redis")
    try:
        async with described(home, redis) as fleet:
            for service in SERVICES:
                for process in fleet.processes[service]:
                    process.use(roots[pairing.release_of(service)])
            try:
                await fleet.start()
                yield fleet
            finally:
                await fleet.stop()
    finally:
        redis.stop()


async def loop(fleet: Fleet, root: Path, corpus: str) -> str:
    """Runs the loop with the SDK of a checkout. Returns "" or what went wrong."""
    given = {
        "targets": {service: fleet.targets(service) for service in SERVICES},
        "corpus": corpus,
        "facts": FACTS,
        "roots": QUERIES[:4],
        "validation": [(one.text, one.gold) for one in VALIDATION],
        "job": {**JOB, "epochs": 2, "seed": 3},
    }
    environment = {**os.environ, "PYTHONPATH": str(root / "clients" / "python")}
    command = [sys.executable, "-W", "ignore", str(CALLER)]
    told = await asyncio.to_thread(
        subprocess.run,
        command,
        cwd=root,
        env=environment,
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        timeout=LOOP_S,
    )
    if told.returncode:
        return told.stderr[-600:]
    steps = json.loads(told.stdout)
    return "; ".join(f"{step}: {problem}" for step, problem in steps.items() if problem)


async def one_pairing(rows: Rows, scratch: Path, roots: Roots, pairing: Pairing) -> None:
    """The loop in a fleet of its own."""
    home = scratch / pairing.name.replace(" ", "-")
    home.mkdir()
    write_tiny_base(home / "base")
    await told(rows, pairing.name, lambda: _loop_alone(home, roots, pairing))


async def _loop_alone(home: Path, roots: Roots, pairing: Pairing) -> str:
    async with running(home, roots, pairing) as fleet:
        return await loop(fleet, roots[pairing.release_of(SDK)], "science")


async def told(rows: Rows, name: str, measure: Callable[[], Awaitable[str]]) -> None:
    """Adds the row of a measurement that returns "" or what went wrong."""
    begun = time.monotonic()
    try:
        problem = await measure()
    except RuntimeError as error:  # a service does not start
        problem = str(error)[-600:]
    rows.add(
        name, "fail" if problem else "pass", "", "pass", not problem, problem or f"{time.monotonic() - begun:.0f} s"
    )


async def rolling(rows: Rows, scratch: Path, roots: Roots) -> None:
    """One fleet and one state: each part goes to today's release in turn; then all go back, and forward again."""
    home = scratch / "rolling"
    home.mkdir()
    write_tiny_base(home / "base")
    first = Pairing("", frozenset(PARTS))
    async with running(home, roots, first) as fleet:
        await told(rows, "upgrade: all earlier", lambda: loop(fleet, roots["earlier"], "c0"))
        for number, (part, pairing) in enumerate(upgrade(), 1):
            await _exchange(rows, fleet, roots, pairing, f"upgrade: {part} today's", f"c{number}")
        await _exchange(rows, fleet, roots, first, "all back", "c8")
        await _exchange(rows, fleet, roots, Pairing("", frozenset()), "forward again", "c9")


async def _exchange(rows: Rows, fleet: Fleet, roots: Roots, pairing: Pairing, name: str, corpus: str) -> None:
    for service in SERVICES:
        root = roots[pairing.release_of(service)]
        for process in fleet.processes[service]:
            if process.root != root:
                await process.stop()
                process.use(root)
                await process.restart()
    await told(rows, name, lambda: loop(fleet, roots[pairing.release_of(SDK)], corpus))


async def way_back(rows: Rows, scratch: Path, roots: Roots) -> None:
    """The earlier release over a state that today's has written and left half done, then today's again."""
    async with written(scratch, ROOT) as (home, state):
        name = f"today's state in {EARLIER}"
        async with running(home, roots, Pairing("", frozenset(SERVICES))) as fleet, fleet.client() as client:
            now = await take_snapshot(client)
            for topic, before in state.snapshot.items():
                refused = "format_version" in str(now[topic])
                same = now[topic] == before
                rows.add(
                    f"{name}: {topic} as they were, or refused by name",
                    "refused" if refused else same,
                    "",
                    "True",
                    same or refused,
                    None if same else f"{now[topic]}, not {before}"[:600],
                )
            for what, fault in (await go_on(client, state)).items():
                told_so, limit = LIMITS.get(what, ("", ""))
                is_limit = bool(limit) and fault.startswith(("it ended as", told_so)) and told_so in fault
                value = "limit" if is_limit else not fault
                rows.add(f"{name}: {what}", value, "", "True or limit", not fault or is_limit, limit or fault or None)
            left = await take_snapshot(client)
        async with running(home, roots, Pairing("", frozenset())) as fleet, fleet.client() as client:
            now = await take_snapshot(client)
            for topic, before in left.items():
                same = now[topic] == before
                fault = None if same else f"{now[topic]}, not {before}"[:600]
                rows.add(f"forward again: {topic} as the earlier release left them", same, "", "True", same, fault)
            job = await client.trainer.get_job(state.half_job)
            if job.state == JobState.FAILED:
                await client.trainer.resume(job.id)
            job = await client.trainer.wait(job.id)
            is_done = job.state == JobState.SUCCEEDED
            rows.add("forward again: the half-done job, resumed", is_done, "", "True", is_done, job.error or None)
            for what, fault in (await go_on(client, state)).items():
                if what not in DONE_THERE:
                    rows.add(f"forward again: {what}", not fault, "", "True", not fault, fault or None)
            await told(rows, "forward again: the loop", lambda: loop(fleet, roots["today"], "again"))


async def mixed_versions(rows: Rows, only: str, chosen: str) -> None:
    """All parts, or one; of the pairings those with `chosen` in their name."""
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as name:
        scratch = Path(name)
        roots = {"today": ROOT, "earlier": scratch / "code"}
        if not await asyncio.to_thread(check_out, roots["earlier"]):
            rows.add(f"the code of {EARLIER}", False, "", "True", False, "the history lacks it; git fetch --unshallow")
            return
        if only in {"", "pairings"}:
            for pairing in pairings():
                if chosen in pairing.name:
                    await one_pairing(rows, scratch, roots, pairing)
        if only in {"", "upgrade"}:
            await rolling(rows, scratch, roots)
        if only in {"", "way-back"}:
            await way_back(rows, scratch, roots)


def main() -> None:
    """Runs the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("pairings", "upgrade", "way-back"), default="")
    parser.add_argument("--pairing", default="", help="the pairings with this in their name")
    options = parser.parse_args()
    rows = Rows(f"mixed-versions-{options.only}" if options.only else "mixed-versions")
    run(mixed_versions(rows, options.only, options.pairing))
    rows.finish()


if __name__ == "__main__":
    main()

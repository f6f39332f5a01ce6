"""Odd values everywhere: in every RPC, every method of the SDK, every command. `make bench NAME=scan`, four minutes.

    rpcs       every field of every request of a running fleet: no INTERNAL or UNKNOWN, no dead service, no traceback
    sdk        every parameter of every method of the clients: nothing leaves them but `aeenc.errors`
    commands   every argument and option of `aeenc`: no traceback, and one of the documented exit codes

What there is to scan comes from descriptors, signatures and the tree of commands: what is new is scanned by itself.
`--only PART` runs one part (ARGS='--only sdk' of make).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aeenc.oracle import Oracle, Task
from benchmarks.harness.fleet import CORPUS, Fleet, running_fleet
from benchmarks.harness.rows import Rows, run
from benchmarks.house.scan_rpcs import scan_rpcs
from benchmarks.house.scan_sdk import scan_sdk
from benchmarks.house.scan_values import Scanned

LOGGED = ("call failed", "Traceback", "never retrieved", "Fatal")  # what no service may log for a caller's mistake


class Everything(Oracle):
    """An oracle for which each candidate explains."""

    name = "everything"

    def judge(self, task: Task) -> list[str]:
        return [candidate.id for candidate in task.candidates]


@asynccontextmanager
async def judging() -> AsyncIterator[str]:
    """The address of a running oracle, of the class that users write theirs with."""
    server = await Everything().start()
    yield f"127.0.0.1:{server.port}"
    await server.stop()


async def rpcs(fleet: Fleet, oracle: str) -> Scanned:
    """Scans the RPCs, then the logs."""
    async with fleet.client() as client:
        run_id = await fleet.import_pairs()
        queued = await client.sampler.start_run([("h1", "iron conducts heat")], corpus=CORPUS, oracle="team")
        leases = []
        for _ in range(50):
            if leases := await client.people.lease("ann", run_id=queued.id):
                break
            await asyncio.sleep(0.1)
        info = await client.encoder.info()
        generation = (await anext(client.index.list_corpora())).active.id
    known = {
        "corpus": CORPUS,
        "run_id": queued.id,
        "ListPairsRequest.run_id": run_id,
        "ExportTreesRequest.run_id": run_id,
        "annotator": "ann",
        "adjudicator": "ann",
        "lease_id": leases[0].lease_id,
        "task_id": leases[0].task.task_id,
        "hypothesis_id": "h1",
        "texts": ["iron"],
        "query": "iron",
        "text": "iron",
        "premise": "iron",
        "premises": ["iron"],
        "ids": ["f0"],
        "premise_id": "f0",
        "premise_ids": ["f0"],
        "id": "f0",
        "k": 3,
        "role": 1,
        "sign": 1,
        "judgement": 1,
        "oracle": "gold",
        "label": "stable",
        "space_id": info.default_space_id,
        "SearchRequest.generation": generation,
        "ActivateGenerationRequest.generation": generation,
        "VerifyGenerationRequest.generation": generation,
        "data": b"\0\0\x80\x3f" + b"\0" * 4 * (info.dim - 1),
        "dtype": 1,
        "rows": 1,
        "dim": info.dim,
        "version": fleet.space.version,
    }
    addresses = {name: fleet.processes[name][0].target for name in fleet.processes}
    found = await scan_rpcs({**addresses, "registry": addresses["trainer"], "oracle": oracle}, known)
    for process in fleet.all():
        lines = process.log.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines):
            if mark := next((mark for mark in LOGGED if mark in line), ""):
                found.failures.append(f"{process.name} logs {mark!r} | {' / '.join(lines[number : number + 4])}")
        if not process.alive:
            found.failures.append(f"{process.name} has ended | {lines[-3:]}")
    return found


async def sdk(fleet: Fleet, oracle: str) -> Scanned:
    """Scans the methods of the clients."""
    async with fleet.client(timeout_s=5.0, retry=False) as client:
        return await scan_sdk(client, oracle)


async def commands(fleet: Fleet, _: str) -> Scanned:
    """Scans the commands, in a process whose main thread can be interrupted."""
    targets = {f"AEENC_{name.upper()}": processes[0].target for name, processes in fleet.processes.items()}
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "benchmarks.house.scan_commands"],
        env={**os.environ, **targets, "AEENC_TIMEOUT_S": "3"},
        stdout=subprocess.PIPE,
        check=True,
    )
    found = json.loads(ended.stdout.splitlines()[-1])
    return Scanned(found["calls"], Counter(found["endings"]), found["failures"])


PARTS: dict[str, Callable[[Fleet, str], Awaitable[Scanned]]] = {"rpcs": rpcs, "sdk": sdk, "commands": commands}


async def scan(rows: Rows, chosen: list[str]) -> None:
    """Runs the parts on one fleet."""
    async with running_fleet() as fleet, judging() as oracle:
        await fleet.build()
        for name in chosen:
            begun = time.monotonic()
            found = await PARTS[name](fleet, oracle)
            print(found)
            rows.note(f"{name}: calls", found.calls, "calls", f"{time.monotonic() - begun:.0f} s")
            rows.at_most(f"{name}: calls that ended as none may", len(found.failures), "calls", 0)


def main() -> None:
    """Runs all parts, or the one that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="one part; its results get a name of their own")
    options = parser.parse_args()
    chosen = [options.only] if options.only else list(PARTS)
    rows = Rows.of("scan", chosen, PARTS)
    run(scan(rows, chosen))
    rows.finish()


if __name__ == "__main__":
    main()

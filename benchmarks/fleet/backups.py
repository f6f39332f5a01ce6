"""Backups of a fleet under load: killed in the middle, then whole; restored into another Redis, store and ports.

All that was acknowledged before a backup began is asked for again there, and what was running goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aeenc import errors
from aeenc.values import WorkState
from benchmarks.fleet.writers import Look, Writers
from benchmarks.harness.fleet import NAMESPACE, Fleet, describe_fleet, running_fleet
from benchmarks.harness.rows import ROOT, Rows
from services.store.artifacts import ArtifactStore
from services.store.redis import connect
from services.store.registry import Registry
from support.service_process import RedisProcess
from support.waiting import eventually

SETTINGS = {"index": {"build_batch": 8}, "trainer": {"grace_s": 0.0}}
BALLAST_BYTES, BALLASTS = 32 * 1024 * 1024, 4  # so that a backup lasts long enough to be killed
KILLS, BETWEEN_S, GO_ON_S = 10, 6.0, 60.0
PACE = {
    "import_pairs": 0.2,
    "sample": 0.0,
    "ask_people": 0.0,
    "train": 0.0,
    "build": 0.0,
    "explain": 0.1,
    "forget": 0.0,
}


@dataclass
class BackupRound:
    """How many acknowledgements there were, and all faults by topic."""

    acknowledged: int = 0
    missing: list[str] = field(default_factory=list)
    dangling: list[str] = field(default_factory=list)
    visible: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    kills: int = 0
    took_s: float = 0.0
    size_mb: float = 0.0


async def measured(rounds: int) -> list[BackupRound]:
    """Runs the writers, and so many backups beside them."""
    found = []
    async with running_fleet(settings=SETTINGS) as fleet, fleet.client() as client:
        fleet.oracle.delay_s = 0.05
        for number in range(BALLASTS):
            with fleet.space.store.writer("checkpoint", "checkpoints") as writer:
                (writer.path / "ballast").write_bytes(bytes([number]) * BALLAST_BYTES)
                writer.commit({"number": number})
        await fleet.build()
        writers = Writers(fleet, client, await fleet.import_pairs())
        tasks = [asyncio.create_task(writers.repeat(getattr(writers, name), lambda: True, pause_s))
                 for name, pause_s in PACE.items()]  # fmt: skip
        try:
            for _ in range(rounds):
                await asyncio.sleep(BETWEEN_S)
                with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
                    found.append(await _round(writers, Path(scratch)))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return found


async def _round(writers: Writers, scratch: Path) -> BackupRound:
    """A killed backup, a whole one, its restore, and a look at what came back."""
    told, fleet = BackupRound(), writers.fleet
    where = ["--redis", fleet.redis.url, "--artifacts", fleet.space.store.root]
    target = scratch / "whole"
    for number in range(KILLS):
        killed = scratch / f"killed-{number}"
        if await asyncio.to_thread(_killed_in_the_middle, killed, where):
            told.kills, target = 1, killed
            told.visible += [str(killed)] if killed.exists() else []
            break
    begun = time.monotonic()
    made = await _aeenc("backup", target, *where)
    ended = time.monotonic()
    told.took_s, told.size_mb, told.dangling = ended - begun, made["size_bytes"] / 1e6, list(made["damaged"])
    told.failed = [what for at, what in writers.failed if begun <= at <= ended]
    home = scratch / "restored"
    home.mkdir()
    redis = RedisProcess(home / "redis")
    try:
        await _aeenc("restore", made["backup"], "--redis", redis.url, "--artifacts", home / "artifacts")
        await _look(writers, fleet, home, redis, begun, ended, told)
    finally:
        redis.stop()
    return told


async def _look(
    writers: Writers, fleet: Fleet, home: Path, redis: RedisProcess, begun: float, ended: float, told: BackupRound
) -> None:
    store = ArtifactStore(home / "artifacts")
    before = [one for one in writers.answers if one.at < begun]
    told.acknowledged = len(before)
    connection = connect(redis.url)
    try:
        for row in await Registry(connection, NAMESPACE).checkpoints.all():
            try:
                store.open("checkpoints", row.version, expected_manifest_sha256=row.manifest_sha256)
            except errors.AeencError as error:
                told.dangling.append(str(error))
    finally:
        await connection.aclose()
    space = replace(fleet.space, store=store)
    restored = describe_fleet(home, redis, space, fleet.oracle, fleet.oracle_target, settings=SETTINGS)
    try:
        await restored.start()
        async with restored.client() as client:
            removed = {about for about, at in writers.removing.items() if at <= ended}
            told.missing = await Look(client, store, writers, removed).lost(before)
            over = {one.about for one in before if one.kind == "ended run"}
            people = {one.about for one in before if one.kind == "answer"}
            for one in before:
                if one.kind == "run" and one.about not in over | people:

                    async def is_done(run_id: str = one.about) -> bool:
                        run = await client.sampler.get_run(run_id)
                        return run.state is WorkState.SUCCEEDED or run.config.oracle == "team"

                    try:
                        await eventually(is_done, GO_ON_S)
                    except AssertionError:
                        told.stopped.append(f"run {one.about}")
    finally:
        await restored.stop()


def _command(*words: Any) -> list[str]:
    return [sys.executable, "-m", "aeenc.cli.main", "--json", *map(str, words)]


async def _aeenc(*words: Any) -> dict[str, Any]:
    """Runs a command to its end and returns what it says."""
    command = _command(*words)
    done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"aeenc {words[0]} ended with {done.returncode}: {done.stderr[-600:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _killed_in_the_middle(target: Path, where: list[Any]) -> bool:
    """Starts a backup and kills it while it copies artifacts. False: it was faster."""
    left = target.with_name(f".{target.name}.unfinished")
    process = subprocess.Popen(
        _command("backup", target, *where), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and not (left / "artifacts" / "checkpoints").is_dir():
        time.sleep(0.001)
    process.kill()
    return process.wait() != 0


async def backups(rows: Rows, given: argparse.Namespace) -> None:
    """Adds the rows."""
    found = await measured(given.rounds)
    acknowledged = sum(told.acknowledged for told in found)
    for row, name in (
        ("acknowledged before it began and missing", "missing"),
        ("named by the registry, and not there or of another hash", "dangling"),
        ("killed backups that left something under their name", "visible"),
        ("calls that failed during a backup", "failed"),
        ("runs on their way before, and not done after the restore", "stopped"),
    ):
        faults = [fault for told in found for fault in getattr(told, name)]
        rows.at_most(f"backups: {row}", len(faults), "", 0, faults[:5] or f"{acknowledged:,}, {given.rounds} backups")
    rows.at_least("backups killed in the middle", sum(told.kills for told in found), "", 1)
    rows.note("a backup takes", max(told.took_s for told in found), "s", [told.size_mb for told in found])

"""Builds on Ray as an operator runs them: the command line, an index beside it, and workers that are killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aeenc.adapters.facts import read_facts
from benchmarks.harness.rows import Rows
from benchmarks.harness.services import IndexFleet, running_index
from benchmarks.index.stand_in_encoder import StandInEncoder
from services.corpus.generation import Generation, open_generation
from services.index.distributed.stages import SHARD_FACTS
from services.store.artifacts import ArtifactStore

WORKERS = 2
KILLED_AT = (0.3, 0.6)  # of the premises
REPEATED, SAME_TEXT = 0.01, 0.04  # shares of facts that stand twice, and of those whose text does, under another id
GIB = 1024**3
BUILD_S = 3600.0


def write_facts(path: Path, sources: list[str], count: int) -> tuple[int, int]:
    """Writes `count` lines made of real facts by a seed; returns how many ids and how many texts are distinct."""
    rng = random.Random(7)
    ids = texts = 0
    before = ("", "")
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            chance = rng.random()
            if number and chance < REPEATED:
                fact = before
            elif number and chance < REPEATED + SAME_TEXT:
                fact, ids = (f"f{number}", before[1]), ids + 1
            else:
                fact = (f"f{number}", f"{rng.choice(sources)}; and case {number}: {rng.choice(sources)}")
                ids, texts = ids + 1, texts + 1
            before = fact
            file.write(json.dumps({"id": fact[0], "text": fact[1]}, ensure_ascii=False) + "\n")
    return ids, texts


@dataclass
class Watch:
    """The largest anonymous memory of each of Ray's processes and of the command, in bytes, and kills."""

    command: int
    largest: dict[str, int] = field(default_factory=dict)
    killed: list[float] = field(default_factory=list)

    @property
    def gib(self) -> dict[str, float]:
        """The largest of each kind, in GiB."""
        return {kind: round(size / GIB, 2) for kind, size in self.largest.items()}

    def look(self) -> None:
        """Measures all processes once."""
        for pid, line in _processes():
            kind = _kind(pid, line, self.command)
            if kind:
                with suppress(OSError, IndexError):
                    self.largest[kind] = max(self.largest.get(kind, 0), anonymous_bytes(pid))

    def kill_one(self) -> bool:
        """Kills a worker that is at a task; returns whether there was one."""
        busy = [pid for pid, line in _processes() if line.startswith(b"ray::_attempt")]
        for pid in busy[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.killed.append(time.monotonic())
                return True
        return False


def anonymous_bytes(pid: int) -> int:
    """A process's memory, but for what is mapped from files."""
    return int(Path(f"/proc/{pid}/status").read_text().split("RssAnon:")[1].split()[0]) * 1024


def _processes() -> Iterator[tuple[int, bytes]]:
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield int(directory.name), (directory / "cmdline").read_bytes()


def _kind(pid: int, line: bytes, command: int) -> str:
    if pid == command:
        return "command"
    if line.startswith(b"ray::"):
        return "worker"
    if b"services.index.building.index_process" in line:
        return "indexing"
    return "ray" if b"/ray/" in line and b"aeenc-ray-" in line else ""


def run_build(
    fleet: dict[str, str], environment: dict[str, str], facts: Path, corpus: str, kill_when: Callable[[int], bool]
) -> tuple[dict[str, Any], Watch]:
    """Runs `aeenc corpus build --engine ray`, killing a worker whenever `kill_when(kills so far)` says so."""
    command = _build_command(fleet, corpus, facts, "--engine", "ray", "--workers", str(WORKERS))
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    watch = Watch(process.pid)
    said: list[tuple[str, str]] = []
    reading = threading.Thread(target=lambda: said.append(process.communicate()))
    reading.start()
    deadline = time.monotonic() + BUILD_S
    while reading.is_alive() and time.monotonic() < deadline:
        watch.look()
        if kill_when(len(watch.killed)):
            watch.kill_one()
        time.sleep(0.1)
    process.kill()
    reading.join()
    if process.returncode:
        raise SystemExit(f"the build ended with {process.returncode}: {said[0][1]}")
    found: dict[str, Any] = json.loads(said[0][0].splitlines()[-1])
    return found, watch


def opened(root: Path, corpus: str, generation: str) -> Generation:
    """Opens a generation, checked by hash."""
    return open_generation(ArtifactStore(root), corpus, generation, verify="full")


def lost_or_double(generation: Generation, ids: int, texts: int) -> int:
    """Counts ids and texts that a generation lacks or has twice."""
    held, distinct = Counter[str](), set()
    for premise in generation.premises:
        held.update((premise.id, *premise.aliases))
        distinct.add(hash(premise.text))
    twice = sum(count - 1 for count in held.values())
    return abs(ids - len(held)) + abs(texts - len(distinct)) + twice + abs(texts - len(generation.premises))


async def quick(rows: Rows, home: Path, sources: list[str], count: int, compared: int) -> None:
    """A large build with the stand-in encoder, workers killed; and a smaller one beside BuildGeneration."""
    facts, few = home / "facts.jsonl", home / "few.jsonl"
    ids, texts = write_facts(facts, sources, count)
    write_facts(few, sources, compared)
    async with StandInEncoder() as encoder, running_index(encoder_target=encoder.target, engine="flat") as index:
        environment = {"AEENC_INDEX_ARTIFACTS_DIR": str(index.artifacts_dir), "AEENC_INDEX_ENGINE": "flat"}
        targets = {"encoder": encoder.target, "index": index.process.target}

        def due(kills: int) -> bool:
            return kills < len(KILLED_AT) and sum(encoder.encoded.values()) > KILLED_AT[kills] * texts

        found, watch = await asyncio.to_thread(run_build, targets, environment, facts, "large", due)
        generation = opened(index.artifacts_dir, "large", found["generation"])
        again = sum(encoder.encoded.values()) - len(encoder.encoded)
        name = f"{count:,} facts on Ray, {WORKERS} workers, {len(watch.killed)} killed"
        rows.at_most(f"{name}: premises lost or double", lost_or_double(generation, ids, texts), "", 0, texts)
        rows.at_most(f"{name}: encoded again, in shards a kill", _share(again, watch), "", 1.0, SHARD_FACTS)
        rows.at_most(f"{name}: memory of any process", max(watch.gib.values()), "GiB", 2.0, watch.gib)
        rows.note(f"{name}: facts a second, start and checks included", round(found["facts_per_s"]), "/s")
        await _same(rows, index, targets, environment, few, compared)


async def _same(
    rows: Rows, index: IndexFleet, targets: dict[str, str], environment: dict[str, str], facts: Path, count: int
) -> None:
    found, _ = await asyncio.to_thread(run_build, targets, environment, facts, "few", lambda _: False)
    started = time.monotonic()
    streamed = await index.client(timeout_s=BUILD_S).build("few", read_facts(facts))
    rows.add(
        f"{count:,} facts by Ray and by BuildGeneration: one generation, by the hash of all files",
        found["generation"] == streamed.id,
        "",
        "equal",
        found["generation"] == streamed.id,
        round(count / (time.monotonic() - started)),
    )


def _build_command(targets: dict[str, str], corpus: str, facts: Path, *options: str) -> list[str]:
    words = [word for name, target in targets.items() for word in (f"--{name}", target)]
    program = str(Path(sys.executable).with_name("aeenc"))
    return [program, "--json", *words, "corpus", "build", corpus, "--facts", str(facts), *options]


def _share(again: int, watch: Watch) -> float:
    return round(again / SHARD_FACTS / max(len(watch.killed), 1), 3)

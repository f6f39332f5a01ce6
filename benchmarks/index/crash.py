"""Kills the index in the middle of builds, activations, deletions and starts, and checks what is left.

    start ──▶ check every corpus against its model ──▶ callers work ──▶ SIGKILL at an aimed moment ──▶ start …

Callers of several corpora work at once and note what is acknowledged to them. A kill comes at a seeded moment within
the usual duration of an operation that has just begun. After it the index must have everything that was acknowledged,
may have what was under way, and must show nothing else. The callers continue unfinished builds behind their durable
premises.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from aeenc import IndexClient, errors
from benchmarks.harness.services import IndexFleet, index_fleet
from benchmarks.index.crash_caller import CorpusCaller, CorpusModel, Premise
from benchmarks.index.stand_in_encoder import StandInEncoder
from services.corpus.generation import PREMISES, folder_of
from services.index.building.journal import BUILDS
from services.store.artifacts import ArtifactStore
from support.waiting import reached

SETTINGS = {"build_sync_s": 0.02, "build_batch": 8}
ENCODER_PAUSE_S = 0.003
FIRST_GUESS_S = 0.05  # of an operation's duration
# What is aimed at: the operation, and the part of its usual duration in which the kill comes.
AIMS = {
    "build": ("build", 0.0, 1.0),
    "activate": ("activate", 0.0, 1.0),
    "delete": ("delete", 0.0, 1.0),
    "commit": ("build", 0.85, 1.05),
}
START_SHARE = 0.1  # of the kills come while the index starts


@dataclass
class CrashReport:
    """Counts of what the run did, and the faults that it found."""

    kills: Counter[str] = field(default_factory=Counter)  # by what was aimed at
    broken: Counter[str] = field(default_factory=Counter)  # operations that a kill broke into; commits are builds, too
    unacknowledged: int = 0  # generations that were finished, but their callers never knew
    starts_s: list[float] = field(default_factory=list)
    acknowledged_premises: int = 0  # as durable, in builds that a kill broke into
    lost_premises: int = 0
    acknowledged_rows: int = 0  # distinct texts whose vectors were acknowledged as durable before a kill
    encoded_again: int = 0
    lost_generations: int = 0
    lost_activations: int = 0
    undone_deletions: int = 0
    corrupt: int = 0
    checked: int = 0  # generations compared with what they must hold
    searches: int = 0
    resumed: int = 0  # premises that were taken over and not streamed again
    wrong: list[str] = field(default_factory=list)


class Crashes:
    """The kills of one run over one store."""

    _client: IndexClient  # of the last start

    def __init__(self, index: IndexFleet, encoder: StandInEncoder, seed: int, corpora: int) -> None:
        self.report = CrashReport()
        self._index, self._encoder = index, encoder
        self._rng = random.Random(seed)
        self._begun: asyncio.Queue[str] = asyncio.Queue()
        self._callers = [
            CorpusCaller(CorpusModel(f"corpus{n}"), random.Random(self._rng.random()), self._begun.put_nowait)
            for n in range(corpora)
        ]
        self._store = ArtifactStore(index.artifacts_dir)
        self._settled: dict[str, int] = {}  # how often a text had been encoded when its vector was acknowledged

    async def run(self, kills: int) -> CrashReport:
        """Kills so often, ends all builds, and checks everything a last time."""
        for number in range(kills):
            if self._rng.random() < START_SHARE and number:
                await self._kill_start()
            else:
                await self._kill_work(list(AIMS)[number % len(AIMS)])
        await self._start()
        await asyncio.gather(*(caller.build(self._client) for caller in self._callers if caller.model.build))
        await asyncio.gather(*(self._check(caller) for caller in self._callers))
        await self._client.channel.close()
        report = self.report
        report.encoded_again = sum(self._encoder.encoded[text] != count for text, count in self._settled.items())
        report.acknowledged_rows = len(self._settled)
        report.lost_premises += sum(caller.lost_premises for caller in self._callers)
        report.resumed = sum(caller.resumed_premises for caller in self._callers)
        report.searches = sum(caller.searches for caller in self._callers)
        report.wrong += [one for caller in self._callers for one in caller.wrong]
        return report

    async def _start(self) -> None:
        await self._index.process.restart()
        self.report.starts_s.append(self._index.process.starting_s)
        self._client = self._index.client(retry=False, timeout_s=10)
        await reached(self._client.info, times=100)  # gRPC may remember for two seconds that nobody listened
        await asyncio.gather(*(self._check(caller) for caller in self._callers))

    async def _kill_start(self) -> None:
        usual_s = statistics.median(self.report.starts_s)
        self._index.process.start()
        await asyncio.sleep(self._rng.uniform(0.5, 1.1) * usual_s)  # imports come first and touch nothing
        await asyncio.to_thread(self._index.process.kill)
        self.report.kills["start"] += 1

    async def _kill_work(self, aim: str) -> None:
        phase, earliest, latest = AIMS[aim]
        await self._start()
        running = [asyncio.ensure_future(caller.run(self._client)) for caller in self._callers]
        while not self._begun.empty():
            self._begun.get_nowait()
        try:
            async with asyncio.timeout(10):
                while await self._begun.get() != phase:
                    pass
        except TimeoutError:
            self.report.wrong.append(f"nobody came to {phase} within 10 s")
        seconds = [one for caller in self._callers for one in caller.seconds[phase][-20:]]
        usual_s = statistics.median(seconds) if seconds else FIRST_GUESS_S
        await asyncio.sleep(self._rng.uniform(earliest, latest) * usual_s)
        await asyncio.to_thread(self._index.process.kill)
        self.report.kills[aim] += 1
        for outcome in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(outcome, str):
                self.report.broken[outcome] += 1
            else:
                self.report.wrong.append(f"a caller was told {type(outcome).__name__}: {outcome}")
        await self._client.channel.close()
        committing = self._store.root.glob(f"*/*/{BUILDS}/*/*/{PREMISES}")  # written when all else is
        self.report.broken["commit"] += len(list(committing))
        self._look_at_builds()

    def _look_at_builds(self) -> None:
        """Notes what has been acknowledged of the builds under way: those texts must never be encoded again."""
        for caller in self._callers:
            if caller.model.build is not None:
                self.report.acknowledged_premises += caller.model.build.durable
                for text in caller.model.build.acknowledged_texts():
                    self._settled.setdefault(text, self._encoder.encoded[text])

    async def _check(self, caller: CorpusCaller) -> None:
        """Compares a corpus with its model and takes over what has come of the operation under way."""
        client, model, report = self._client, caller.model, self.report
        shown = {info.corpus: info.active.id async for info in client.list_corpora()}
        try:
            listed = {one.id async for one in client.list_generations(model.name)}
        except errors.NotFound:
            listed = set()
        if model.deleting is not None:
            if model.deleting not in listed:
                model.generations.pop(model.deleting)
                model.deleted.add(model.deleting)
            model.deleting = None
        for unknown in listed - set(model.generations):
            if unknown in model.deleted:
                report.undone_deletions += 1
            elif model.build is None or not await self._holds(model, unknown, model.build.content):
                report.corrupt += 1
                report.wrong.append(f"{model.name} shows generation {unknown}, which nobody has built")
            else:
                report.unacknowledged += 1
        lost = set(model.generations) - listed
        report.lost_generations += len(lost)
        self._check_active(model, shown.get(model.name) or None, listed)
        for generation, content in model.generations.items():
            if generation in listed:
                report.checked += 1
                report.corrupt += not await self._holds(model, generation, content)
                await caller.check_search(client, generation, content)

    def _check_active(self, model: CorpusModel, active: str | None, listed: set[str]) -> None:
        under_way = {model.activating} if model.activating else set()
        if model.build is not None and model.build.activate:
            under_way |= listed - set(model.generations)
        if active != model.active and active not in under_way:
            self.report.lost_activations += 1
            self.report.wrong.append(f"{model.name} serves {active}, not {model.active}")
        model.active, model.activating = active, None

    async def _holds(self, model: CorpusModel, generation: str, content: list[Premise]) -> bool:
        """Whether a generation is sound on disk, by hash, and lists just these premises in order."""
        try:
            await asyncio.to_thread(self._store.open, folder_of(model.name), generation, verify="full")
        except errors.AeencError as error:
            self.report.wrong.append(error.message)
            return False
        listed = [one async for one in self._client.list_premises(model.name, generation=generation)]
        holds = [((one.id, *one.aliases), one.text) for one in listed] == content
        if not holds:
            self.report.wrong.append(f"{model.name}: generation {generation} has other premises than were built")
        return holds


async def crash(kills: int, seed: int, *, corpora: int = 3) -> CrashReport:
    """One run in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="aeenc-crash-") as home:
        async with StandInEncoder(pause_s=ENCODER_PAUSE_S) as encoder:
            index = index_fleet(Path(home), encoder_target=encoder.target, **SETTINGS)
            try:
                return await Crashes(index, encoder, seed, corpora).run(kills)
            finally:
                index.process.kill()

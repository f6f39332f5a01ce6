"""A distributed build from its plan to a generation: stage after stage, each by as many processes as there are.

    read parts ──► fold partitions ──► encode shards ──► publish (this process)

What is finished is found again by a build of the same plan, so that a killed process costs the tasks that it was at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from aeenc.errors import FailedPrecondition, InvalidArgument
from services.corpus.generation import DTYPES, KIND, VECTORS, PremiseRecord, folder_of, write_premises
from services.index.building.index_process import index_generation
from services.index.building.vectors import VectorFile, WrittenVectors
from services.index.distributed import stages
from services.index.distributed.stages import Encoders, Plan
from services.index.distributed.work import FULL_DISK_REMEDY, Range, Work
from services.index.values import EngineOptions
from services.store.artifacts import Artifact, ArtifactStore
from services.store.files import full_disk_is_unavailable

Record = Mapping[str, Any]
Task = Callable[..., dict[str, Any]]
OnProgress = Callable[[str, int, int], None]  # what is done, premises or tasks so far, all


class Processes(Protocol):
    """What runs tasks, somewhere."""

    def run(
        self, task: Task, plan: Plan, url: str, arguments: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Runs `task(plan, work, number, *arguments)` for each number; yields results as they come.

        Raises the errors of tasks.
        """


@dataclass(frozen=True)
class Built:
    """A finished generation: of so many facts."""

    artifact: Artifact
    facts: int
    premises: int


def build(
    plan: Plan,
    url: str,
    processes: Processes,
    encoders: Encoders,
    store: ArtifactStore,
    on_progress: OnProgress = lambda *_: None,
    accept: Callable[[Artifact], None] = lambda _: None,
) -> Built:
    """Builds a generation, which is not active, and removes the work below `url` when `accept` has returned.

    Raises InvalidArgument for bad facts, what the encoder and `accept` raise, Unavailable when processes keep dying,
    a disk is full or another command is at the same work, DataLoss for damaged work, which the next build makes again.
    """
    work = Work(url)
    run = _Stages(plan, work, processes, on_progress)

    with full_disk_is_unavailable(f"the disk of {url} or of {store.root}", FULL_DISK_REMEDY), work.alone():
        facts, premises, shards = _shards(plan, run, encoders)
        check_versions(work, shards, run.newest)
        on_progress("indexing", premises, premises)
        artifact = asyncio.run(publish(plan, work, shards, store, encoders.options.engines))
        accept(artifact)
        work.remove()
    return Built(artifact, facts, premises)


def _shards(plan: Plan, run: _Stages, encoders: Encoders) -> tuple[int, int, list[dict[str, Any]]]:
    """Reads, folds and encodes. Returns the numbers of facts and of premises, and the records of the shards."""
    parts = run.all(stages.READ, stages.read, [()] * len(plan.parts))
    first_shards = plan.first_shards([part["count"] for part in parts])
    by_partition = [_by_consumer(parts, name, plan.partitions) for name in (stages.FACTS, stages.IDS)]
    folds = [(*(columns[number] for columns in by_partition), first_shards) for number in range(plan.partitions)]
    partitions = run.all(stages.FOLD, stages.fold, folds)
    premises = sum(partition["count"] for partition in partitions)
    if not premises:
        raise InvalidArgument(f"{plan.parts[0].path}: holds no facts; write one a line")
    ranges = _by_consumer(partitions, stages.PREMISES, first_shards[-1])
    shards = run.all(stages.ENCODE, stages.encode, [(one, encoders) for one in ranges], premises)
    return sum(part["count"] for part in parts), premises, shards


class _Stages:
    """Runs stages. `newest` is the version that the newest shard was encoded by."""

    def __init__(self, plan: Plan, work: Work, processes: Processes, on_progress: OnProgress) -> None:
        self.newest = ""
        self._plan, self._work, self._processes, self._on_progress = plan, work, processes, on_progress

    def all(self, stage: str, task: Task, arguments: Sequence[tuple[Any, ...]], total: int = 0) -> list[dict[str, Any]]:
        """Returns the records of all tasks of a stage, and runs those that have none. `total` counts premises."""
        found = {n: record for n in range(len(arguments)) if (record := self._work.record(stage, n)) is not None}
        missing = {number: arguments[number] for number in range(len(arguments)) if number not in found}

        def report() -> None:
            done = sum(record["count"] for record in found.values()) if total else len(found)
            self._on_progress(stage, done, total or len(arguments))

        report()
        for number, record in self._processes.run(task, self._plan, self._work.url, missing):
            found[number] = record
            self.newest = record.get("version", self.newest)
            report()
        return [found[number] for number in range(len(arguments))]


def _by_consumer(records: Sequence[Mapping[str, Any]], name: str, count: int) -> list[list[Range]]:
    """Turns the ranges that each record has under a name into those of each of `count` consumers."""
    return [[record[name][number] for record in records] for number in range(count)]


def check_versions(work: Work, shards: Sequence[Record], newest: str) -> None:
    """Raises FailedPrecondition if several versions have encoded the shards, and forgets those not of the newest."""
    versions = {str(shard["version"]) for shard in shards if shard["count"]}
    if len(versions) <= 1:
        return
    others = [number for number, shard in enumerate(shards) if shard["count"] and shard["version"] != newest]
    for number in others:
        work.forget(stages.ENCODE, number)
    raise FailedPrecondition(
        f"the premise encoder changed to {newest} meanwhile; build again: {len(others):,} of {len(shards):,} shards "
        "are of another version and will be encoded anew"
    )


async def publish(
    plan: Plan,
    work: Work,
    shards: Sequence[Record],
    store: ArtifactStore,
    engines: EngineOptions,
) -> Artifact:
    """Writes the generation, a shard at a time, indexes it, and makes it visible, not active.

    Raises DataLoss for a shard that differs from its record; the next build makes that one again.
    """
    full = [(number, shard) for number, shard in enumerate(shards) if shard["count"]]
    first = full[0][1]

    def premises() -> Iterator[PremiseRecord]:
        for number, shard in full:
            for line in work.whole(stages.ENCODE, number, stages.PREMISES, shard).splitlines():
                yield PremiseRecord.of_line(line)

    folder = folder_of(plan.corpus)
    with store.writer(KIND, folder) as writer:
        vectors = VectorFile(writer.path / VECTORS, WrittenVectors(first["dim"], plan.storage))
        for number, shard in full:
            content = work.whole(stages.ENCODE, number, stages.VECTORS, shard)
            rows = np.frombuffer(content, DTYPES[plan.storage]).reshape(shard["count"], -1)
            vectors.append(rows, shard["truncated"])
        vectors.finish()
        write_premises(writer.path, premises())
        engine = await index_generation(writer.path, engines, vectors.written.rows, vectors.written.largest_norm)
        meta = vectors.meta(plan.corpus, first["space_id"], first["version"], **engine)
        return store.push(folder, writer.commit(meta, id_prefix="g").id)

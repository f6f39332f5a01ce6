"""A distributed build: its plan, the same whenever it is planned again, and its tasks.

    part        of the input, read by one task: a range of lines, row groups of Parquet, else a file
    partition   premises whose texts share a hash, folded by one task; duplicates are in one partition
    shard       so many facts of the input in a row: their premises, encoded by one task

A fact's position is its part's number and its number in the part. It decides the order of insertion, as in a build
from one stream. Plans with one digest share the files of their work.

Each task reads what others have finished, and may run anywhere, again and again:

    read   part of the input ──► its facts by partition, digests of their ids by partition
    fold   partition of all parts ──► its premises by shard; duplicates are folded, ids used twice are refused
    encode shard of all partitions ──► its premises in order of insertion, and their vectors

No task holds more than one part, partition or shard.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc.adapters.facts import ID_REUSED, Facts, content_digest, id_digest
from aeenc.errors import InvalidArgument
from aeenc.transport.targets import Targets
from services.corpus.arrays import norms_of
from services.corpus.generation import DTYPES, PremiseRecord, Storage, check_corpus_name, hash64
from services.index.building.folding import Draft, Folding, check_premise
from services.index.building.vectors import BatchEncoder
from services.index.distributed.work import Range, Work, ranges_of
from services.index.values import BuildOptions
from services.kit.limits import Limits

FORMAT_VERSION = 1
PART_BYTES = 32 * 1024 * 1024
PARTITION_BYTES = 32 * 1024 * 1024  # of the input's files; a partition in memory takes some ten times as much
SHARD_FACTS = 20_000  # 31 MB of 384 numbers each
POSITION_BITS = 32  # of a fact's number in its part
READ, FOLD, ENCODE = "read", "fold", "encode"
FACTS, IDS, PREMISES, VECTORS = "facts", "ids", "premises", "vectors"
_ID_WORDS = 5  # of a fact's row of numbers: 2 of its id's digest, 2 of its content's, its position


@dataclass(frozen=True)
class Plan:
    """A distributed build. `sources` names each file with its size and time, so that a changed one is another plan."""

    corpus: str
    parts: tuple[Facts, ...]
    sources: tuple[str, ...]
    partitions: int
    shard_facts: int
    text_bytes: int
    storage: Storage
    space_id: str
    truncate: bool

    @classmethod
    def of(
        cls,
        corpus: str,
        facts: Facts,
        *,
        text_bytes: int,
        storage: Storage = "float32",
        space_id: str = "",
        truncate: bool = False,
        part_bytes: int = PART_BYTES,
        shard_facts: int = SHARD_FACTS,
    ) -> Plan:
        """Plans the build of a corpus. Raises InvalidArgument for a wrong name or input."""
        check_corpus_name(corpus)
        parts = tuple(facts.parts(part_bytes))
        sizes = {str(part.path): part.path.stat() for part in parts}
        total = sum(info.st_size for info in sizes.values())
        return cls(
            corpus,
            parts,
            tuple(f"{name} {info.st_size} {info.st_mtime}" for name, info in sizes.items()),
            max(1, -(-total // PARTITION_BYTES)),
            shard_facts,
            text_bytes,
            storage,
            space_id,
            truncate,
        )

    @property
    def digest(self) -> str:
        """Names the plan."""
        record = asdict(replace(self, parts=())) | {
            "format_version": FORMAT_VERSION,
            "parts": [{**asdict(replace(part, path=Path())), "path": str(part.path)} for part in self.parts],
        }
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]

    def first_shards(self, facts: Sequence[int]) -> list[int]:
        """The first shard of each part by its number of facts, and the number of all shards."""
        return list(accumulate((-(-count // self.shard_facts) for count in facts), initial=0))

    def place(self, position: int) -> str:
        """Names a fact for people."""
        part = self.parts[position >> POSITION_BITS]
        where = f" from {part.part.start:,} on" if part.part and part.part.start else ""
        return f"{part.path}{where}: fact {(position & (1 << POSITION_BITS) - 1) + 1:,}"


@dataclass(frozen=True)
class Encoders:
    """How a task reaches the encoders, by their addresses and credentials, and how a build uses them."""

    targets: Targets
    options: BuildOptions


def read(plan: Plan, work: Work, number: int) -> dict[str, Any]:
    """Reads a part. Raises InvalidArgument naming file and line."""
    limits = Limits(text_bytes=plan.text_bytes)
    facts: list[list[str]] = [[] for _ in range(plan.partitions)]
    ids: list[list[bytes]] = [[] for _ in range(plan.partitions)]
    count = 0
    for place, fact in plan.parts[number].lines():
        check_premise(PremiseRecord(fact.id, fact.text, splits=fact.splits, tags=fact.tags), place, limits)
        position = number << POSITION_BITS | count
        line = json.dumps([position, fact.id, fact.text, fact.splits, fact.tags], ensure_ascii=False) + "\n"
        facts[hash64(fact.text) % plan.partitions].append(line)
        row = id_digest(fact) + content_digest(fact) + position.to_bytes(8, "little")
        ids[hash64(fact.id) % plan.partitions].append(row)
        count += 1
    lines, rows = ["".join(one).encode() for one in facts], [b"".join(one) for one in ids]
    record = {FACTS: ranges_of(lines), IDS: ranges_of(rows), "count": count}
    return work.finish(READ, number, {FACTS: b"".join(lines), IDS: b"".join(rows)}, record)


def fold(
    plan: Plan, work: Work, number: int, facts: Sequence[Range], ids: Sequence[Range], first_shards: Sequence[int]
) -> dict[str, Any]:
    """Folds a partition, whose facts and ids are these ranges of each part's. Raises InvalidArgument naming a fact."""
    _check_ids(plan, b"".join(work.slices(READ, IDS, ids)))
    folding = Folding(Limits(text_bytes=plan.text_bytes))
    seen: set[str] = set()
    positions: list[int] = []
    for part in work.slices(READ, FACTS, facts):
        for line in part.splitlines():
            position, fact_id, text, splits, tags = json.loads(line)
            if fact_id in seen:
                continue
            seen.add(fact_id)
            folding.add([PremiseRecord(fact_id, text, splits=tuple(splits), tags=tuple(tags))])
            if len(folding.drafts) > len(positions):
                positions.append(position)
    shards: list[list[str]] = [[] for _ in range(first_shards[-1])]
    for position, draft in zip(positions, folding.drafts, strict=True):
        part_number, row = position >> POSITION_BITS, position & (1 << POSITION_BITS) - 1
        shard = first_shards[part_number] + row // plan.shard_facts
        found = [position, draft.id, draft.text, draft.aliases, draft.splits, draft.tags]
        shards[shard].append(json.dumps(found, ensure_ascii=False) + "\n")
    lines = ["".join(one).encode() for one in shards]
    record = {PREMISES: ranges_of(lines), "count": len(positions)}
    return work.finish(FOLD, number, {PREMISES: b"".join(lines)}, record)


def encode(plan: Plan, work: Work, number: int, premises: Sequence[Range], encoders: Encoders) -> dict[str, Any]:
    """Encodes a shard, whose premises are these ranges of each partition's. Raises what BatchEncoder raises."""
    found = [json.loads(line) for part in work.slices(FOLD, PREMISES, premises) for line in part.splitlines()]
    found.sort(key=lambda one: int(one[0]))
    drafts = [Draft(*columns) for _, *columns in found]
    lines = "".join(draft.record().to_line() for draft in drafts).encode()
    record: dict[str, Any] = {"count": len(drafts)}
    vectors = np.empty((0, 0), np.float32)
    if drafts:
        vectors, told = asyncio.run(_encoded(plan, drafts, encoders))
        record |= told
    stored = np.ascontiguousarray(vectors, dtype=DTYPES[plan.storage])
    record |= {"dim": stored.shape[1], "largest_norm": float(norms_of(stored).max(initial=0.0)) if drafts else 0.0}
    return work.finish(ENCODE, number, {PREMISES: lines, VECTORS: stored.tobytes()}, record)


async def _encoded(
    plan: Plan, drafts: Sequence[Draft], encoders: Encoders
) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """The vectors of premises; their space, the version that made them, and how many were cut."""
    channel = encoders.targets.channel("encoder")
    options = encoders.options
    batches = BatchEncoder(channel, plan.space_id, "", options, truncate=plan.truncate)
    taken = []
    try:
        for start in range(0, len(drafts), options.batch):
            while batches.is_full:
                taken.append(await batches.take(None))
            batches.put(drafts[start : start + options.batch])
        while not batches.is_empty:
            taken.append(await batches.take(None))
    finally:
        await batches.close()
        await channel.close()
    rows, cut = zip(*taken, strict=True)
    return np.concatenate(rows), {"space_id": batches.space_id, "version": batches.version, "truncated": sum(cut)}


def _check_ids(plan: Plan, rows: bytes) -> None:
    """Raises InvalidArgument for an id with two texts, or with two choices of splits or tags."""
    table = np.frombuffer(rows, "<u8").reshape(-1, _ID_WORDS)
    table = table[np.lexsort((table[:, 4], table[:, 1], table[:, 0]))]
    same_id = (table[1:, :2] == table[:-1, :2]).all(axis=1)
    wrong = np.flatnonzero(same_id & (table[1:, 2:4] != table[:-1, 2:4]).any(axis=1))
    if len(wrong):
        first = min((int(table[row + 1, 4]), int(table[row, 4])) for row in wrong.tolist())
        raise InvalidArgument(f"{plan.place(first[0])}: its id is also used at {plan.place(first[1])}, {ID_REUSED}")

"""What a distributed build is about to do: its parts, partitions and shards, the same whenever it is planned again.

    part        of the input, read by one task: a range of lines, row groups of Parquet, else a file
    partition   premises whose texts share a hash, folded by one task; duplicates are in one partition
    shard       so many facts of the input in a row: their premises, encoded by one task

A fact's position is its part's number and its number in the part. It decides the order of insertion, as in a build
from one stream. Plans with one digest share the files of their work.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path

from aeenc.adapters.facts import Facts
from services.corpus.generation import Storage, check_corpus_name

FORMAT_VERSION = 1
PART_BYTES = 32 * 1024 * 1024
PARTITION_BYTES = 32 * 1024 * 1024  # of the input's files; a partition in memory takes some ten times as much
SHARD_FACTS = 20_000  # 31 MB of 384 numbers each
POSITION_BITS = 32  # of a fact's number in its part


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

    @classmethod
    def of(
        cls,
        corpus: str,
        facts: Facts,
        *,
        text_bytes: int,
        storage: Storage = "float32",
        space_id: str = "",
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

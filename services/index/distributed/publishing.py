"""Puts the shards of a distributed build together to one generation, whose files are those of a build from a stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from aeenc.errors import FailedPrecondition
from services.corpus.generation import (
    KIND,
    VECTORS,
    PremiseRecord,
    folder_of,
    generation_meta,
    write_premises,
)
from services.index.building.index_process import index_generation, texts_of
from services.index.building.vectors import VectorFile
from services.index.distributed import stages
from services.index.distributed.plan import Plan
from services.index.distributed.work import Work
from services.index.lexical.bm25 import write_lexical
from services.index.values import EngineOptions, LexicalSettings
from services.store.artifacts import Artifact, ArtifactStore

Record = Mapping[str, Any]


def check_versions(work: Work, shards: Sequence[Record], newest: str) -> None:
    """Raises FailedPrecondition if several versions have encoded the shards, and forgets those not of the newest."""
    versions = Counter(str(shard["version"]) for shard in shards if shard["count"])
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
    lexical: LexicalSettings,
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
        vectors = VectorFile(writer.path / VECTORS, first["dim"], plan.storage)
        for number, shard in full:
            content = work.whole(stages.ENCODE, number, stages.VECTORS, shard)
            vectors.append(np.frombuffer(content, stages.DTYPES[plan.storage]).reshape(shard["count"], -1))
        vectors.finish()
        write_premises(writer.path, premises())
        engine = await index_generation(writer.path, engines, vectors.rows, vectors.largest_norm, lexical)
        if "index" not in engine:
            engine |= write_lexical(writer.path, texts_of(writer.path), lexical)
        meta = generation_meta(
            corpus=plan.corpus,
            space_id=first["space_id"],
            premise_version=first["version"],
            dim=vectors.dim,
            premises=vectors.rows,
            largest_norm=vectors.largest_norm,
            storage=vectors.storage,
            **engine,
        )
        return store.push(folder, writer.commit(meta, id_prefix="g").id)

"""A caller of one corpus: builds, activates, deletes and searches until the index is gone."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np

from aeenc import IndexClient, errors
from aeenc.v1 import index_pb2, types_pb2
from benchmarks.harness.quick_encoder import SPACE, vector_of
from benchmarks.index.crash_model import CorpusModel, Premise

CHUNK = 12
K = 5
DEAD = (errors.Unavailable, errors.Cancelled, errors.DeadlineExceeded)


class Actor:
    """Works on one corpus and keeps its model in step with what is acknowledged.

    `begun` is called with the phase and its start as each operation begins; `seconds` collects their durations.
    """

    def __init__(self, model: CorpusModel, rng: random.Random, begun: Callable[[str], None]) -> None:
        self.model = model
        self.wrong: list[str] = []
        self.searches = 0
        self.seconds: dict[str, list[float]] = {phase: [] for phase in ("build", "activate", "delete", "search")}
        self.resumed_premises = 0  # taken over from earlier calls and not streamed again
        self.lost_premises = 0
        self._rng = rng
        self._begun = begun

    async def run(self, client: IndexClient) -> str:
        """Works until the index is gone; returns the phase that it broke into."""
        work = {"build": self.build, "activate": self._activate, "delete": self._delete, "search": self._search}
        while True:
            phase = self.model.choose(self._rng)
            self._begun(phase)
            begun = time.monotonic()
            try:
                await work[phase](client)
            except DEAD:
                return phase
            self.seconds[phase].append(time.monotonic() - begun)

    async def build(self, client: IndexClient) -> None:
        """Begins a build, or goes on with the one that was under way, leaving out what was acknowledged."""
        build = self.model.build = self.model.build or self.model.plan_build(self._rng)
        skipped = build.durable if self._rng.random() < 0.7 else 0
        header = index_pb2.BuildHeader(
            corpus=self.model.name,
            request_id=build.request_id,
            base_generation=build.base,
            delete_ids=build.deleted_ids,
            activate=build.activate,
            resume_from=skipped,
        )
        try:
            async for report in client._admin_channel.stream(  # noqa: SLF001 -- acknowledgements one by one
                client._admin.BuildGeneration,  # noqa: SLF001
                _requests(header, build.sent[skipped:]),
                timeout_s=30,
            ):
                build.durable = max(build.durable, report.durable)
                if report.ack_level >= index_pb2.ACK_LEVEL_DURABLE:
                    build.durable_rows = max(build.durable_rows, report.encoded)
                if report.HasField("generation"):
                    self.resumed_premises += skipped
                    self.model.acknowledge_build(report.generation.id)
        except errors.FailedPrecondition as error:
            self.lost_premises += build.durable
            self.wrong.append(f"acknowledged premises are gone: {error.message}")
            build.durable = build.durable_rows = 0

    async def _activate(self, client: IndexClient) -> None:
        model = self.model
        chosen = model.activating = self._rng.choice(sorted(model.generations))
        await client.activate(model.name, chosen, expected=model.active or "")
        model.active, model.activating = chosen, None

    async def _delete(self, client: IndexClient) -> None:
        model = self.model
        chosen = model.deleting = self._rng.choice([one for one in sorted(model.generations) if one != model.active])
        await client.delete(model.name, chosen)
        del model.generations[chosen]
        model.deleted.add(chosen)
        model.deleting = None

    async def _search(self, client: IndexClient) -> None:
        if self.model.active is not None:
            await self.check_search(client, self.model.active, self.model.generations[self.model.active])

    async def check_search(self, client: IndexClient, generation: str, content: Sequence[Premise]) -> None:
        """Searches for some of a generation's own vectors: ids and scores must be those of a brute-force search."""
        chosen = self._rng.sample(range(len(content)), min(4, len(content)))
        matrix = np.stack([vector_of(text) for _, text in content])
        found = await client.search(self.model.name, matrix[chosen], space_id=SPACE, k=K, generation=generation)
        for row, ids, scores in zip(chosen, found.ids, found.scores, strict=True):
            exact = np.einsum("ij,j->i", matrix.astype(np.float64), matrix[row].astype(np.float64)).astype(np.float32)
            best = np.lexsort((np.arange(len(exact)), -exact))[:K]
            if ids != [content[n][0][0] for n in best] or scores.tobytes() != exact[best].tobytes():
                self.wrong.append(f"{self.model.name}: generation {generation} answers {ids}, not what it holds")
        self.searches += len(chosen)


async def _requests(
    header: index_pb2.BuildHeader, premises: Sequence[tuple[str, str]]
) -> AsyncIterator[index_pb2.BuildGenerationRequest]:
    yield index_pb2.BuildGenerationRequest(header=header)
    for start in range(0, len(premises), CHUNK):
        chunk = [types_pb2.Premise(id=one, text=text) for one, text in premises[start : start + CHUNK]]
        yield index_pb2.BuildGenerationRequest(chunk=index_pb2.PremiseChunk(premises=chunk))
        await asyncio.sleep(0.002)

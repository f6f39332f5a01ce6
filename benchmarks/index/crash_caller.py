"""A caller of one corpus, and a model of what they may rely on: builds, activates, deletes, searches until a kill."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from aeenc import IndexClient, errors
from aeenc.v1 import index_pb2, types_pb2
from benchmarks.index.stand_in_encoder import SPACE, vector_of

CHUNK = 12
K = 5
DEAD = (errors.Unavailable, errors.Cancelled, errors.DeadlineExceeded)

Premise = tuple[tuple[str, ...], str]  # all its ids, and its text


@dataclass
class Build:
    """One build as its caller knows it: what is streamed, what must come out, what has been acknowledged."""

    request_id: str
    sent: list[tuple[str, str]]
    content: list[Premise]
    base: str = ""
    deleted_ids: tuple[str, ...] = ()
    activate: bool = False
    durable: int = 0  # streamed premises acknowledged as on disk
    durable_rows: int = 0  # rows of vectors acknowledged so

    def acknowledged_texts(self) -> set[str]:
        """New texts whose vectors were acknowledged: encoding them again would be work lost."""
        return {text for _, text in self.content[: self.durable_rows]} & {text for _, text in self.sent}


@dataclass
class CorpusModel:
    """The generations of one corpus, by acknowledgements."""

    name: str
    generations: dict[str, list[Premise]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    active: str | None = None
    build: Build | None = None  # under way, as are the next two
    activating: str | None = None
    deleting: str | None = None
    _numbers: int = 0

    def plan_build(self, rng: random.Random) -> Build:
        """A build from scratch or from a base, with premises that were never there, some of them twice."""
        self._numbers += 1
        name = f"{self.name}-{self._numbers}"
        sent = [(f"{name}-{n}", f"fact {n} of {name}") for n in range(rng.randint(40, 160))]
        sent += [(f"{one}-again", text) for one, text in rng.sample(sent, 3)]
        build = Build(f"request {name}", sent, [], activate=rng.random() < 0.3)
        if self.generations and rng.random() < 0.5:
            build.base = rng.choice(sorted(self.generations))
            known = [one for ids, _ in self.generations[build.base] for one in ids]
            build.deleted_ids = tuple(rng.sample(known, min(8, len(known))))
        build.content = folded(self.generations.get(build.base, []), set(build.deleted_ids), sent)
        return build

    def choose(self, rng: random.Random) -> str:
        """Chooses the next operation: few generations are built, many pruned."""
        if self.build is not None or len(self.generations) < 2:
            return "build"
        idle = len(self.generations) > 2 or self.active is None
        return rng.choice(["build", "activate", "activate", "search"] + ["delete"] * (4 if idle else 0))

    def acknowledge_build(self, generation_id: str) -> None:
        """The build under way has ended with a generation."""
        assert self.build is not None
        self.generations[generation_id] = self.build.content
        if self.build.activate:
            self.active = generation_id
        self.build = None


def folded(base: list[Premise], deleted: set[str], sent: list[tuple[str, str]]) -> list[Premise]:
    """A base without deleted ids, then new premises; those of one text are one premise."""
    by_text: dict[str, tuple[str, ...]] = {}
    for ids, text in base:
        if left := tuple(one for one in ids if one not in deleted):
            by_text[text] = left
    for one, text in sent:
        by_text[text] = (*by_text.get(text, ()), one)
    return [(ids, text) for text, ids in by_text.items()]


class CorpusCaller:
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
        yield index_pb2.BuildGenerationRequest(premises=chunk)
        await asyncio.sleep(0.002)

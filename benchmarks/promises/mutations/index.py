"""The RPCs of the index that change something."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any

from aeenc import errors
from aeenc.v1 import index_pb2, types_pb2
from benchmarks.promises.mutations.mutation import Made, Mutation, Subject, agreed, fresh
from services.corpus.active import latest_move, read_active
from services.corpus.generation import folder_of
from services.index.ranking.prior import FOLDER
from support.worlds.trainer_world import FACTS

PREMISES = 12
CALLS = 30  # of one corpus, one after the other
PROBE = "the sun is a star that gives light"
SIMILAR = "the sun is a star that gives heat"  # the prior passes over a hypothesis with the query's own text


def premises(salt: str) -> list[types_pb2.Premise]:
    """A few premises; another salt gives other texts."""
    return [types_pb2.Premise(id=f"p{n}", text=f"{FACTS[n]} {salt}") for n in range(PREMISES)]


class IndexMutation(Mutation):
    """Base of the index's mutations."""

    service = "index"

    async def generations(self, corpus: str) -> list[index_pb2.Generation]:
        """The generations of a corpus; none if nobody knows it."""
        try:
            return [one async for one in self.world.client.index.list_generations(corpus)]
        except errors.NotFound:
            return []

    async def build(self, corpus: str, salt: str, *, activate: bool) -> str:
        """Builds a generation."""
        return str((await self.world.client.index.build(corpus, premises(salt), activate=activate)).id)

    async def active(self, corpus: str) -> str:
        """Reads the active generation from memory and from disk."""
        listed = [one.id for one in await self.generations(corpus) if one.active]
        on_disk = await asyncio.to_thread(read_active, self.world.fleet.space.store, corpus)
        return agreed("".join(listed), on_disk or "")


class Build(IndexMutation):
    """BuildGeneration, with the activation of what is built."""

    rpc = "IndexAdminService.BuildGeneration"
    ignored = ("received", "encoded", "durable")

    async def prepare(self, count: int) -> list[Subject]:
        corpora = [fresh("build") for _ in range(count)]
        between = frozenset({"built, not active"})  # the generation is whole; a retry activates it
        return [Subject(corpus, self._maker(corpus), {"absent"}, between=between) for corpus in corpora]

    def _maker(self, corpus: str) -> Any:
        header = index_pb2.BuildHeader(corpus=corpus, request_id=fresh("r"), activate=True)

        def messages(salt: str) -> list[index_pb2.BuildGenerationRequest]:
            return [index_pb2.BuildGenerationRequest(header=header, premises=premises(salt))]

        return lambda: (messages(corpus), messages("other"), "present")

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        return [await self._state(subject.name) for subject in subjects]

    async def _state(self, corpus: str) -> str:
        found = await self.generations(corpus)
        if not found:
            return agreed("absent", "absent" if await self.active(corpus) == "" else "active")
        if len(found) != 1 or found[0].premises != PREMISES:
            return f"partly: {[(one.id, one.premises, one.active) for one in found]}"
        return {found[0].id: "present", "": "built, not active"}.get(active := await self.active(corpus), active)


class Activate(IndexMutation):
    """ActivateGeneration, there and back between two generations of a corpus."""

    rpc = "IndexAdminService.ActivateGeneration"

    async def prepare(self, count: int) -> list[Subject]:
        subjects = []
        for _ in range(-(-count // CALLS)):
            corpus = fresh("activate")
            both = [await self.build(corpus, salt, activate=salt == "a") for salt in ("a", "b")]
            subjects.append(Subject(corpus, self._maker(corpus, both), {both[0]}, min(count, CALLS)))
        return subjects

    @staticmethod
    def _maker(corpus: str, both: list[str]) -> Any:
        turns = itertools.cycle(reversed(both))

        def make() -> Made:
            wanted, request_id = next(turns), fresh("r")
            ask = index_pb2.ActivateGenerationRequest
            other = next(one for one in both if one != wanted)
            requests = [ask(corpus=corpus, generation=one, request_id=request_id) for one in (wanted, other)]
            return *requests, wanted

        return make

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        return [await self.active(subject.name) for subject in subjects]


class Delete(IndexMutation):
    """DeleteGeneration, of generations that are not active."""

    rpc = "IndexAdminService.DeleteGeneration"

    async def prepare(self, count: int) -> list[Subject]:
        subjects: list[Subject] = []
        for _ in range(-(-count // CALLS)):
            corpus = fresh("delete")
            await self.build(corpus, "kept", activate=True)
            for number in range(min(CALLS, count)):
                generation = await self.build(corpus, str(number), activate=False)
                subjects.append(Subject(f"{corpus}/{generation}", self._maker(corpus, generation), {"there"}))
        return subjects

    @staticmethod
    def _maker(corpus: str, generation: str) -> Any:
        ask, request_id = index_pb2.DeleteGenerationRequest, fresh("r")
        requests = [ask(corpus=corpus, generation=one, request_id=request_id) for one in (generation, "g" + "0" * 16)]
        return lambda: (*requests, "gone")

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        listed = {
            corpus: {one.id for one in await self.generations(corpus)}
            for corpus in {subject.name.partition("/")[0] for subject in subjects}
        }
        found = []
        for subject in subjects:
            corpus, _, generation = subject.name.partition("/")
            on_disk = (self.world.fleet.space.store.root / folder_of(corpus) / generation).exists()
            found.append(agreed(*("there" if one else "gone" for one in (generation in listed[corpus], on_disk))))
        return found


class Hold(IndexMutation):
    """HoldGeneration. It has no request id: who holds a generation already goes on holding it."""

    rpc = "IndexAdminService.HoldGeneration"
    refusal = ""
    ask: Any = index_pb2.HoldGenerationRequest
    before, after = "free", "held"

    async def prepare(self, count: int) -> list[Subject]:
        subjects = []
        for _ in range(count):
            corpus, holder = fresh("hold"), fresh("run")
            generation = await self.build(corpus, "a", activate=True)
            if self.before == "held":
                await self.world.client.index.hold(corpus, generation, holder)
            request = self.ask(corpus=corpus, generation=generation, holder=holder)
            subjects.append(Subject(corpus, lambda request=request: (request, None, self.after), {self.before}))
        return subjects

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        held = [[one.held_by for one in await self.generations(subject.name)] for subject in subjects]
        return ["held" if any(one) else "free" for one in held]


class Release(Hold):
    """ReleaseGeneration. It has no request id: what nobody holds is left as it is."""

    rpc = "IndexAdminService.ReleaseGeneration"
    ask = index_pb2.ReleaseGenerationRequest
    before, after = "held", "free"


class Explain(IndexMutation):
    """PutExplanations, each in place of those before. It has no request id: what is put again stays the same."""

    rpc = "IndexAdminService.PutExplanations"
    refusal = ""

    async def prepare(self, count: int) -> list[Subject]:
        subjects = []
        for _ in range(-(-count // CALLS)):
            corpus = fresh("explain")
            await self.build(corpus, "a", activate=True)
            await self.world.client.index.put_explanations(corpus, [(PROBE, ["p0"])], replace=True)
            subjects.append(Subject(corpus, self._maker(corpus), {"p0"}, min(count, CALLS)))
        return subjects

    @staticmethod
    def _maker(corpus: str) -> Any:
        numbers = itertools.count(1)

        def make() -> Made:
            wanted, ask = f"p{next(numbers) % PREMISES}", index_pb2.PutExplanationsRequest
            header = ask(header=index_pb2.ExplanationsHeader(corpus=corpus, replace=True))
            one = index_pb2.Explanation(text=PROBE, premise_ids=[wanted])
            return [header, ask(explanations=[one])], None, wanted

        return make

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        return [await self._state(subject.name) for subject in subjects]

    async def _state(self, corpus: str) -> str:
        store = self.world.fleet.space.store
        path = store.root / folder_of(corpus) / FOLDER / latest_move(store, corpus).explanations
        [[_, ids]] = json.loads(await asyncio.to_thread(path.read_bytes))["explanations"]
        found = await self.world.client.index.retrieve(corpus, [SIMILAR], k=1, prior=1.0)
        return agreed(found.results[0][0].id, *ids)


MUTATIONS = (Build, Activate, Delete, Hold, Release, Explain)

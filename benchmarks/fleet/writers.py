"""Callers of what the services store, and a look for all that was acknowledged to them.

Each call that changes something has a request id and is sent again until it is answered. A share of them is broken off
at a random moment first, and some are sent once more after their answer, which must then be the same.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aeenc import AsyncClient, errors
from aeenc.v1 import types_pb2
from aeenc.values import WorkState
from benchmarks.harness.fleet import CORPUS, PREMISES, Fleet, job_fields
from services.corpus.active import latest_move
from services.store.artifacts import ArtifactStore
from support.waiting import reached
from support.worlds.trainer_world import QUERIES

PASSING = (errors.Unavailable, errors.DeadlineExceeded, errors.Aborted, errors.Cancelled)
LABELS = ("canary", "run-a")
SETTLE_S = 3.0  # after a repair, until clients have noticed
FIRST_GUESS_S, LATEST = 0.05, 1.3  # of a call's usual duration, within which it is broken off
AGAIN = 0.1  # share of the answered calls that are sent once more
GENERATIONS_KEPT = 3
NEEDS = {"generation": ("store",), "active": ("store",), "explanation": ("store",), "": ("redis", "store")}


@dataclass(frozen=True)
class Answer:
    """An acknowledged answer: its time, kind and subject, and what it says."""

    at: float
    kind: str
    about: str
    said: Any = None


class Outages:
    """When something that has no second copy was away."""

    def __init__(self) -> None:
        self._times: dict[str, list[list[float]]] = {"redis": [], "store": []}

    @asynccontextmanager
    async def away(self, what: str) -> AsyncIterator[None]:
        """Until a moment after the block, calls that need `what` may fail."""
        times = [time.monotonic(), float("inf")]
        self._times[what].append(times)
        try:
            yield
        finally:
            times[1] = time.monotonic() + SETTLE_S

    def excuse(self, needs: Sequence[str], since: float) -> str:
        """Names one of `needs` that was away at some time since `since`; empty: none was."""
        overlaps = (what for what in needs for start, end in self._times[what] if since <= end)
        return next(overlaps, "")


@dataclass
class Writers:
    """All callers over one fleet. `broken` is the share of calls that are broken off."""

    fleet: Fleet
    client: AsyncClient
    pairs: str  # the run that jobs learn from
    seed: int = 0
    broken: float = 0.0
    outages: Outages = field(default_factory=Outages)
    answers: list[Answer] = field(default_factory=list)
    asked: list[Answer] = field(default_factory=list)  # activations, answered or not
    removing: dict[str, float] = field(default_factory=dict)  # what somebody has asked to delete, and when
    failed: list[tuple[float, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    longest_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._usual_s: dict[str, float] = {}
        self.generations: list[str] = []  # of CORPUS, for `activate`

    async def repeat(self, step: Callable[[int], Awaitable[None]], goes_on: Callable[[], bool], pause_s: float) -> None:
        """Does one thing again and again."""
        number = 0
        while goes_on():
            number += 1
            try:
                await step(number)
            except errors.AeencError as error:  # noted where it is one of the calls that count
                self.counts[f"{step.__name__}: {error.code}"] += 1
            await asyncio.sleep(pause_s)

    def note(self, kind: str, about: str, said: Any = None) -> None:
        """Notes an answer."""
        self.answers.append(Answer(time.monotonic(), kind, about, said))

    async def call(self, kind: str, call: Callable[[], Awaitable[Any]], needs: Sequence[str] | None = None) -> Any:
        """Makes a call once. A failure counts unless something that it needs was away."""
        begun, needs = time.monotonic(), NEEDS.get(kind, NEEDS[""]) if needs is None else needs
        try:
            answer = await call()
        except errors.AeencError as error:
            away = self.outages.excuse(needs, begun) if isinstance(error, PASSING) else ""
            self.counts[f"{kind} failed while the {away} was away"] += bool(away)
            if not away:
                self.failed.append((time.monotonic(), f"{kind}: {error.code} {error.message}"))
            raise
        finally:
            self.longest_s[kind] = max(self.longest_s.get(kind, 0.0), time.monotonic() - begun)
        self._usual_s[kind] = time.monotonic() - begun
        self.counts[kind] += 1
        return answer

    async def write(self, kind: str, call: Callable[[], Awaitable[Any]], identity: Callable[[Any], Any]) -> Any:
        """Makes a call that has a request id until it is answered, breaking some off; some are made once more."""
        while True:
            work = asyncio.ensure_future(self.call(kind, call))
            if self._rng.random() < self.broken:
                usual_s = self._usual_s.get(kind, FIRST_GUESS_S)
                asyncio.get_running_loop().call_later(self._rng.uniform(0, LATEST * usual_s), work.cancel)
            try:
                await asyncio.wait([work])
            finally:
                work.cancel()
            if work.cancelled():
                self.counts[f"{kind} broken off"] += 1
                continue
            if work.exception() is None:
                break
            if not isinstance(work.exception(), PASSING):
                work.result()
            await asyncio.sleep(0.2)
        answer = work.result()
        if self._rng.random() < AGAIN:
            again = await self.call(kind, call)
            if identity(again) != identity(answer):
                self.wrong.append(f"{kind} sent again: {identity(again)}, not {identity(answer)}")
        return answer

    async def import_pairs(self, _: int) -> None:
        """A pair that nobody else has, as a run of its own."""
        query, key = uuid.uuid4().hex, uuid.uuid4().hex
        pair = types_pb2.Pair(query=query, premise="fact", premise_id="f1", sign=types_pb2.PAIR_SIGN_POSITIVE)
        call = lambda: self.client.sampler.import_pairs(CORPUS, [pair], request_id=key)  # noqa: E731 -- sent again
        self.note("import", (await self.write("import", call, lambda one: one.run_id)).run_id, query)

    async def sample(self, number: int) -> None:
        """A run with the oracle, to its end."""
        run = await self._start_run([(f"t{n}", f"{QUERIES[n]} {number}") for n in range(3)], "gold", k=4, max_depth=1)
        self.note("run", run.id)
        done = await self.client.sampler.wait(run.id)
        self.note("ended run", run.id, (done.state, done.progress.judgements))

    async def ask_people(self, number: int) -> None:
        """A run whose task a person answers, and which is then cancelled."""
        run = await self._start_run([(f"t{number}", f"{QUERIES[0]} for people {number}")], "team", k=3, max_depth=0)
        self.note("run", run.id)
        while not (leases := await self.client.people.lease(f"ann-{number}", run_id=run.id)):  # noqa: ASYNC110 -- a call
            await asyncio.sleep(0.1)
        chosen = [leases[0].task.candidates[0].premise.id]
        submit = lambda: self.client.people.submit(leases[0], chosen, client_seq=1)  # noqa: E731 -- sent again
        self.note("answer", run.id, (await self.write("answer", submit, lambda one: one.answer_id)).answer_id)
        key = uuid.uuid4().hex
        await self.write("cancel", lambda: self.client.sampler.cancel(run.id, request_id=key), lambda one: one.id)
        self.note("ended run", run.id, (WorkState.CANCELLED, 1))

    async def _start_run(self, roots: list[tuple[str, str]], oracle: str, **options: int) -> Any:
        fields = {**options, "corpus": CORPUS, "oracle": oracle, "idempotency_key": uuid.uuid4().hex}
        return await self.write("run", lambda: self.client.sampler.start_run(roots, **fields), lambda one: one.id)

    async def train(self, number: int) -> None:
        """A job, to its end."""
        fields = job_fields(self.pairs, epochs=1, seed=number, idempotency_key=uuid.uuid4().hex)
        job = await self.write("job", lambda: self.client.trainer.start_job(**fields), lambda one: one.id)
        self.note("job", job.id)
        done = await self.client.trainer.wait(job.id)
        self.note("ended job", job.id, (done.state, done.version))
        self.note("checkpoint", done.version)

    async def move(self, number: int) -> None:
        """A label that names another version."""
        label, version, key = LABELS[number % 2], self._rng.choice(self.fleet.versions).version, uuid.uuid4().hex
        call = lambda: self.client.registry.set_label(label, version, request_id=key)  # noqa: E731 -- sent again
        moved = await self.write("label", call, lambda one: one.revision)
        self.note("label", label, (moved.revision, moved.versions))

    async def activate(self, number: int) -> None:
        """A generation of CORPUS that serves."""
        chosen, key = self.generations[number % len(self.generations)], uuid.uuid4().hex
        self.asked.append(Answer(time.monotonic(), "active", CORPUS, chosen))
        call = lambda: self.client.index.activate(CORPUS, chosen, request_id=key)  # noqa: E731 -- sent again
        await self.write("active", call, lambda one: one.previous_generation)
        self.note("active", CORPUS, chosen)

    async def build(self, number: int) -> None:
        """A generation of another corpus, and the deletion of an old one."""
        corpus, key = f"corpus-{number % 2}", uuid.uuid4().hex
        premises = [*PREMISES, types_pb2.Premise(id="more", text=f"fact {number}")]
        call = lambda: self.client.index.build(corpus, premises, request_id=key)  # noqa: E731 -- sent again
        built = await self.write("generation", call, lambda one: one.id)
        self.note("generation", corpus, built.id)
        listed = [one async for one in self.client.index.list_generations(corpus)]
        for old in [one.id for one in listed if not one.active][GENERATIONS_KEPT:]:
            self.removing[old] = time.monotonic()
            again = uuid.uuid4().hex
            delete = lambda old=old, key=again: self.client.index.delete(corpus, old, request_id=key)  # noqa: E731
            await self.write("deletion", delete, lambda one: one)

    async def explain(self, number: int) -> None:
        """An explanation."""
        text = f"query {number}"
        await self.call("explanation", lambda: self.client.index.put_explanations(CORPUS, [(text, ["f0"])]))
        self.note("explanation", CORPUS, text)

    async def forget(self, _: int) -> None:
        """A checkpoint that is deleted at once, with its files."""
        made = (await self.fleet.add_version()).version
        self.fleet.versions.pop()  # no label shall name it
        self.note("checkpoint", made)
        await asyncio.sleep(0.2)
        self.removing[made] = time.monotonic()
        key = uuid.uuid4().hex
        call = lambda: self.client.trainer.delete_checkpoint(made, request_id=key)  # noqa: E731 -- sent again
        await self.write("forgotten", call, lambda one: one)
        await self.client.trainer.collect_garbage()


@dataclass
class Look:
    """Asks a fleet for what was acknowledged, also a restored one, whose store is `store`."""

    client: AsyncClient
    store: ArtifactStore
    writers: Writers
    removed: set[str]

    async def lost(self, answers: Sequence[Answer]) -> list[str]:
        """Lists the answers that no longer hold, with the reason."""
        last = {(one.kind, one.about): one for one in answers if one.kind in {"label", "active"}}
        others = [one for one in answers if one.kind not in {"label", "active"} and one.said not in self.removed]
        faults = [(one, await self._fault(one)) for one in (*others, *last.values())]
        return [f"{one.kind} {one.about}: {fault}" for one, fault in faults if fault]

    async def _fault(self, one: Answer) -> str:
        try:
            return str(await reached(lambda: getattr(self, f"_{one.kind.replace(' ', '_')}")(one), times=100) or "")
        except errors.AeencError as error:
            return f"{error.code}: {error.message}"

    async def _import(self, one: Answer) -> str:
        found = [pair.query async for pair in self.client.sampler.list_pairs(one.about)]
        return "" if found == [one.said] else f"has {found}"

    async def _ended_run(self, one: Answer) -> str:
        found = await self.client.sampler.get_run(one.about)
        now = (found.state, found.progress.judgements)
        return "" if now[0] is one.said[0] and now[1] >= one.said[1] * (now[0] is not WorkState.CANCELLED) else f"{now}"

    async def _answer(self, one: Answer) -> str:
        tasks = [task async for task in self.client.people.list_tasks(one.about)]
        return "" if one.said in {answer.answer_id for task in tasks for answer in task.answers} else "it is not there"

    async def _run(self, one: Answer) -> str:
        get = self.client.sampler.get_run if one.kind == "run" else self.client.trainer.get_job
        found: Any = await get(one.about)
        return found.error if found.state is WorkState.FAILED else ""

    _job = _run

    async def _ended_job(self, one: Answer) -> str:
        found = await self.client.trainer.get_job(one.about)
        return "" if (found.state, found.version) == one.said else f"{found.state} {found.version}, not {one.said}"

    async def _checkpoint(self, one: Answer) -> None:
        if one.about not in self.removed:
            await self.client.trainer.get_checkpoint(one.about)

    async def _label(self, one: Answer) -> str:
        rows = {label.name: label async for label in self.client.registry.list_labels()}
        revision, versions = one.said
        now = rows.get(one.about)
        if now is None or now.revision < revision or (now.revision == revision and now.versions != versions):
            return f"{now}, not {versions} at revision {revision}"
        return ""

    async def _generation(self, one: Answer) -> str:
        found = [generation.id async for generation in self.client.index.list_generations(one.about)]
        return "" if one.said in found else f"{one.said} is not there"

    async def _active(self, one: Answer) -> str:
        later = {asked.said for asked in self.writers.asked if asked.at > one.at}
        active = {corpus.corpus: corpus.active.id async for corpus in self.client.index.list_corpora()}
        now = active.get(one.about, "")
        return "" if now in {one.said, *later} else f"{now} serves, not {one.said}"

    async def _explanation(self, one: Answer) -> str:
        name = latest_move(self.store, one.about).explanations
        path = self.store.root / "generations" / one.about / ".explanations" / name
        text = await asyncio.to_thread(path.read_text)
        return "" if str(one.said) in text else "it is not there"

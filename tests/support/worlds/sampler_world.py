"""A small index with fixed scores, an oracle that counts and misbehaves on demand, and a sampler between them.

The world is a function of numbers: premise i is the text `fact i`, its score for a query is a hash. So an independent
reading of Algorithm 2 (`brute_force`) can say what a run must record.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

import aeenc
from aeenc import errors, values
from aeenc.oracle import EXPLAINS, REFUSES
from aeenc.transport import status
from aeenc.v1 import (
    index_pb2,
    index_pb2_grpc,
    oracle_pb2,
    oracle_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
    sampler_pb2,
    types_pb2,
)
from services.kit.server import GrpcServer
from services.sampler.__main__ import build
from services.sampler.settings import SamplerSettings
from support.waiting import eventually

FACTS = 60
QUEUE = {"undo_s": 0.0, "min_lease_s": 30.0, "first_lease_s": 30.0}
NEVER = 3600.0
FIRST = "version-1"
HYPOTHESES = [(f"tree-{n}", f"hypothesis {n}") for n in range(8)] + [("tree-fact", "fact 7")]


def chance(*parts: object) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big") / 2**32


def splits_of(number: int) -> tuple[str, ...]:
    return (("facts",), ("facts", "dev"), ("train",), ("dev",), ())[number % 5]


def explains(query: str, premise: str) -> bool:
    return chance("explains", query, premise) < 0.3


def is_leaf(premise: str) -> bool:
    return chance("leaf", premise) < 0.4


def nearest(
    query: str,
    k: int,
    splits: Iterable[str] = (),
    accepted: Iterable[str] = (),
    excluded: Iterable[str] = (),
    version: str = "",
    *,
    drop_self: bool = True,
) -> list[tuple[str, str, float]]:
    """(id, text, score) of the k best-scored premises, without the query itself and those accepted or excluded (ids).

    What is accepted changes the scores of all others, and so does a version that is no kin of the first.
    """
    wanted, known, left_out = set(splits), sorted(accepted), set(excluded)
    found = []
    for number in range(FACTS):
        text, stands_in = f"fact {number}", splits_of(number)
        allowed = not wanted or not stands_in or wanted & set(stands_in)
        if (text != query or not drop_self) and allowed and f"p{number}" not in {*known, *left_out}:
            scored = (query, text, *known, *([version] if version and not version.startswith(FIRST) else []))
            found.append((f"p{number}", text, chance("score", *scored)))
    return sorted(found, key=lambda hit: -hit[2])[:k]


class FakeIndex(index_pb2_grpc.IndexServiceServicer):
    """Answers Retrieve from `nearest`, and GetPremises; notes what it was asked."""

    def __init__(self) -> None:
        self.requests: list[index_pb2.RetrieveRequest] = []
        self.active = "generation-1"
        self.stable = FIRST
        self.suffix = ""  # of every text
        self.delay_s = 0.0
        self.most_texts = 0  # of a call whose answer is not too large; 0: any

    async def Retrieve(self, request: index_pb2.RetrieveRequest, context: Any) -> index_pb2.RetrieveResponse:
        self.requests.append(request)
        version = request.model.version or self.stable
        await asyncio.sleep(self.delay_s)
        if 0 < self.most_texts < len(request.texts):
            await refuse(context, errors.TooLarge("the answer would be over the limit"))
        if request.corpus != "science":
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no corpus {request.corpus!r}")
        results = [
            index_pb2.RetrievedPremises(
                premises=[
                    types_pb2.RankedPremise(premise={"id": i, "text": t + self.suffix}, score=s)
                    for i, t, s in _passing(text, accepted, version, request)
                ]
            )
            for text, accepted in zip(request.texts, _accepted(request), strict=True)
        ]
        return index_pb2.RetrieveResponse(
            results=results,
            model_version=version,
            space_id="s0",
            generation=request.generation or self.active,
        )

    async def GetPremises(self, request: index_pb2.GetPremisesRequest, context: Any) -> index_pb2.GetPremisesResponse:
        if unknown := [one for one in request.ids if one not in {f"p{number}" for number in range(FACTS)}]:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no premises {unknown}")
        numbers = [int(one.removeprefix("p")) for one in request.ids]
        found = [types_pb2.Premise(id=f"p{n}", text=f"fact {n}", splits=splits_of(n)) for n in numbers]
        return index_pb2.GetPremisesResponse(premises=found, generation=request.generation)


def _passing(
    text: str, accepted: list[str], version: str, request: index_pb2.RetrieveRequest
) -> list[tuple[str, str, float]]:
    splits, excluded, drop_self = request.filter.any_split, request.exclude_ids, request.drop_self
    found = nearest(text, FACTS, splits, accepted, excluded, version, drop_self=drop_self)
    before, only = request.filter.before_id.removeprefix("p") or FACTS, set(request.filter.only_ids)
    kept = [hit for hit in found if int(hit[0].removeprefix("p")) < int(before) and (not only or hit[0] in only)]
    return kept[: request.k]


def _accepted(request: index_pb2.RetrieveRequest) -> list[list[str]]:
    return [list(one.premise_ids) for one in request.accepted] or [[] for _ in request.texts]


Behaviour = Callable[[oracle_pb2.OracleTask], list[oracle_pb2.Verdict] | None]


def honest(task: oracle_pb2.OracleTask) -> list[oracle_pb2.Verdict]:
    """One clear verdict a candidate."""
    return [
        oracle_pb2.Verdict(
            premise_id=c.id, judgement=EXPLAINS if explains(task.query, c.text) else REFUSES, leaf=is_leaf(c.text)
        )
        for c in (one.premise for one in task.candidates)
    ]


@dataclass
class FakeOracle(oracle_pb2_grpc.OracleServiceServicer):
    """Answers by `behaviour` (None: leaves the task out) after `delay_s`, and counts what it was asked.

    Of the queries in `silent` it says nothing for `silent_s`.
    """

    behaviour: Behaviour = honest
    delay_s: float = 0.0
    silent: frozenset[str] = frozenset()
    silent_s: float = 60.0
    status: grpc.StatusCode | None = None
    annotator: str = "fake"
    asked: list[tuple[str, str]] = field(default_factory=list)
    tasks: list[oracle_pb2.OracleTask] = field(default_factory=list)
    calls: int = 0
    in_flight: int = 0
    most_in_flight: int = 0

    async def called(self, times: int) -> None:
        """Waits until it was called so often."""
        while self.calls < times:  # noqa: ASYNC110 -- a test's wait
            await asyncio.sleep(0.01)

    async def Judge(self, request: oracle_pb2.JudgeRequest, context: Any) -> oracle_pb2.JudgeResponse:
        self.calls += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            for task in request.tasks:
                self.tasks.append(task)
                self.asked += [(task.query, candidate.premise.text) for candidate in task.candidates]
            waits = any(task.query in self.silent for task in request.tasks)
            await asyncio.sleep(self.silent_s if waits else self.delay_s)
        finally:
            self.in_flight -= 1
        if self.status is not None:
            await context.abort(self.status, "out of order")
        answers = []
        for task in request.tasks:
            verdicts = self.behaviour(task)
            if verdicts is not None:
                answers.append(oracle_pb2.Answer(task_id=task.task_id, verdicts=verdicts, annotator=self.annotator))
        return oracle_pb2.JudgeResponse(answers=answers)


class FakeRegistry(registry_pb2_grpc.RegistryAdminServiceServicer):
    """Notes which labels were set and deleted. While it is `out_of_order` it deletes none."""

    def __init__(self) -> None:
        self.moves: list[tuple[str, str]] = []
        self.out_of_order = False

    @property
    def labels(self) -> dict[str, str]:
        """The version that each label names."""
        return {label: version for label, version in dict(self.moves).items() if version}

    async def SetLabel(self, request: registry_pb2.SetLabelRequest, context: Any) -> registry_pb2.SetLabelResponse:
        self.moves.append((request.label, request.versions[0]))
        return registry_pb2.SetLabelResponse()

    async def ListLabels(self, request: registry_pb2.ListLabelsRequest, context: Any) -> Any:
        found = [types_pb2.Label(space_id="s0", name=name, versions=[one]) for name, one in self.labels.items()]
        return registry_pb2.ListLabelsResponse(labels=found)

    async def DeleteLabel(self, request: registry_pb2.DeleteLabelRequest, context: Any) -> Any:
        if self.out_of_order:
            await context.abort(grpc.StatusCode.INTERNAL, "out of order")
        self.moves.append((request.label, ""))
        return registry_pb2.DeleteLabelResponse()


@asynccontextmanager
async def serving(register: Callable[[Any, Any], None], servicer: Any, port: int = 0) -> AsyncIterator[int]:
    """Serves a fake on a free port of the loopback, once this process has reached it.

    Connections are shared in a process: one may still take the port for that of a server that an earlier test ended.
    """
    server = grpc.aio.server()
    register(servicer, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        channel = aeenc.Channel(f"127.0.0.1:{bound}")
        await asyncio.wait_for(channel.grpc.channel_ready(), 30)
        await channel.close()
        yield bound
    finally:
        await server.stop(0)


@asynccontextmanager
async def connected(
    register: Callable[[Any, Any], None], servicer: Any, port: int = 0, **options: Any
) -> AsyncIterator[aeenc.Channel]:
    """Serves a fake, and connects to it; `options` are those of the channel."""
    async with serving(register, servicer, port) as bound:
        channel = aeenc.Channel(f"127.0.0.1:{bound}", **{"timeout_s": 5, **options})
        yield channel
        await channel.close()


async def refuse(context: Any, error: errors.AeencError) -> None:
    """Ends a call with an error and all that it carries, as a service does."""
    trailer = ((status.DETAILS_KEY, status.details_of(error)),)
    await context.abort(status.code_of(error), status.message_of(error), trailer)


@dataclass
class SamplerWorld:
    """The fakes, and how to start samplers over them."""

    index: FakeIndex
    oracle: FakeOracle
    settings: dict[str, Any]

    def configure(self, oracle: dict[str, Any] | None = None, **changes: Any) -> SamplerSettings:
        """Settings of a sampler; `oracle` changes those of the oracle `fake`."""
        oracles = {"fake": {**self.settings["oracles"]["fake"], **(oracle or {})}}
        return SamplerSettings(**{**self.settings, "oracles": oracles, **changes})

    @asynccontextmanager
    async def sampler(self, **changes: Any) -> AsyncIterator[aeenc.SamplerClient]:
        """A running sampler's client."""
        server: GrpcServer = build(self.configure(**changes))
        async with server:
            client = aeenc.SamplerClient(aeenc.Channel(f"127.0.0.1:{server.port}"))
            await ready(client)
            yield client
            await client.channel.close()


@asynccontextmanager
async def answered_by(world: SamplerWorld, oracle: aeenc.Oracle, **settings: Any) -> AsyncIterator[aeenc.SamplerClient]:
    """A sampler whose oracle `fake` is this one of a user."""
    served = await oracle.start("127.0.0.1:0")
    try:
        async with world.sampler(oracle={"target": f"127.0.0.1:{served.port}", **settings}) as sampler:
            yield sampler
    finally:
        await served.stop(0)


@asynccontextmanager
async def small_world(redis_url: str, namespace: str, index: FakeIndex | None = None) -> AsyncIterator[SamplerWorld]:
    """The fakes at work, and the settings of samplers over them."""
    index, oracle = index or FakeIndex(), FakeOracle()
    async with (
        serving(index_pb2_grpc.add_IndexServiceServicer_to_server, index) as index_port,
        serving(oracle_pb2_grpc.add_OracleServiceServicer_to_server, oracle) as oracle_port,
    ):
        fake = {
            "target": f"127.0.0.1:{oracle_port}",
            "timeout_s": 5.0,
            "max_attempts": 3,
            "backoff_s": 0.02,
            "patience_s": 0.0,
        }
        settings = {
            "port": 0,
            "redis_url": redis_url,
            "namespace": namespace,
            "index_target": f"127.0.0.1:{index_port}",
            "poll_s": 0.05,
            "lease_s": 1.0,
            "oracles": {"fake": fake},
        }
        yield SamplerWorld(index, oracle, settings)


async def ready(client: aeenc.SamplerClient) -> None:
    """Waits until a sampler answers its calls."""
    [run async for run in client.list_runs()]


PairSet = set[tuple[str, str, str]]


def brute_force(
    hypotheses: Iterable[tuple[str, str]] = HYPOTHESES,
    *,
    k: int = 6,
    max_depth: int = 8,
    max_nodes: int = 10**9,
    splits: Iterable[str] = (),
    decides: Callable[[str, str], bool] = explains,
    may: Callable[[str, int], bool] = lambda query, number: True,
) -> PairSet:
    """Algorithm 2 from its definition: tree after tree, node after node, one candidate at a time."""
    seen: dict[tuple[str, str], bool] = {}
    for _, hypothesis in hypotheses:
        visited, queue, judged = {hypothesis}, [(hypothesis, 0, ())], 0
        while queue and judged < max_nodes:
            query, depth, path = queue.pop(0)
            judged += 1
            looked_up = nearest(query, FACTS, splits)
            accessible = [text for _, text, _ in looked_up if may(query, int(text.removeprefix("fact ")))]
            found = [premise for premise in accessible if premise not in path]
            for premise in found[:k]:
                if (query, premise) not in seen:
                    seen[query, premise] = decides(query, premise)
                if seen[query, premise] and not is_leaf(premise) and premise not in visited and depth < max_depth:
                    visited.add(premise)
                    queue.append((premise, depth + 1, (*path, query)))
    return {(query, premise, "+" if good else "-") for (query, premise), good in seen.items()}


async def pair_set(client: aeenc.SamplerClient, run_id: str, signs: str = "+-") -> PairSet:
    """The pairs that a run has recorded with one of the signs `+-?` (`?`: skipped); every pair once."""
    listed = [(p.query, p.premise, " +-?"[p.sign]) async for p in client.list_pairs(run_id)]
    assert len(listed) == len(set(listed)), "a pair stands twice in the log"
    return {pair for pair in listed if pair[2] in signs}


async def finish(client: aeenc.SamplerClient, **config: Any) -> sampler_pb2.Run:
    """Starts a run over HYPOTHESES and waits for its end."""
    hypotheses = config.pop("hypotheses", HYPOTHESES)
    fields = {"corpus": "science", "oracle": "fake", "k": 6, **config}
    run = await client.start_run(hypotheses, **fields)
    return await asyncio.wait_for(client.wait(run.id), 40)


async def failed(client: aeenc.SamplerClient, *told: str, **config: Any) -> sampler_pb2.Run:
    """Starts a run as `finish` does; it fails, and its error says all of this."""
    run = await finish(client, **config)
    assert run.state == types_pb2.WORK_STATE_FAILED
    assert [one for one in told if one not in run.error] == [], run.error
    return run


async def resumed(client: aeenc.SamplerClient, run_id: str) -> sampler_pb2.Run:
    """Resumes a run and waits for its end."""
    await client.resume(run_id)
    return await asyncio.wait_for(client.wait(run_id), 40)


@asynccontextmanager
async def staffed(
    world: SamplerWorld, changes: Mapping[str, Any] | None = None, **queue: Any
) -> AsyncIterator[tuple[aeenc.PeopleClient, aeenc.SamplerClient]]:
    """A sampler with the queue `team`; `changes` are those of its other settings."""
    async with world.sampler(queues={"team": {**QUEUE, **queue}}, **(changes or {})) as sampler:
        yield aeenc.PeopleClient(sampler.channel), sampler


@asynccontextmanager
async def at_work(
    world: SamplerWorld,
    hypotheses: int = 2,
    *,
    run: Mapping[str, Any] | None = None,
    changes: Mapping[str, Any] | None = None,
    **queue: Any,
) -> AsyncIterator[tuple[aeenc.PeopleClient, aeenc.SamplerClient, str]]:
    """A run of some hypotheses for the people of `staffed`. Its trees do not grow, unless `run` lets them."""
    async with staffed(world, changes, **queue) as (people, sampler):
        roots = [(f"tree-{n}", f"hypothesis {n}") for n in range(hypotheses)]
        config = {"corpus": "science", "oracle": "team", "k": 4, "max_depth": 0, **(run or {})}
        started = await sampler.start_run(roots, **config)
        await eventually(lambda: tasks(people, started.id), is_so=lambda found: len(found) == hypotheses)
        yield people, sampler, started.id


async def take(people: aeenc.PeopleClient, name: str, run_id: str = "", hypothesis_id: str = "") -> values.Lease:
    """A lease on a task, once one waits. Which of several it is, is promised only for one of a hypothesis."""
    [lease] = await eventually(lambda: people.lease(name, run_id=run_id, hypothesis_id=hypothesis_id))
    return lease


async def tasks(people: aeenc.PeopleClient, run_id: str, **which: Any) -> list[values.JudgedTask]:
    """A run's tasks, or those of one state or for one person."""
    return [task async for task in people.list_tasks(run_id, **which)]


async def pairs(sampler: aeenc.SamplerClient, run_id: str) -> list[types_pb2.Pair]:
    return [pair async for pair in sampler.list_pairs(run_id)]

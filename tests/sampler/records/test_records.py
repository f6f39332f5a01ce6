"""The records in Redis: a node is committed once, by the sampler that holds the run alone; run labels come and go."""

import asyncio
import json
import re
from contextlib import aclosing
from dataclasses import make_dataclass, replace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from pydantic import TypeAdapter

import aeenc
from aeenc import errors
from aeenc.oracle import EXPLAINS, REFUSES, Candidate, Verdict
from aeenc.v1 import registry_pb2_grpc, sampler_pb2, sampler_pb2_grpc, types_pb2
from aeenc.values import NegativeFilter, RunConfig
from services.sampler.acs.algorithm import (
    ADDED,
    AcceptedPremise,
    Amendment,
    Growth,
    Known,
    Node,
    NodeAnswer,
    NodeRound,
    Tree,
    known_by,
)
from services.sampler.execution import sampling
from services.sampler.execution.run_worker import RunStopped, RunWorker
from services.sampler.records.keys import RunKeys
from services.sampler.records.node_store import NodeCommit, NodeStore
from services.sampler.records.pair_log import PairLog
from services.sampler.records.run_store import RunStore
from services.sampler.records.runs import Hypothesis, Run
from services.sampler.settings import OracleSettings
from services.store.life_cycles import LIVE
from services.store.redis import WorkLease
from services.store.requests import Request
from support.waiting import eventually
from support.worlds.people_world import verdict
from support.worlds.sampler_world import (
    HYPOTHESES,
    QUEUE,
    FakeRegistry,
    SamplerWorld,
    at_work,
    brute_force,
    finish,
    pair_set,
    serving,
    staffed,
    take,
)

TREE = Tree(0, "tree-0", [Node(0, "hypothesis 0")])
FOUND, EXTRA = Candidate("p1", "fact 1", 1, 0.1 + 0.2), Candidate("p9", "fact 9", ADDED, 0.0)
ROUND = NodeRound(TREE, TREE.nodes[0]).with_nearest([FOUND], 1, "version-1")
ANSWER = NodeAnswer(
    "0-0",
    {"p1": verdict("p1", EXPLAINS), "p9": verdict("p9", Verdict(EXPLAINS, leaf=True))},
    "ann",
    added=(EXTRA,),
    written=(AcceptedPremise("", "so", ADDED, leaf=False, author="ann"),),
)
OUTCOME = ROUND.outcome(ANSWER)
COMMIT = NodeCommit(ROUND, OUTCOME, ANSWER, TREE.judged(0, OUTCOME.result))


class Stores:
    """The stores over one connection, and a run that waits with a lease for `me`."""

    def __init__(self, redis: Any, keys: RunKeys, run_id: str) -> None:
        self.redis, self.keys, self.run_id = redis, keys, run_id
        self.run: Run
        self.runs, self.nodes, self.pairs = RunStore(redis, keys), NodeStore(redis, keys), PairLog(redis, keys)

    async def take_over(self, owner: str) -> WorkLease:
        lease = self.runs.cycles.lease(self.run_id, owner, 30)
        assert await lease.renew()
        taken = await self.runs.cycles.transition(self.run_id, LIVE, "RUNNING", owner=owner, fields={"worker": owner})
        assert taken == "OK"
        return lease


@pytest.fixture
async def stores(world: SamplerWorld, redis: Any, keys: RunKeys) -> Stores:
    async with world.sampler(max_active_runs=1, poll_s=60.0) as client:
        await client.channel.unary(client._stub.ListRuns, sampler_pb2.ListRunsRequest())
        world.oracle.delay_s = 60
        run = await client.start_run(HYPOTHESES, corpus="science", oracle="fake", k=6)
        await world.oracle.called(1)
    stores = Stores(redis, keys, run.id)
    stores.run = await stores.runs.get(run.id)
    await stores.take_over("me")
    return stores


async def test_a_watch_shows_the_version_that_a_run_follows_since_it_began(stores: Stores):
    events = stores.runs.cycles.watch(stores.run_id, 0)
    async with aclosing(events):
        _, seen = await anext(events)
        assert seen.version == stores.run.model_version
        assert await stores.runs.follow(stores.run_id, "newer")
        await stores.nodes.commit(stores.run, "me", [COMMIT])
        async for _, seen in events:
            if seen.progress.nodes_judged:
                break
        assert seen == await stores.runs.get(stores.run_id)
        assert seen.version == "newer"


async def test_committing_a_node_again_changes_nothing(stores: Stores):
    nodes, run_id = stores.nodes, stores.run_id
    assert await nodes.commit(stores.run, "me", [COMMIT]) == ["OK"]
    before = await stores.runs.get(run_id)
    assert await nodes.commit(stores.run, "me", [COMMIT]) == ["DONE"]
    assert await stores.runs.get(run_id) == before
    assert (before.progress.positives, before.progress.judgements, before.progress.nodes_judged) == (2, 1, 1)
    assert [pair.seq for pair in (await stores.pairs.page(run_id, 0, 10, None))[0]] == [1, 2]
    [tree] = await nodes.trees(run_id, [0])
    assert tree.results == {0: OUTCOME.result}
    assert await nodes.answers(run_id, ["hypothesis 0", "fact 1"]) == [OUTCOME.known, Known()]


async def test_an_answer_that_comes_after_an_amendment_records_no_pair_of_what_was_amended(stores: Stores):
    """Whoever has amended it: only an answer that itself amends what was known replaces it."""
    amended = [
        replace(stores.run.pair("hypothesis 0", one, Verdict(REFUSES), node_id="1-0", annotator="bob"), amended=True)
        for one in (FOUND, EXTRA)
    ]
    quoted = replace(amended[0], query='says "sign":"POSITIVE","amended":true', amended=False)
    assert await stores.pairs.add(stores.run_id, [*amended, quoted], Request("", "", {}))
    known = Known({"p9": known_by(Verdict(REFUSES), EXTRA)})
    commit = COMMIT._replace(round=replace(ROUND, known=known))
    assert await stores.nodes.commit(stores.run, "me", [commit]) == ["OK"]
    found, _ = await stores.pairs.page(stores.run_id, 0, 10, None)
    assert [(pair.premise_id, pair.sign, pair.annotator, pair.amended) for pair in found] == [
        ("p1", "NEGATIVE", "bob", True),
        ("p9", "NEGATIVE", "bob", True),
        ("p1", "NEGATIVE", "bob", False),
        ("p9", "POSITIVE", "ann", True),
    ]
    assert [pair.seq for pair in found] == [1, 2, 3, 4]
    progress = (await stores.runs.get(stores.run_id)).progress
    assert (progress.positives, progress.negatives) == (1, 3)
    [last, none] = await stores.nodes.amended(stores.run_id, ["hypothesis 0", quoted.query])
    assert ({name: pair.explains for name, pair in last.items()}, none) == ({"p1": False, "p9": True}, {})


async def test_advancing_a_tree_again_changes_nothing(stores: Stores):
    child, written = Node(1, "fact 1", "p1", 0, 1), Node(2, "so", "", 0, 1, "ann")
    step = (TREE, [child, written])
    await stores.nodes.commit(stores.run, "me", [COMMIT])
    assert await stores.nodes.advance(stores.run_id, "me", [step]) == ["OK"]
    assert await stores.nodes.advance(stores.run_id, "me", [step]) == ["DONE"]
    [tree] = await stores.nodes.trees(stores.run_id, [0])
    assert (tree.depth, tree.nodes[1:], tree.pending()) == (1, [child, written], [child, written])
    last = (replace(TREE, depth=1), [])
    assert await stores.nodes.advance(stores.run_id, "me", [last, last]) == ["OK", "DONE"]
    assert (await stores.runs.get(stores.run_id)).progress.trees_done == 1


async def test_a_level_that_is_opened_or_closed_late_leaves_a_tree_that_has_grown_again_alone(stores: Stores):
    nodes, run_id, child = stores.nodes, stores.run_id, Node(1, "fact 1", "p1", 0, 1)
    await nodes.commit(stores.run, "me", [COMMIT])
    assert await nodes.advance(run_id, "me", [(TREE, [child])]) == ["OK"]
    amended = replace(OUTCOME.result, accepted=())
    assert await nodes.grow(run_id, "me", TREE, Growth(0, amended, (Node(2, "new", "p2", 0, 1),), 0)) == ["OK"]
    before = await stores.runs.get(run_id)
    late = replace(TREE, depth=1)
    assert await nodes.advance(run_id, "me", [(late, [Node(3, "late", "p3", 1, 2)]), (late, [])]) == ["DONE", "DONE"]
    [tree] = await nodes.trees(run_id, [0])
    assert (tree.depth, len(tree.nodes), await nodes.is_finished(run_id, 0)) == (0, 3, False)
    assert await stores.runs.get(run_id) == before


async def test_nodes_that_are_committed_together_wait_for_the_disk_once(stores: Stores):
    """Redis waits for it at the end of a transaction; else after each command, or each 16 KiB of them."""
    nodes = [Node(place, f"fact {place}", "p1", 0, 1) for place in range(1, 9)]
    tree = replace(TREE, nodes=[*TREE.nodes, *nodes])
    commits = [NodeCommit(replace(ROUND, tree=tree, node=node), OUTCOME, ANSWER) for node in nodes]

    async def counted() -> list[int]:
        stats = await stores.redis.info("commandstats")
        return [stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("exec", "eval")]

    before = await counted()
    assert await stores.nodes.commit(stores.run, "me", commits) == ["OK"] * 8
    assert [now - then for now, then in zip(await counted(), before, strict=True)] == [1, 8]


async def test_only_the_holder_of_the_lease_writes_and_only_while_the_run_is_live(stores: Stores):
    runs, nodes, run_id = stores.runs, stores.nodes, stores.run_id
    assert not await runs.cycles.lease(run_id, "another", 30).renew()
    assert await nodes.commit(stores.run, "another", [COMMIT]) == ["LOST"]
    assert await nodes.advance(run_id, "another", [(TREE, [])]) == ["LOST"]
    assert await runs.cycles.transition(run_id, LIVE, "SUCCEEDED", owner="another") == "LOST"
    assert await runs.cycles.transition(run_id, LIVE, "CANCELLED") == "OK"
    assert await nodes.commit(stores.run, "me", [COMMIT]) == ["STOPPED"]
    assert (await stores.pairs.page(run_id, 0, 10, None))[0] == []


async def test_a_worker_has_its_lease_again_unless_another_has_worked_meanwhile(stores: Stores):
    """It was silent for so long that its lease ran out, and knows the trees as they were before that."""
    mine, key = stores.runs.cycles.lease(stores.run_id, "me", 30), stores.keys.lease(stores.run_id)
    assert await mine.renew()
    await stores.redis.delete(key)
    assert await mine.renew(), "nobody has worked on it"
    await stores.redis.delete(key)
    await (await stores.take_over("another")).release()
    assert not await mine.renew()
    assert await stores.nodes.commit(stores.run, "me", [COMMIT]) == ["LOST"]
    assert await stores.nodes.advance(stores.run_id, "me", [(TREE, [])]) == ["LOST"]
    assert await stores.runs.cycles.transition(stores.run_id, LIVE, "FAILED", owner="me") == "LOST"
    await stores.take_over("me")
    assert await stores.nodes.commit(stores.run, "me", [COMMIT]) == ["OK"]


async def test_a_worker_whose_run_another_has_worked_on_acknowledges_no_amendment(stores: Stores):
    """Nor one that changes nothing in its own trees: they may lack what a successor's have."""
    await stores.nodes.commit(stores.run, "me", [COMMIT])
    oracle, retrieval, mine = AsyncMock(), AsyncMock(), await stores.take_over("me")
    oracle.amended.return_value = [Amendment("0-0", OUTCOME.result.accepted, "task", 1)]
    oracle.settings = OracleSettings(target="unused:1")
    retrieval.barred.return_value = frozenset()
    run = await stores.runs.get(stores.run_id)
    worker = RunWorker(run, mine, stores.runs, stores.nodes, retrieval, oracle, 1)
    await worker._grow()
    assert oracle.grown.call_count == 1
    await stores.redis.delete(stores.keys.lease(stores.run_id))
    await (await stores.take_over("another")).release()
    mine._sure_until = 0.0  # as after a silence longer than its term
    with pytest.raises(RunStopped):
        await worker._grow()
    assert oracle.grown.call_count == 1


async def test_every_record_of_a_run_names_its_format_and_stays(stores: Stores):
    await stores.nodes.commit(stores.run, "me", [COMMIT])
    prefix = stores.keys.record(stores.run_id).removesuffix("record")
    keys = [key async for key in stores.redis.scan_iter(f"{prefix}*")]
    assert {key.removeprefix(prefix) for key in keys} >= {"record", "events", "pairs", "hypotheses", "open", "answers"}
    for key in keys:
        assert key.startswith("aeenc:")
        assert ":1:run:" in key
        if not key.endswith(":lease"):
            assert await stores.redis.ttl(key) == -1, key
    assert (await stores.redis.hget(f"{prefix}record", "format_version")) == "1"


@pytest.mark.parametrize("has_ended", [False, True])
async def test_the_label_of_a_run_names_the_version_that_it_follows_unless_it_has_ended_meanwhile(
    world: SamplerWorld, monkeypatch: pytest.MonkeyPatch, has_ended: bool
):
    registry = FakeRegistry()
    async with (
        serving(registry_pb2_grpc.add_RegistryAdminServiceServicer_to_server, registry) as port,
        at_work(world, 1, changes={"trainer_target": f"127.0.0.1:{port}"}) as (people, _, run_id),
    ):
        world.index.stable = "version-2"
        if has_ended:
            monkeypatch.setattr(RunStore, "follow", AsyncMock(return_value=False))
        await people.retrieve_again(run_id, "ann")
        moved_to = ["version-1", "version-2", *([""] if has_ended else [])]
        assert registry.moves == [(f"run-{run_id}", version) for version in moved_to]


@pytest.mark.slow
async def test_a_registry_that_is_away_does_not_stop_a_run(world: SamplerWorld):
    async with world.sampler(trainer_target="127.0.0.1:1") as client:
        run = await finish(client)
        assert run.state == types_pb2.WORK_STATE_SUCCEEDED
        assert await pair_set(client, run.id) == brute_force()


async def test_a_request_id_of_an_import_is_not_taken_for_other_pairs(world: SamplerWorld):
    one, other = (
        types_pb2.Pair(query=query, premise="fact 1", premise_id="p1", sign=types_pb2.PAIR_SIGN_POSITIVE)
        for query in ("q", "r")
    )
    async with world.sampler() as client:
        first = await client.import_pairs("science", [one], request_id="i1")
    async with world.sampler() as client:
        assert await client.import_pairs("science", [one], request_id="i1") == first
        for corpus, pairs, problem in (
            ("science", [other], "with pairs '1 pairs .*', now with '1 pairs "),
            ("science", [one, other], "with pairs '1 pairs .*', now with '2 pairs "),
            ("art", [one], "with corpus 'science', now with 'art'"),
        ):
            with pytest.raises(errors.AlreadyExists, match=problem):
                await client.import_pairs(corpus, pairs, request_id="i1")


async def test_a_run_is_resumed_once_for_a_request_id(world: SamplerWorld):
    async with world.sampler(queues={"team": QUEUE}) as client:
        run = await client.start_run([("t", "hypothesis 1")], corpus="science", oracle="team", idempotency_key="k")
        await client.cancel(run.id, request_id="c1")
        resume = sampler_pb2.ResumeRunRequest(run_id=run.id, request_id="r1")
        stub = sampler_pb2_grpc.SamplerServiceStub(client.channel.grpc)
        await client.channel.unary(stub.ResumeRun, resume)
        await client.cancel(run.id, request_id="c2")
        again = (await client.channel.unary(stub.ResumeRun, resume)).run
        assert again.state == types_pb2.WORK_STATE_CANCELLED
        with pytest.raises(errors.AlreadyExists, match="with rpc 'CancelRun', now with 'ResumeRun'"):
            await client.channel.unary(stub.ResumeRun, sampler_pb2.ResumeRunRequest(run_id=run.id, request_id="c1"))


def test_a_start_is_the_same_for_a_later_release_with_further_options(monkeypatch: pytest.MonkeyPatch):
    config, roots = RunConfig(corpus="science", negative_filter=NegativeFilter()), [Hypothesis("t", "hypothesis 1")]
    before = sampling._fingerprint(config, roots)
    more: Any = [
        make_dataclass("Later", [("mood", str, "")], bases=(one,), frozen=True) for one in (RunConfig, Hypothesis)
    ]
    monkeypatch.setattr(sampling, "_START", TypeAdapter(tuple[more[0], list[more[1]]]))
    config, roots = more[0](corpus="science", negative_filter=NegativeFilter()), [more[1]("t", "hypothesis 1")]
    assert sampling._fingerprint(config, roots) == before
    assert sampling._fingerprint(replace(config, mood="tired"), roots) != before
    assert sampling._fingerprint(replace(config, negative_filter=None), roots) != before


async def widen(redis: Any, keys: RunKeys, run_id: str) -> None:
    """Rewrites a run's records as a later minor release would: with something more in each."""

    def more(text: str) -> str:
        stored = json.loads(text)
        return json.dumps([*stored, "new"] if isinstance(stored, list) else {**stored, "new": 1})

    config = json.loads(await redis.hget(keys.record(run_id), "config"))
    config["model"]["new"] = config["new"] = 1
    await redis.hset(keys.record(run_id), mapping={"new": 1, "config": json.dumps(config)})
    for place, text in enumerate(await redis.lrange(keys.hypotheses(run_id), 0, -1)):
        await redis.lset(keys.hypotheses(run_id), place, more(text))
    for key in [keys.answers(run_id), *[keys.tree(run_id, tree) for tree in range(len(HYPOTHESES))]]:
        for name, text in (await redis.hgetall(key)).items():
            if name != "depth":
                await redis.hset(key, name, more(text))
    pairs = await redis.xrange(keys.pairs(run_id))
    await redis.delete(keys.pairs(run_id))
    for entry_id, values in pairs:
        await redis.xadd(keys.pairs(run_id), {"pair": more(values["pair"])}, id=entry_id)


async def test_what_a_later_minor_release_adds_to_a_run_is_passed_over(
    world: SamplerWorld, until_progress, redis: Any, keys: RunKeys
):
    world.oracle.delay_s = 0.05
    async with world.sampler(wave_nodes=2) as client:
        run = await client.start_run(HYPOTHESES, corpus="science", oracle="fake", k=6)
        await until_progress(client, run.id, nodes_judged=12)
    await widen(redis, keys, run.id)
    async with world.sampler() as client:
        assert (await client.wait(run.id)).state == types_pb2.WORK_STATE_SUCCEEDED
        assert await pair_set(client, run.id) == brute_force()
        await widen(redis, keys, run.id)
        assert [tree async for tree in client.export_trees(run.id)]
    assert await redis.hget(keys.record(run.id), "new") == "1"


@pytest.mark.parametrize(
    ("version", "refused"), [("2", "has format_version 2, this release reads up to 1"), ("", "has no format_version")]
)
async def test_a_run_of_a_newer_release_or_a_damaged_one_is_refused_by_name_and_disturbs_no_other(
    world: SamplerWorld, version: str, refused: str, redis: Any, keys: RunKeys
):
    async with world.sampler(queues={"team": QUEUE}) as client:
        newer = await client.start_run([("t", "hypothesis 1")], corpus="science", oracle="team")
    await redis.hset(keys.record(newer.id), "format_version", version)
    before = await redis.hgetall(keys.record(newer.id))
    async with world.sampler(queues={"team": QUEUE}) as client:
        for call in (client.get_run(newer.id), client.cancel(newer.id), client.delete(newer.id)):
            with pytest.raises((errors.FailedPrecondition, errors.DataLoss), match=f"run {newer.id} {refused}"):
                await call
        run = await finish(client)
        assert [one.id async for one in client.list_runs()] == [run.id]
        people = aeenc.PeopleClient(client.channel)
        assert (await people.lease("ann"), (await people.list_queues("ann"))[0].total.tasks) == ([], 0)
        assert await pair_set(client, run.id) == brute_force()
        assert await redis.hgetall(keys.record(newer.id)) == before
        for stored, held in (("1", 1), (version, 0), ("1", 1)):  # restored, damaged while it is worked on, restored
            await redis.hset(keys.record(newer.id), "format_version", stored)
            await eventually(lambda: redis.exists(keys.lease(newer.id)), is_so=held.__eq__)


async def test_a_task_of_a_newer_release_is_refused_by_name_and_disturbs_no_other_run(
    world: SamplerWorld, redis: Any, keys: RunKeys
):
    async def judge_another(client: aeenc.SamplerClient, hypothesis: str) -> None:
        """A further run, of one task that `ben` gets without naming the run."""
        options = {"corpus": "science", "oracle": "team", "k": 4, "max_depth": 0}
        run, people = await client.start_run([("t", hypothesis)], **options), aeenc.PeopleClient(client.channel)
        lease = await take(people, "ben")
        assert lease.run_id == run.id
        await people.submit(lease, [])
        assert (await client.wait(run.id)).state == types_pb2.WORK_STATE_SUCCEEDED

    async with at_work(world, hypotheses=1) as (people, client, newer):
        task_id = (await anext(people.list_tasks(newer))).task.task_id
        key = keys.task(newer, task_id)
        await redis.hset(key, "format_version", 2)
        before = await redis.hgetall(key)
        refused = f"task {task_id} of run {newer} has format_version 2, this release reads up to 1"
        for call in (anext(people.list_tasks(newer)), people.lease("ben", run_id=newer), people.get_agreement(newer)):
            with pytest.raises(errors.FailedPrecondition, match=refused):
                await call
        await judge_another(client, "hypothesis 2")
    async with world.sampler(queues={"team": QUEUE}) as client:  # which takes the first run over
        await judge_another(client, "hypothesis 3")
        assert (await client.get_run(newer)).state == types_pb2.WORK_STATE_RUNNING
    assert await redis.hgetall(key) == before


async def test_a_damaged_task_fails_its_run_by_name_and_disturbs_no_other(
    world: SamplerWorld, redis: Any, keys: RunKeys
):
    async with at_work(world, hypotheses=1) as (people, client, damaged):
        task_id = (await anext(people.list_tasks(damaged))).task.task_id
        await redis.hset(keys.task(damaged, task_id), "record", "{")
        [(_, last)] = await redis.xrevrange(keys.all_events, count=1)
        await redis.xadd(keys.all_events, {**last, "event": "SETTLED"}, id="2-0")  # somebody looks at it again
        failed = await asyncio.wait_for(client.wait(damaged), 20)
        assert failed.state == types_pb2.WORK_STATE_FAILED
        assert re.search(f"task {task_id} of run {damaged} cannot be read .*restore it from a backup", failed.error)
        with pytest.raises(errors.DataLoss, match=f"task {task_id} of run {damaged} cannot be read"):
            await anext(people.list_tasks(damaged))
        await client.start_run([("t", "hypothesis 2")], corpus="science", oracle="team", k=4, max_depth=0)
        await take(people, "ben")


async def test_an_event_of_a_kind_that_a_later_minor_release_adds_ends_no_watch(
    world: SamplerWorld, redis: Any, keys: RunKeys
):
    stream = keys.all_events
    async with staffed(world) as (people, client):
        run = await client.start_run(HYPOTHESES, corpus="science", oracle="team", k=6)
        assert (await anext(people.watch())).kind.name == "QUEUED"
        change = {"format_version": 1, "task": "t", "entry": '{"kind": 99, "mood": "tired"}'}
        await redis.xadd(keys.verdicts(run.id), change, id="1-0")
        assert (await anext(people.list_changes(run.id))).kind == 99
        [(_, fields)] = await redis.xrange(stream, count=1)
        await redis.delete(stream)
        await redis.xadd(stream, {**fields, "event": "YAWNED"}, id="1-0")
        assert (await anext(people.watch(from_seq=1))).kind.name == "UNSPECIFIED"

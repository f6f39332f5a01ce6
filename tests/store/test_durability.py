"""What is acknowledged: replicas that have it, answers that are lost, masters that become replicas, what is doubted."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from redis.asyncio import Redis

from aeenc import errors
from services.store.durability import AcknowledgedRedis, NotReplicated, Unanswered, assess
from services.store.redis import connect, key_prefix, run_script, unavailable_if_down
from services.store.registry import Registry
from services.store.requests import Request, Requests
from support.relay import Relay
from support.servers.replicated_redis import ReplicatedRedis
from support.waiting import until

PATIENCE_S = 4.5  # a replica on a busy machine may be late; the client itself waits for 5 s


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedRedis]:
    """A master and a replica, without Sentinel."""
    made = ReplicatedRedis(tmp_path_factory.mktemp("pair"), sentinels=0)
    yield made
    made.stop()


@pytest.fixture
async def client(pair: ReplicatedRedis) -> AsyncIterator[AcknowledgedRedis]:
    """A client of the master whose writes are acknowledged once the replica has them."""
    made = connect(f"redis://127.0.0.1:{pair.nodes[0].port}/0", replicas=1, replicas_s=PATIENCE_S)
    yield made
    await made.aclose()


@pytest.fixture
async def impatient(pair: ReplicatedRedis) -> AsyncIterator[Redis]:
    """Another one, for writes that must be refused."""
    made = connect(f"redis://127.0.0.1:{pair.nodes[0].port}/0", replicas=1, replicas_s=0.15)
    yield made
    await made.aclose()


async def _write(redis: Redis, kind: str) -> Any:
    if kind == "script":
        return await run_script(redis, "return redis.call('SET', KEYS[1], ARGV[1])", ["a"], ["1"])
    if kind == "script that writes nothing":  # it finds what another connection has written, and no replica may have it
        return await run_script(redis, "return redis.call('EXISTS', KEYS[1])", ["a"])
    if kind == "command":
        return await redis.set("a", "1")
    pipe = redis.pipeline(transaction=kind == "transaction")
    pipe.get("b")
    pipe.set("a", "1")
    return await pipe.execute()


@pytest.mark.parametrize("kind", ["command", "script", "script that writes nothing", "pipeline", "transaction"])
async def test_a_write_is_refused_while_no_replica_has_it_and_reads_go_on(
    pair: ReplicatedRedis, client: Redis, impatient: Redis, kind: str
) -> None:
    assert await _write(client, kind)
    replica = pair.nodes[1]
    replica.signal(signal.SIGSTOP)
    try:
        with pytest.raises(
            errors.Unavailable, match=r"cannot count: .*0 of 1 replicas had it after 0.15 s; start a rep"
        ):
            async with unavailable_if_down("count"):
                await _write(impatient, kind)
        assert await impatient.get("a") == "1", "the connection is out of step"
    finally:
        replica.signal(signal.SIGCONT)
    assert await _write(client, kind)


async def test_a_retry_is_not_answered_from_a_record_that_no_replica_has(
    pair: ReplicatedRedis, client: Redis, impatient: Redis
) -> None:
    requests, request = Requests(impatient, "n"), Request("r1", "Rpc", {})
    pair.nodes[1].signal(signal.SIGSTOP)
    try:
        for call in (requests.record(request, {"done": 1}), requests.answer(request, dict)):
            with pytest.raises(errors.Unavailable, match="replicas"):
                await call
    finally:
        pair.nodes[1].signal(signal.SIGCONT)
    assert (await Requests(client, "n").answer(request, dict) or {})["done"] == "1"


async def test_many_writes_in_one_batch_wait_once(pair: ReplicatedRedis, client: AcknowledgedRedis) -> None:
    pipe = client.pipeline(transaction=False)
    for number in range(200):
        pipe.set("a", number)
    with pair.nodes[0].client() as admin:
        before = admin.info("commandstats").get("cmdstat_wait", {"calls": 0})["calls"]
        await pipe.execute()
        reading = client.pipeline(transaction=False, settles=True)
        reading.get("a")
        assert await reading.execute() == ["199"]
        assert admin.info("commandstats")["cmdstat_wait"]["calls"] - before == 2


async def test_a_write_whose_answer_is_lost_is_not_sent_again(pair: ReplicatedRedis) -> None:
    async with Relay(f"127.0.0.1:{pair.nodes[0].port}") as relay:
        redis = connect(f"redis://{relay.address}/0")
        await redis.set("count", 0)
        relay.loses_answers = True
        with pytest.raises(Unanswered, match="nobody can say"):
            await redis.incr("count")
        relay.heal()
        assert await redis.get("count") == "1"
        assert await redis.incr("count") == 2
        await redis.aclose()


async def test_a_master_that_has_become_a_replica_is_left_for_its_successor(pair: ReplicatedRedis) -> None:
    first, second = pair.nodes
    async with Relay(f"127.0.0.1:{first.port}") as relay:  # a name that will stand for another server
        redis = connect(f"redis://{relay.address}/0")
        script = "return redis.call('SET', KEYS[1], ARGV[1])"
        for write in (lambda: redis.set("a", "2"), lambda: run_script(redis, script, ["a"], ["3"])):
            assert await write()
            with first.client() as admin, second.client() as other:
                other.replicaof("NO", "ONE")
                admin.replicaof("127.0.0.1", str(second.port))
                relay._target = f"127.0.0.1:{second.port}"
                assert await write(), "the old connection was kept"
                admin.replicaof("NO", "ONE")
                other.replicaof("127.0.0.1", str(first.port))
                relay._target = f"127.0.0.1:{first.port}"
                await until(lambda: ReplicatedRedis._replicas(first) == 1)
        await redis.aclose()


async def test_a_transaction_that_a_new_master_does_not_have_is_not_acknowledged(
    pair: ReplicatedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair.nodes
    async with Relay(f"127.0.0.1:{first.port}") as relay:  # a name that will stand for another server
        redis: Any = connect(f"redis://{relay.address}/0", replicas=1, replicas_s=PATIENCE_S)
        connected, asked = redis.connected, 0

        async def after_a_failover() -> Any:
            nonlocal asked
            asked += 1
            if asked == 2:  # the transaction is done; what it waits for is asked of the new master
                with first.client() as admin:
                    admin.replicaof("127.0.0.1", str(second.port))
                await until(lambda: ReplicatedRedis._replicas(second) == 1)
                relay._target = f"127.0.0.1:{second.port}"
                await redis.connection_pool.disconnect()
            return await connected()

        monkeypatch.setattr(redis, "connected", after_a_failover)
        try:
            with second.client() as other:
                other.replicaof("NO", "ONE")
            pipe = redis.pipeline(transaction=True)
            pipe.set("lost", "1")
            with pytest.raises(NotReplicated, match="another server has become the master"):
                await pipe.execute()
        finally:
            with first.client() as admin, second.client() as other:
                admin.replicaof("NO", "ONE")
                other.replicaof("127.0.0.1", str(first.port))
            await until(lambda: ReplicatedRedis._replicas(first) == 1)
        await redis.aclose()


async def test_what_acknowledgements_rest_on_is_doubted_with_its_remedy(pair: ReplicatedRedis, client: Redis) -> None:
    master, replica = pair.nodes
    plain = connect(f"redis://127.0.0.1:{master.port}/0")
    wrong = connect(f"redis://127.0.0.1:{replica.port}/0", replicas=2)
    with master.client() as admin:
        admin.config_set("min-replicas-to-write", 1)
        try:
            assert (await assess(client)).doubts == ()
        finally:
            admin.config_set("min-replicas-to-write", 0)
        [(cut_off, remedy)] = (await assess(client)).doubts
        assert "cut off from its replicas" in cut_off
        assert remedy.startswith("min-replicas-to-write 1")
        assert "REDIS_REPLICAS=1" in (await assess(plain)).doubts[0][1]
        assert "takes no writes" in (await assess(wrong)).doubts[0][0]
        more = connect(f"redis://127.0.0.1:{master.port}/0", replicas=2)
        assert "1 of 2 replica(s)" in (await assess(more)).doubts[0][0]
    for one in (plain, wrong, more):
        await one.aclose()


async def test_a_server_without_config_tells_by_info_what_it_can(pair: ReplicatedRedis) -> None:
    with pair.nodes[0].client() as admin:
        admin.execute_command("ACL", "SETUSER", "managed", "on", ">x", "~*", "+@all", "-config")
        admin.execute_command("ACL", "SETUSER", "mute", "on", ">x", "~*", "+ping")
        admin.config_set("appendonly", "no")
        admin.config_set("min-replicas-to-write", 1)
        try:
            for user, doubts, untold in (
                ("managed", 2, "tell appendfsync: "),
                ("mute", 0, "appendfsync and the rest: "),
            ):
                redis = connect(f"redis://{user}:x@127.0.0.1:{pair.nodes[0].port}/0")
                found = await assess(redis)
                assert (len(found.doubts), untold in found.untold) == (doubts, True), found
                await redis.aclose()
        finally:
            admin.config_set("appendonly", "yes")
            admin.config_set("min-replicas-to-write", 0)


async def test_no_key_is_written_for_the_sake_of_replicas(client: Redis, pair: ReplicatedRedis) -> None:
    registry = Registry(client, "bounded")
    for _ in range(3):
        await registry.heartbeat("encoder-1")
    keys = {key async for key in client.scan_iter(f"{key_prefix('bounded')}*")}
    assert keys == {registry._instances, registry._files}

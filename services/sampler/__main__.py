"""`python -m services.sampler`: the wiring of the sampler, nothing else."""

from __future__ import annotations

import asyncio

from aeenc.index import IndexClient
from aeenc.registry import RegistryClient
from aeenc.transport.channel import Channel
from aeenc.v1 import people_pb2_grpc, sampler_pb2_grpc
from services.corpus.holds import GenerationHolds
from services.kit.concurrency import cancel_all, every
from services.kit.limits import Limits
from services.kit.server import GrpcServer, run
from services.sampler.execution.holds import RunHolds
from services.sampler.execution.retention import LOOK_S, Retention
from services.sampler.execution.retrieval import Retrieval
from services.sampler.execution.runner import Runner
from services.sampler.execution.sampling import Sampling
from services.sampler.oracles.gateway import Gateway, OracleGateway, OracleMetrics
from services.sampler.people.controls import ControlItems
from services.sampler.people.gateway import PeopleGateway
from services.sampler.people.overview import Overview
from services.sampler.people.queue import TaskQueue
from services.sampler.people.task_store import TaskStore
from services.sampler.records.keys import RunKeys
from services.sampler.records.node_store import NodeStore
from services.sampler.records.pair_log import PairLog
from services.sampler.records.run_store import RunStore
from services.sampler.servicer import PeopleServicer, SamplerAdminServicer, SamplerServicer
from services.sampler.settings import SamplerSettings
from services.store.durability import warn_unless_durable
from services.store.redis import connect

MAX_K = 1000


def build(settings: SamplerSettings) -> GrpcServer:
    """The sampler, ready to start."""
    server = GrpcServer(settings)
    redis, keys = connect(settings.redis_url, **settings.redis()), RunKeys(settings.namespace)
    store, nodes, pairs = RunStore(redis, keys), NodeStore(redis, keys), PairLog(redis, keys)
    index = Channel(settings.index_target, **settings.peer())
    retrieval = Retrieval(IndexClient(index), settings.index_patience_s)
    registry = (
        RegistryClient(Channel(settings.trainer_target, **settings.peer(admin=True), timeout_s=5.0))
        if settings.trainer_target
        else None
    )
    admin = Channel(settings.index_target, **settings.peer(admin=True), timeout_s=5.0)
    holds = RunHolds(GenerationHolds(redis, keys, IndexClient(admin)), registry, store, retrieval)
    metrics = OracleMetrics(server.metrics)
    tasks = TaskStore(redis, keys)
    controls = ControlItems(tasks, settings.queues)
    queue = TaskQueue(
        store,
        nodes,
        tasks,
        settings.queues,
        controls,
        retrieval.premises,
        holds.follow,
        settings.message_bytes,
    )
    oracles: dict[str, Gateway] = {
        name: OracleGateway(name, oracle, metrics) for name, oracle in settings.oracles.items()
    }
    oracles |= {name: PeopleGateway(name, one, tasks, queue) for name, one in settings.queues.items()}
    runner = Runner(
        store,
        nodes,
        retrieval,
        oracles,
        holds,
        server.readiness,
        instance=settings.instance,
        wave_nodes=settings.wave_nodes,
        max_active_runs=settings.max_active_runs,
        max_people_runs=settings.max_people_runs,
        lease_s=settings.lease_s,
        poll_s=settings.poll_s,
    )
    limits = Limits(settings.message_bytes, settings.max_items, settings.text_bytes, k=MAX_K)
    sampling = Sampling(store, nodes, pairs, retrieval, holds, runner, oracles, limits, settings.max_hypotheses)
    overview = Overview(store, nodes, tasks, settings.queues, controls)
    retention = Retention(
        store,
        [nodes.keys_of, pairs.keys_of, tasks.keys_of],
        holds,
        instance=settings.instance,
        keep_s=settings.run_keep_s,
        kept=settings.runs_kept,
    )
    server.add(
        sampler_pb2_grpc.add_SamplerServiceServicer_to_server,
        SamplerServicer(sampling, server),
        "aeenc.v1.SamplerService",
    )
    server.add(
        people_pb2_grpc.add_PeopleServiceServicer_to_server,
        PeopleServicer(queue, overview, limits),
        "aeenc.v1.PeopleService",
    )
    server.add(
        sampler_pb2_grpc.add_SamplerAdminServiceServicer_to_server,
        SamplerAdminServicer(retention),
        "aeenc.v1.SamplerAdminService",
        admin=True,
    )

    repeated: list[asyncio.Task[None]] = []

    async def start() -> None:
        await warn_unless_durable(redis)
        repeated.append(asyncio.create_task(every(LOOK_S, retention.look, "old runs stay for now")))
        runner.start()  # the runner's first look at Redis makes the service ready

    server.on_start(start)
    stops = (redis.aclose, index.close, holds.close, runner.stop, lambda: cancel_all(repeated))
    for stop in stops:  # the last one is called first
        server.on_stop(stop)
    return server


if __name__ == "__main__":
    run(build, SamplerSettings.from_command_line())

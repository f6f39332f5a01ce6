"""All four services as operators run them, several processes of each, over one Redis, one store and tiny models."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from aeenc import PATIENT, AsyncClient
from aeenc.v1 import oracle_pb2_grpc, types_pb2
from services.launcher.processes import free_port
from services.store.objects import open_store
from services.store.redis import connect
from services.store.registry import Registry
from support.models.tiny_checkpoints import TinyCheckpoint, register, write_tiny_checkpoint
from support.servers.replicated_redis import ReplicatedRedis
from support.service_process import RedisProcess, ServiceProcess
from support.waiting import reached
from support.worlds.sampler_world import FakeOracle, serving
from support.worlds.trainer_world import FACTS, PAIRS, SIGNS, VALIDATION, Space, make_space, trainer_settings

NAMESPACE = "promises"
CORPUS = "science"
PREMISES = [types_pb2.Premise(id=f"f{n}", text=text, splits=("facts", "train")) for n, text in enumerate(FACTS)]
QUEUES = {"team": {"undo_s": 3600.0, "first_lease_s": 600.0, "min_lease_s": 600.0}}
PACE = {"lease_s": 2.0, "poll_s": 0.2}
JOB = {"corpus": CORPUS, "split": "train", "learning_rate": 1e-3, "batch_size": 8}
SERVICES = ("encoder", "index", "sampler", "trainer")
ONE_EACH = dict.fromkeys(SERVICES, 1)

Settings = Mapping[str, Mapping[str, Any]]  # by service, or by process


@dataclass
class Fleet:
    """The processes by service, and what they share. A process that is killed is started again by `restart`."""

    home: Path
    redis: Any  # a RedisProcess or a ReplicatedRedis
    space: Space
    processes: dict[str, list[ServiceProcess]]
    oracle: FakeOracle
    oracle_target: str
    artifacts_url: str = ""
    versions: list[TinyCheckpoint] = field(default_factory=list)  # of the space, registered by `add_version`
    seeds: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def all(self) -> Iterator[ServiceProcess]:
        """Every process of a service."""
        for processes in self.processes.values():
            yield from processes

    def targets(self) -> dict[str, str]:
        """The addresses of each service's processes, as callers write them."""
        return {name: ",".join(one.target for one in found) for name, found in self.processes.items()}

    def client(self, **options: Any) -> AsyncClient:
        """A client of all processes that waits for those that restart."""
        return AsyncClient(**{**self.targets(), "timeout_s": 30.0, "retry": PATIENT, **options})

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Redis]:
        """A connection to the Redis of all."""
        redis = connect(self.redis.url)
        try:
            yield redis
        finally:
            await redis.aclose()

    async def start(self) -> None:
        """Starts every process. The trainers go first: they make the label that encoders wait for."""
        for service in ("trainer", "encoder", "index", "sampler"):
            for process in self.processes[service]:
                process.start()
            await asyncio.gather(*(process.ready() for process in self.processes[service]))

    async def stop(self) -> None:
        """Stops every process of a service."""
        await asyncio.gather(*(process.stop() for process in self.all()))

    async def build(self, corpus: str = CORPUS) -> str:
        """Builds and activates the facts as a corpus. Returns the generation."""
        async with self.client() as client:
            return str((await client.index.build(corpus, PREMISES)).id)

    async def import_pairs(self) -> str:
        """Puts the judged pairs of the facts into the log. Returns the run."""
        pairs = [
            types_pb2.Pair(query=p.query, premise_id=p.premise_id, premise=p.premise, sign=SIGNS[p.sign]) for p in PAIRS
        ]
        async with self.client() as client:
            return str((await client.sampler.import_pairs(CORPUS, pairs)).run_id)

    async def add_version(self) -> TinyCheckpoint:
        """Makes a query encoder of the space and registers it, as a finished job would."""
        own = {"seed": next(self.seeds), "base_version": self.space.version, "space_id": self.space.space_id}
        made = await asyncio.to_thread(write_tiny_checkpoint, self.space.store, **own)
        open_store(self.space.store.root, self.artifacts_url).push("checkpoints", made.version)
        async with self.store() as redis:
            await register(Registry(redis, NAMESPACE), made)
        self.versions.append(made)
        return made


def job_fields(run_id: str, **fields: Any) -> dict[str, Any]:
    """Keywords of `start_job` for a job of a few seconds."""
    validation = [(query.text, query.gold) for query in VALIDATION]
    return {**JOB, "run_ids": [run_id], "validation": validation, **fields}


@asynccontextmanager
async def running_fleet(
    counts: Mapping[str, int] = ONE_EACH,
    *,
    settings: Settings | None = None,
    environment: Mapping[str, str] | None = None,
    start_redis: Callable[[Path], RedisProcess | ReplicatedRedis] = RedisProcess,
    artifacts_url: str = "",
) -> AsyncIterator[Fleet]:
    """Starts all; everything ends with the block. `environment` is that of every process.

    With `artifacts_url` every encoder and index has a directory of its own, as on hosts of their own.
    """
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        home = Path(scratch)
        oracle = FakeOracle()
        redis = await asyncio.to_thread(start_redis, home / "redis")
        space = make_space(home / "space")
        open_store(space.store.root, artifacts_url).push("checkpoints", space.version)
        async with serving(oracle_pb2_grpc.add_OracleServiceServicer_to_server, oracle) as port:
            more = {"counts": counts, "settings": settings, "environment": environment, "artifacts_url": artifacts_url}
            fleet = describe_fleet(home, redis, space, oracle, f"127.0.0.1:{port}", **more)
            try:
                await fleet.start()
                async with fleet.client() as client:
                    await reached(client.index.info)
                yield fleet
            except RuntimeError:
                for process in fleet.all():
                    print(process.name, process.log.read_text(errors="replace")[-2000:] if process.log.exists() else "")
                raise
            finally:
                await fleet.stop()
                redis.stop()


def describe_fleet(
    home: Path,
    redis: RedisProcess | ReplicatedRedis,
    space: Space,
    oracle: FakeOracle,
    oracle_target: str,
    *,
    counts: Mapping[str, int] = ONE_EACH,
    settings: Settings | None = None,
    environment: Mapping[str, str] | None = None,
    artifacts_url: str = "",
) -> Fleet:
    """Describes the processes, not yet started; each has its own port, log and state."""
    taken: set[str] = set()
    ports = {service: [_port(taken) for _ in range(count)] for service, count in counts.items()}
    targets = {name: ",".join(f"127.0.0.1:{port}" for port in found) for name, found in ports.items()}
    common = {"redis_url": redis.url, "namespace": NAMESPACE}
    gold = {"target": oracle_target, "max_attempts": 20, "timeout_s": 10.0}
    people = {"queues": QUEUES, "max_people_runs": 1000}
    peers = {f"{name}_target": targets[name] for name in SERVICES[:3]}
    by_service: dict[str, dict[str, Any]] = {
        "encoder": {**common, "artifacts_dir": space.store.root, "workers": 1, "poll_s": 1.0},
        "index": {"artifacts_dir": space.store.root, "encoder_target": targets["encoder"], "build_sync_s": 0.05},
        "sampler": {**common, **PACE, "index_target": targets["index"], "oracles": {"gold": gold}, **people},
        "trainer": {**PACE, **peers, "int8": False},
    }
    processes: dict[str, list[ServiceProcess]] = {}
    for service, found in ports.items():
        processes[service] = []
        for number, port in enumerate(found):
            name = f"{service}-{number}"
            own = {**by_service[service], **(settings or {}).get(service, {}), "port": port, "instance": name}
            if service == "trainer":
                own = {**trainer_settings(space, redis.url, NAMESPACE, home / name), **own}
            elif service == "encoder":
                own["state_dir"] = home / name
            if artifacts_url and service != "sampler":
                own["artifacts_url"] = artifacts_url
            if artifacts_url and service in ("encoder", "index"):
                own["artifacts_dir"] = home / f"{name}-artifacts"
            processes[service].append(ServiceProcess.of(service, home, name=name, environment=environment, **own))
    return Fleet(home, redis, space, processes, oracle, oracle_target, artifacts_url)


def _port(taken: set[str]) -> int:
    port = free_port(taken)
    taken.add(f"127.0.0.1:{port}")
    return port

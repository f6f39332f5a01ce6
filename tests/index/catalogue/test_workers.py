"""Several worker processes of one index on one port: they agree, are counted apart, and end together."""

from __future__ import annotations

import asyncio
import signal
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import psutil
import pytest
from pydantic import ValidationError

from aeenc import IndexClient
from aeenc.transport.channel import Channel
from aeenc.v1 import index_pb2, index_pb2_grpc
from aeenc.vectors import to_proto
from services.index.settings import IndexSettings
from services.launcher.processes import free_port
from support.service_process import ServiceProcess
from support.waiting import eventually, until
from support.worlds.index_world import SPACE, RunningEncoder, facts, vector_of

TWO = vector_of("ice melts")[None, :]
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
CONNECTIONS = 24  # of which the kernel gives each of two workers at least one, but once in eight million times


@pytest.fixture
def metrics_port() -> int:
    return free_port(set())


@pytest.fixture
def index(tmp_path: Path, encoder: RunningEncoder, metrics_port: int) -> ServiceProcess:
    (tmp_path / "token").write_text("of-the-encoder")
    return ServiceProcess.of(
        "index",
        tmp_path,
        serving_processes=2,
        peer_token_file=tmp_path / "token",
        artifacts_dir=tmp_path / "artifacts",
        encoder_target=encoder.target,
        instance="index",
        metrics_port=metrics_port,
        drain_s=2,
    )


@asynccontextmanager
async def connections(index: ServiceProcess) -> AsyncIterator[list[index_pb2_grpc.IndexServiceStub]]:
    """Stubs with a connection of their own each."""
    channels = [grpc.aio.insecure_channel(index.target, OWN_CONNECTION) for _ in range(CONNECTIONS)]
    yield [index_pb2_grpc.IndexServiceStub(channel) for channel in channels]
    for channel in channels:
        await channel.close()


async def both_serve(index: ServiceProcess) -> None:
    """Waits until both workers answer searches: a connection stays with the worker that was there when it was made."""
    await index.ready()

    async def serve() -> bool:
        request = index_pb2.IndexServiceGetInfoRequest()
        async with connections(index) as stubs:
            answers = [await stub.GetInfo(request, wait_for_ready=True) for stub in stubs]
        ready = {one.service.instance for one in answers if one.service.state == 2}  # SERVING
        return ready == {"index-0", "index-1"}

    await eventually(serve, 60.0)


async def served(stubs: list[index_pb2_grpc.IndexServiceStub]) -> list[str]:
    request = index_pb2.SearchRequest(corpus="science", space_id=SPACE, vectors=to_proto(TWO), k=3)
    return [(await stub.Search(request)).generation for stub in stubs]


def counted(port: int) -> float:
    name = 'aeenc_rpc_total{code="OK",method="/aeenc.v1.IndexService/Search"}'
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def workers_of(index: ServiceProcess) -> list[psutil.Process]:
    return [child for child in psutil.Process(index.pid).children() if "--worker" in child.cmdline()]


@pytest.mark.slow
async def test_what_one_worker_activates_all_serve_when_the_answer_comes_and_each_counts_its_own_calls(
    index: ServiceProcess, metrics_port: int
) -> None:
    async with index.running():
        await both_serve(index)
        client = IndexClient(Channel(index.target))
        async with connections(index) as stubs:
            for number in range(3, 8):
                built = await client.build("science", facts()[:number])
                assert set(await served(stubs)) == {built.id}
        await client.channel.close()
        counts = [await asyncio.to_thread(counted, port) for port in (metrics_port, metrics_port + 1)]
        assert sum(counts) == 5 * CONNECTIONS
        assert min(counts) > 0
        workers = workers_of(index)
        assert await index.stop() == 0
    assert not any(worker.is_running() for worker in workers)


@pytest.mark.slow
async def test_workers_end_together_when_one_dies_and_when_the_process_that_started_them_dies(
    index: ServiceProcess,
) -> None:
    index.start()
    await index.ready()
    workers = workers_of(index)
    assert len(workers) == 2
    index.process.send_signal(signal.SIGKILL)
    await until(lambda: not any(worker.is_running() for worker in workers))
    await index.restart()
    workers = workers_of(index)
    workers[1].kill()
    assert await asyncio.to_thread(index.process.wait, 10) == 1
    assert not workers[0].is_running()
    assert "a worker has ended" in index.log.read_text()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"host": "unix:/tmp/x"}, "AEENC_INDEX_SERVING_PROCESSES"),
        ({"backend": "milvus", "milvus_uri": "http://m:1"}, "AEENC_INDEX_SERVING_PROCESSES"),
        ({"device": "cuda"}, "AEENC_INDEX_DEVICE=cuda is for one serving process"),
    ],
)
def test_workers_that_cannot_share_are_refused_by_name(fields, told):
    with pytest.raises(ValidationError, match=told):
        IndexSettings(serving_processes=2, **fields)

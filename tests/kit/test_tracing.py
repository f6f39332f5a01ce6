"""Traces of real services: spans arrive at an OTLP receiver, and each is a child of what caused it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextvars import copy_context
from unittest.mock import Mock

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.util._once import Once

import aeenc
from aeenc import errors
from aeenc.calls.encoding import EncodeOptions
from aeenc.transport import tracing as sdk_tracing
from aeenc.v1 import types_pb2
from services.index.ranking.encoding import QueryEncoder
from services.kit import logs, tracing
from services.store.registry import Registry
from services.trainer.registry.checkpoints import Checkpoints
from support.models.tiny_checkpoints import register, write_tiny_checkpoint, write_tiny_cross_encoder_checkpoint
from support.servers.trace_receiver import TraceReceiver
from support.waiting import eventually
from support.worlds.light_fleet import LightFleet, light_fleet
from support.worlds.trainer_world import FACTS, PAIRS, SIGNS

__all__ = ["light_fleet"]

PROCESS = """
import os, signal, sys
from services.kit import tracing
from services.kit.server import GrpcServer, run
from services.kit.settings import ServiceSettings

def build(settings):
    server = GrpcServer(settings)
    async def end():
        os.kill(os.getpid(), signal.SIGTERM)
    async def end_run():
        with tracing.span("run"):
            pass
    server.on_start(end)
    server.on_stop(end_run)
    return server

run(build, ServiceSettings(trace_endpoint=sys.argv[1]))
"""
PREMISES = [types_pb2.Premise(id=f"f{n}", text=text, splits=["train"]) for n, text in enumerate(FACTS)]
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
async def receiver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TraceReceiver]:
    """A receiver of what this process records, as a service's process is set up."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    monkeypatch.setattr(tracing, "_tracer", trace.ProxyTracer("aeenc"))
    sdk_tracing._tracer.cache_clear()
    async with TraceReceiver().running() as receiver:
        end = tracing.configure(receiver.endpoint, 1.0, service="test", instance="test-1", version=aeenc.__version__)
        yield receiver
        await asyncio.to_thread(end)
    sdk_tracing._tracer.cache_clear()


@pytest.fixture
async def fleet(receiver: TraceReceiver, light_fleet: LightFleet, registry: Registry) -> LightFleet:
    """All four services, recorded, with a cross-encoder."""
    made = write_tiny_cross_encoder_checkpoint(light_fleet.store)
    await register(registry, made, label="stable")
    info = light_fleet.client.encoder.info
    await eventually(info, is_so=lambda told: made.version in {one.version for one in told.versions})
    return light_fleet


def rpc(service: str, method: str) -> str:
    return f"aeenc.v1.{service}Service/{method}"


async def test_a_call_that_is_cancelled_stays_so_and_its_span_says_it(receiver: TraceReceiver):
    metadata: list[tuple[str, str]] = []
    with pytest.raises(asyncio.CancelledError), sdk_tracing.traced(Mock(_method="/a/Cancelled"), metadata):
        raise asyncio.CancelledError
    [span] = await receiver.path("a/Cancelled")
    assert metadata[0][1].startswith(f"00-{span.trace}-{span.id}-")
    assert span.attributes["rpc.response.status_code"] == "CANCELLED"


async def test_one_trace_leads_through_build_retrieve_run_job_publication_and_swap(
    fleet: LightFleet, receiver: TraceReceiver, registry: Registry
):
    build, encode = rpc("IndexAdmin", "BuildGeneration"), rpc("Encoder", "EncodeStream")
    await fleet.client.index.build("science", PREMISES)
    await receiver.path(build, build, encode, encode)

    retrieve, score = rpc("Index", "Retrieve"), rpc("Encoder", "Score")
    encode = rpc("Encoder", "Encode")
    with tracing.span("a caller's own") as own:
        await fleet.client.index.retrieve("science", [FACTS[0]], k=3, rerank=5)
    path = await receiver.path("a caller's own", retrieve, retrieve, encode, encode)
    assert path[0].id == f"{own.get_span_context().span_id:016x}"
    assert [span.kind for span in path] == [1, 3, 2, 3, 2], "internal, client and server by turns"
    assert {span.service for span in path} == {"aeenc-test"}
    assert path[2].attributes["rpc.response.status_code"] == "OK"
    await receiver.path("a caller's own", retrieve, retrieve, score, score)

    run = await fleet.client.sampler.start_run([("h1", FACTS[1])], corpus="science", oracle="mine", k=2)
    assert (await fleet.client.sampler.wait(run.id)).state == types_pb2.WORK_STATE_SUCCEEDED
    start = rpc("Sampler", "StartRun")
    judged = await receiver.path(start, start, "run", rpc("Oracle", "Judge"))
    assert judged[2].attributes["aeenc.run_id"] == run.id
    await receiver.path(start, start, "run", retrieve, retrieve, encode, encode)

    pairs = [
        types_pb2.Pair(query=p.query, premise_id=p.premise_id, premise=p.premise, sign=SIGNS[p.sign]) for p in PAIRS
    ]
    imported = await fleet.client.sampler.import_pairs("science", pairs)
    job = await fleet.client.trainer.start_job(run_ids=[imported.run_id], corpus="science")
    async for _, seen in fleet.client.trainer.watch(job.id):
        if seen.state == types_pb2.WORK_STATE_RUNNING:
            break
    await fleet.client.trainer.cancel(job.id)  # what it learns is not the question here
    start = rpc("Trainer", "StartJob")
    [*_, of_job] = await receiver.path(start, start, "job")
    assert of_job.attributes["aeenc.job_id"] == job.id

    made = write_tiny_checkpoint(fleet.store, seed=7, base_version=fleet.base.version, space_id=fleet.base.space_id)
    with tracing.span("job", within=f"00-{of_job.trace}-{of_job.id}-01") as making:
        await Checkpoints(fleet.store, registry).register(made.version)
    await fleet.client.registry.publish(made.version, label="next", wait_s=10.0)
    publish = rpc("RegistryAdmin", "Publish")
    path = await receiver.path(publish, publish, "publish", "swap")
    assert path[3].attributes["aeenc.version"] == made.version
    assert path[2].links == (f"{making.get_span_context().span_id:016x}",), "which job made what is published"


async def test_spans_that_end_with_the_service_are_sent():
    async with TraceReceiver().running() as receiver:
        command = [sys.executable, "-c", PROCESS, receiver.endpoint]
        ended = await asyncio.to_thread(subprocess.run, command, timeout=60, check=False)
        assert ended.returncode == 0
        assert receiver.named("run")


async def test_texts_that_are_encoded_together_are_one_span_that_links_all_their_callers(
    fleet: LightFleet, receiver: TraceReceiver
):
    encoder = QueryEncoder(fleet.client.encoder)

    async def ask(number: int) -> str:
        with tracing.span(f"caller {number}") as own:
            await encoder.encode([FACTS[number]], EncodeOptions(space_id=fleet.base.space_id))
        return f"{own.get_span_context().span_id:016x}"

    await fleet.client.encoder.encode([FACTS[0]])  # once it serves
    callers = await asyncio.gather(*(ask(number) for number in range(4)))
    [_, together, *_] = await receiver.path("caller 0", "encode texts", encode := rpc("Encoder", "Encode"), encode)
    assert together.links == tuple(callers[1:])
    await ask(5)  # one sender serves all callers, one after another: the next is in its own trace
    await receiver.path("caller 5", encode, encode)
    await encoder.close()


@pytest.fixture
def log_settings() -> Iterator[None]:
    """Sets the log up again as it was before."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
    structlog.contextvars.clear_contextvars()


@pytest.mark.usefixtures("log_settings")
async def test_a_line_of_the_log_names_the_trace_and_the_span_of_its_call(receiver: TraceReceiver, capsys):
    logs.configure(log_format="json", log_level="info", service="test", instance="1")
    with tracing.span("work", within=CALLER):
        logs.get("test").info("in it")
    logs.get("test").info("beside it")
    inside, beside = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    [span] = await receiver.path("work")
    assert (inside["trace_id"], inside["span_id"]) == (CALLER.split("-")[1], span.id)
    assert span.parent == CALLER.split("-")[2]
    assert "trace_id" not in beside


def test_without_a_receiver_nothing_is_recorded_and_the_trace_of_a_caller_goes_on():
    def answer() -> None:
        call = tracing.begin_call("/aeenc.v1.IndexService/Retrieve", {"traceparent": CALLER})
        assert not call.is_recording()
        assert tracing.traceparent() == CALLER
        with tracing.span("inside"):
            assert tracing.traceparent() == CALLER
        tracing.end_call(call, "OK", "r1")

    copy_context().run(answer)


def test_a_caller_decides_whether_its_trace_is_recorded(receiver: TraceReceiver):
    with tracing.span("dropped", within=CALLER[:-1] + "0") as dropped, tracing.span("inside") as inside:
        assert (dropped.is_recording(), inside.is_recording()) == (False, False)
        assert tracing.traceparent().endswith("-00")
    assert receiver.named("dropped") == []


@pytest.mark.parametrize("endpoint", ["collector:4317", "ftp://collector"])
def test_an_endpoint_that_is_no_url_is_refused_by_its_value(endpoint: str):
    with pytest.raises(errors.InvalidArgument, match=f"'{endpoint}' is not a URL"):
        tracing.configure(endpoint, 1.0, service="test", instance="1", version="0")

"""SIGKILL in the middle of builds, activations and deletions. `make bench NAME=index-soak` kills hundreds of times."""

import asyncio
import signal
import subprocess
import sys

import pytest

from aeenc import Channel, IndexClient
from aeenc.v1 import types_pb2
from benchmarks.fleet.fleet import PREMISES, take_over
from benchmarks.harness.services import running_index
from benchmarks.index.crash import crash
from benchmarks.index.stand_in_encoder import StandInEncoder
from support.waiting import until


@pytest.mark.slow
async def test_nothing_acknowledged_is_lost_by_kills_and_nothing_half_built_is_served():
    report = await crash(6, seed=3, corpora=2)
    assert not report.wrong
    lost = (report.lost_premises, report.lost_generations, report.lost_activations, report.undone_deletions)
    assert (lost, report.corrupt, report.encoded_again) == ((0, 0, 0, 0), 0, 0)
    assert sum(report.kills.values()) == 6
    assert report.acknowledged_premises > 0
    assert report.broken["build"] > 0
    assert report.searches > 0


@pytest.mark.slow
async def test_a_caller_whose_machine_is_gone_does_not_keep_his_build_from_him():
    caller = """
import sys, time
import aeenc
from aeenc.v1 import types_pb2

def premises():
    yield from (types_pb2.Premise(id=f"p{n}", text=f"fact {n}") for n in range(600))
    print("sent", flush=True)
    time.sleep(60)

aeenc.connect(index=sys.argv[1]).index.build("science", premises(), request_id="r")
"""
    settings = {"build_sync_s": 0.02, "build_batch": 8, "ping_s": 0.5}
    async with StandInEncoder() as encoder, running_index(encoder_target=encoder.target, **settings) as index:
        command = [sys.executable, "-c", caller, index.process.target]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        await process.stdout.readline()
        process.send_signal(signal.SIGSTOP)  # its connection stays, and nobody is there
        try:
            premises = [types_pb2.Premise(id=f"p{n}", text=f"fact {n}") for n in range(600)]
            client = index.client()
            generation = await client.build("science", premises, request_id="r", timeout_s=15)
        finally:
            process.kill()
            await process.wait()
        assert generation.premises == 600
        await client.channel.close()


@pytest.mark.slow
async def test_the_sdk_goes_on_with_a_build_whose_index_was_killed():
    premises = [types_pb2.Premise(id=f"p{n}", text=f"fact {n}") for n in range(400)]
    reported: list[tuple[int, int]] = []
    settings = {"build_sync_s": 0.02, "build_batch": 8}
    async with (
        StandInEncoder(pause_s=0.005) as encoder,
        running_index(encoder_target=encoder.target, **settings) as index,
    ):
        client = IndexClient(Channel(index.process.target))
        build = asyncio.ensure_future(
            client.build("science", premises, request_id="r", on_progress=lambda *seen: reported.append(seen))
        )
        await until(lambda: any(encoded > 100 for _, encoded in reported), timeout_s=10)
        index.process.kill()
        assert not build.done(), "the index was killed too late to show anything"
        await index.process.restart()
        generation = await build
        assert (generation.premises, generation.active) == (400, True)
        listed = [(one.id, one.text) async for one in client.list_premises("science")]
        assert listed == [(one.id, one.text) for one in premises]
        assert sum(encoder.encoded.values()) < 400 + 100, "what was durable was encoded again"
        await client.channel.close()


@pytest.mark.slow
async def test_a_build_whose_replica_is_killed_goes_on_at_another():
    done = await take_over(PREMISES)
    assert done.is_whole
    assert done.again <= done.encoded / 4  # `make bench NAME=fleet` wants a tenth; beside other tests a sync is late

"""The blocking face of the SDK: the same methods and iterators without await, on one background loop a process."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

import aeenc
from aeenc import errors, vectors
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc


class Servicer(encoder_pb2_grpc.EncoderServiceServicer):
    """Answers vectors of ones, as many as there were texts."""

    open_streams = 0

    async def Encode(self, request: encoder_pb2.EncodeRequest, context: Any) -> encoder_pb2.EncodeResponse:
        if request.texts[0] == "slow":
            await asyncio.sleep(0.3)
        matrix = np.ones((len(request.texts), 2), np.float32)
        return encoder_pb2.EncodeResponse(model_version="v1", embeddings=vectors.to_proto(matrix))

    async def EncodeStream(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[encoder_pb2.EncodeStreamResponse]:
        self.open_streams += 1
        try:
            async for request in request_iterator:
                batch = await self.Encode(request.batch, context)
                yield encoder_pb2.EncodeStreamResponse(batch_seq=request.batch_seq, batch=batch)
        finally:
            self.open_streams -= 1

    async def GetInfo(self, request: Any, context: Any) -> encoder_pb2.EncoderServiceGetInfoResponse:
        raise NotImplementedError


@pytest.fixture
def served() -> Iterator[tuple[Servicer, str]]:
    """A server on a loop of its own, so that the test itself may block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    servicer = Servicer()

    async def start() -> tuple[Any, int]:
        server = grpc.aio.server()
        encoder_pb2_grpc.add_EncoderServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    async def stop(server: Any) -> None:
        await server.stop(0)

    server, port = asyncio.run_coroutine_threadsafe(start(), loop).result(5)
    yield servicer, f"127.0.0.1:{port}"
    asyncio.run_coroutine_threadsafe(stop(server), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


def test_a_method_blocks_and_returns_what_the_awaiting_one_returns(served: tuple[Servicer, str]) -> None:
    with aeenc.connect(encoder=served[1]) as client:
        encoded = client.encoder.encode(["a", "b"])
    assert encoded.model_version == "v1"
    assert np.array_equal(encoded.vectors, np.ones((2, 2)))


def test_an_async_iterator_becomes_an_iterator(served: tuple[Servicer, str]) -> None:
    with aeenc.connect(encoder=served[1]) as client:
        batches = client.encoder.encode_stream(["a"] * n for n in (1, 2, 3))
        assert [len(batch.vectors) for batch in batches] == [1, 2, 3]


def await_no_stream(servicer: Servicer) -> None:
    deadline = time.monotonic() + 4
    while servicer.open_streams:
        assert time.monotonic() < deadline, "the server still works on it"
        time.sleep(0.01)


def test_bulk_work_is_an_iterator_too_and_may_be_left_early(served: tuple[Servicer, str]) -> None:
    servicer, target = served
    with aeenc.connect(encoder=target) as client:
        batches = client.encoder.encode_all((f"text {n}" for n in range(10)), batch=4)
        assert [len(batch.vectors) for batch in batches] == [4, 4, 2]
        endless = client.encoder.encode_all("a" for _ in itertools.count())
        assert len(next(endless).vectors) == 128
        endless.close()
        await_no_stream(servicer)


def test_an_iterator_left_early_ends_the_call(served: tuple[Servicer, str]) -> None:
    servicer, target = served
    with aeenc.connect(encoder=target) as client:
        batches = client.encoder.encode_stream(["a"] for _ in range(1_000_000))
        assert len(next(batches).vectors) == 1
        assert servicer.open_streams == 1
        batches.close()
        await_no_stream(servicer)


def test_an_error_is_raised_in_the_calling_thread(served: tuple[Servicer, str]) -> None:
    with aeenc.connect(encoder=served[1], index="127.0.0.1:1", timeout_s=0.2) as client:
        with pytest.raises(errors.Unavailable, match=r"no service answers at 127\.0\.0\.1:1"):
            client.index.retrieve("science", ["a"])
        assert client.encoder.encode(["a"]).model_version == "v1"


def test_calls_of_several_threads_run_at_the_same_time(served: tuple[Servicer, str]) -> None:
    with aeenc.connect(encoder=served[1]) as client, ThreadPoolExecutor(8) as threads:
        client.encoder.encode(["a"])
        started = time.monotonic()
        answers = list(threads.map(lambda _: client.encoder.encode(["slow"]), range(8)))
        assert time.monotonic() - started < 8 * 0.3 / 2
    assert len(answers) == 8


async def test_it_works_inside_a_running_loop_where_blocking_is_wanted(served: tuple[Servicer, str]) -> None:
    with aeenc.connect(encoder=served[1]) as client:
        assert client.encoder.encode(["a"]).model_version == "v1"


def test_the_methods_are_those_of_the_awaiting_client_with_their_documentation() -> None:
    client = aeenc.connect()
    assert {"encode", "encode_stream", "info"} <= set(dir(client.encoder))
    assert "Embeds texts" in client.encoder.encode.__doc__
    assert "Embeds any number of batches" in client.encoder.encode_stream.__doc__
    with pytest.raises(AttributeError):
        _ = client.encoder.no_such_method
    client.close()


# In a process of its own: forking this one would copy pytest's threads and locks.
FORK = """
import os, sys
import aeenc
from aeenc import errors

client = aeenc.connect(encoder="127.0.0.1:1", timeout_s=0.1)
if os.fork() == 0:
    try:
        client.encoder.encode(["a"])
    except errors.FailedPrecondition as error:
        sys.stdout.write(error.message)
        sys.stdout.flush()
        os._exit(7)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""

FORK_BEFORE_USE = """
import os, sys
import aeenc
from aeenc import errors

if os.fork() == 0:
    try:
        aeenc.connect(encoder="127.0.0.1:1", timeout_s=0.1).encoder.encode(["a"])
    except errors.Unavailable:
        os._exit(7)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"}
    command = [sys.executable, "-c", script]
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False
    )


def test_use_after_a_fork_raises_and_says_what_to_do() -> None:
    ended = run(FORK)
    assert ended.returncode == 7, ended.stderr
    assert "was used in process" in ended.stdout
    assert "connect after the fork" in ended.stdout


def test_connecting_after_a_fork_works() -> None:
    ended = run(FORK_BEFORE_USE)
    assert ended.returncode == 7, ended.stderr

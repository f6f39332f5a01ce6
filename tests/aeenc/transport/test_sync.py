"""The blocking face of the SDK: the awaiting one's methods on one background loop a process; Ctrl-C, and forks."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import aeenc
from aeenc import errors
from aeenc.transport.sync import LOOP, Caller, _Loop, given
from aeenc.transport.targets import Targets
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc, sampler_pb2, sampler_pb2_grpc, types_pb2
from support.command import run_script
from support.worlds.index_world import HashedEncoder, vector_of


class Servicer(HashedEncoder):
    """Answers "slow" after a while, and "together" once eight have come."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.version, self._eight = "v1", asyncio.Barrier(8)

    async def _encode(self, request: Any, context: Any) -> Any:
        self.calls += 1
        if request.texts[0] == "slow":
            await asyncio.sleep(0.3)
        if request.texts[0] == "together":
            await asyncio.wait_for(self._eight.wait(), 10)
        return await super()._encode(request, context)


class Sampler(sampler_pb2_grpc.SamplerServiceServicer):
    """Counts the pairs and hypotheses that come in; reports three steps of a run; the first StartRun breaks."""

    def __init__(self) -> None:
        self.pairs: list[str] = []
        self.hypotheses: list[list[str]] = []

    async def ListPairs(self, request: Any, context: Any) -> sampler_pb2.ListPairsResponse:
        return sampler_pb2.ListPairsResponse(pairs=[types_pb2.Pair(query=f"q{n}") for n in range(100)])

    async def ImportPairs(self, request: Any, context: Any) -> sampler_pb2.ImportPairsResponse:
        self.pairs += [pair.query for pair in request.pairs]
        return sampler_pb2.ImportPairsResponse(run_id="r", added=len(request.pairs))

    async def StartRun(self, request_iterator: Any, context: Any) -> sampler_pb2.StartRunResponse:
        self.hypotheses.append([one.id async for request in request_iterator for one in request.hypotheses])
        if len(self.hypotheses) == 1:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "starting")
        return sampler_pb2.StartRunResponse(run=sampler_pb2.Run(id="r"))

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[sampler_pb2.WatchRunResponse]:
        for seq in range(1, 4):
            progress = sampler_pb2.RunProgress(trees_done=seq)
            yield sampler_pb2.WatchRunResponse(seq=seq, run=sampler_pb2.Run(id="r", progress=progress))

    async def GetRun(self, request: Any, context: Any) -> sampler_pb2.GetRunResponse:
        return sampler_pb2.GetRunResponse(run=sampler_pb2.Run(id="r", state=types_pb2.WORK_STATE_SUCCEEDED))


@pytest.fixture
def sampler() -> Sampler:
    return Sampler()


@pytest.fixture
def served(sampler: Sampler) -> Iterator[tuple[Servicer, str]]:
    """A server on a loop of its own, so that the test itself may block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    servicer = Servicer()

    async def start() -> tuple[Any, int]:
        server = grpc.aio.server()
        encoder_pb2_grpc.add_EncoderServiceServicer_to_server(servicer, server)
        sampler_pb2_grpc.add_SamplerServiceServicer_to_server(sampler, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    async def stop(server: Any) -> None:
        await server.stop(0)

    server, port = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    yield servicer, f"127.0.0.1:{port}"
    asyncio.run_coroutine_threadsafe(stop(server), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


async def test_methods_block_and_streams_are_iterators_even_inside_a_running_loop(served: tuple[Servicer, str]) -> None:
    with aeenc.connect(encoder=served[1]) as client:
        encoded = client.encoder.encode(["a", "b"])
        assert encoded.model_version == "v1"
        assert np.array_equal(encoded.vectors, [vector_of(text, encoder_pb2.ROLE_QUERY) for text in ("a", "b")])
        batches = client.encoder.encode_stream(["a"] * n for n in (1, 2, 3))
        assert [len(batch.vectors) for batch in batches] == [1, 2, 3]
        batches = client.encoder.encode_all((f"text {n}" for n in range(10)), batch=4)
        assert [len(batch.vectors) for batch in batches] == [4, 4, 2]


def test_an_iterator_left_early_ends_the_call(served: tuple[Servicer, str]) -> None:
    servicer, target = served
    with aeenc.connect(encoder=target) as client:
        for batches, size in (
            (client.encoder.encode_stream(["a"] for _ in itertools.count()), 1),
            (client.encoder.encode_all("a" for _ in itertools.count()), 128),
        ):
            assert len(next(batches).vectors) == size
            assert servicer.open_streams == 1
            batches.close()
            deadline = time.monotonic() + 4
            while servicer.open_streams:
                assert time.monotonic() < deadline, "the server still works on it"
                time.sleep(0.01)


def test_a_service_that_is_away_is_named_with_the_command_that_starts_it(served: tuple[Servicer, str]) -> None:
    with aeenc.connect(encoder=served[1], index="127.0.0.1:1", timeout_s=60, retry=aeenc.Retry(away_s=0.1)) as client:
        started = time.monotonic()
        with pytest.raises(errors.Unavailable, match=r"127\.0\.0\.1:1 .*`aeenc up`.* index=, --index or AEENC_INDEX"):
            client.index.retrieve("science", ["a"])
        assert time.monotonic() - started < 15
        assert client.encoder.encode(["a"]).model_version == "v1"


def test_options_of_a_call_leave_the_client_as_it_is(served: tuple[Servicer, str]) -> None:
    with aeenc.connect(encoder=served[1], timeout_s=5) as client:
        with pytest.raises(errors.DeadlineExceeded, match=r"within 0\.1 s"):
            client.with_options(timeout_s=0.1).encoder.encode(["slow"])
        assert client.encoder.encode(["slow"]).model_version == "v1"


@pytest.mark.parametrize("value", ["a text", ["ice"], {"key": "ice"}, None, np.zeros(2)])
def test_only_what_runs_a_callers_code_is_made_a_list_before_a_call(value: Any):
    assert given(value) is value
    assert given(iter([value])) == [value]
    assert Caller().each(5) == 5, "which the call refuses"  # type: ignore[type-var]


async def test_nothing_more_is_taken_of_a_callers_iterable_once_the_call_has_ended():
    caller, items = Caller(), iter("abc")
    caller._future = Future()
    taken = caller.go_through(items)
    taken._take()
    caller._future.set_result(None)
    items = iter("abc")
    caller.go_through(items)._take()
    assert (list(taken._arrived), next(items)) == (["a", "b", "c"], "a")


def test_what_is_not_given_comes_from_the_environment_and_the_fleet(
    served: tuple[Servicer, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [*vars(Targets()).values()][:5] == [f"127.0.0.1:{50051 + n}" for n in range(5)], "where neither says it"
    fleet = {"format_version": 1, "targets": {"encoder": served[1], "index": "127.0.0.1:1"}}
    (tmp_path / "fleet.json").write_text(json.dumps(fleet))
    monkeypatch.setenv("AEENC_HOME", str(tmp_path))
    monkeypatch.setenv("AEENC_TOKEN", "of-the-environment")
    monkeypatch.setenv("AEENC_TIMEOUT_S", "0.1")
    monkeypatch.setenv("AEENC_INDEX", "127.0.0.1:2")
    with aeenc.connect(trainer="127.0.0.1:3") as client:
        awaiting = client._awaiting
        channels = [one.channel for one in (awaiting.encoder, awaiting.index, awaiting.trainer, awaiting.sampler)]
        assert [one.target for one in channels] == [served[1], "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:50053"]
        assert {one._options["token"] for one in channels} == {"of-the-environment"}
        with pytest.raises(errors.DeadlineExceeded, match=r"within 0\.1 s"):
            client.encoder.encode(["slow"])
    with aeenc.connect(timeout_s=5, token="") as client:
        assert client.encoder.encode(["slow"]).model_version == "v1"
        assert client._awaiting.encoder.channel._metadata == [], "no token rather than that of the environment"
    monkeypatch.setenv("AEENC_TIMEOUT_S", "soon")
    with pytest.raises(errors.InvalidArgument, match=r"seconds above 0, got 'soon'; see also AEENC_TIMEOUT_S"):
        aeenc.connect()


def test_calls_of_several_threads_run_at_the_same_time(served: tuple[Servicer, str]) -> None:
    with aeenc.connect(encoder=served[1], timeout_s=30) as client, ThreadPoolExecutor(8) as threads:
        assert len(list(threads.map(lambda _: client.encoder.encode(["together"]), range(8)))) == 8


@pytest.fixture
def client(served: tuple[Servicer, str]) -> Iterator[Any]:
    with aeenc.connect(encoder=served[1], sampler=served[1], timeout_s=5) as connected:
        yield connected


def test_what_goes_into_a_call_may_come_from_calls(client: Any, sampler: Sampler) -> None:
    copied = client.sampler.import_pairs("science", client.sampler.list_pairs("r"))
    assert (copied.added, sampler.pairs) == (100, [f"q{n}" for n in range(100)])
    versions = (client.encoder.encode([text]).model_version for text in ("a", "b"))
    assert [len(batch.vectors) for batch in client.encoder.encode_stream([version] for version in versions)] == [1, 1]
    told = (client.encoder.encode([text]).model_version for text in ("a", "b"))
    assert len(client.encoder.encode(told).vectors) == 2


def test_an_iterable_is_gone_through_in_the_callers_thread_and_again_in_a_repeated_call(
    client: Any, sampler: Sampler
) -> None:
    threads = set()

    class Roots:
        def __iter__(self) -> Iterator[tuple[str, str]]:
            for n in range(100):
                threads.add(threading.current_thread())
                yield client.encoder.encode(["a"]).model_version + str(n), "text"

    client.sampler.start_run(Roots(), corpus="science")
    assert threads == {threading.current_thread()}
    assert [len(set(sent)) for sent in sampler.hypotheses] == [100, 100]


def test_a_callback_may_call_and_has_been_called_in_order_when_the_call_returns(client: Any) -> None:
    told = []

    def on_progress(run: sampler_pb2.Run) -> None:
        assert threading.current_thread() is threading.main_thread()
        told.append((run.progress.trees_done, client.encoder.encode(["a"]).model_version))

    client.sampler.wait("r", on_progress=on_progress)
    assert told == [(1, "v1"), (2, "v1"), (3, "v1")]


def test_what_an_iterable_or_a_callback_raises_ends_the_call_and_is_raised(client: Any) -> None:
    def broken() -> Iterator[Any]:
        yield ["a"]
        raise KeyError("mine")

    def on_progress(run: sampler_pb2.Run) -> None:
        raise ValueError("mine")

    with pytest.raises(KeyError, match="mine"):
        list(client.encoder.encode_stream(broken()))
    with pytest.raises(KeyError, match="mine"):
        client.sampler.import_pairs("science", (types_pb2.Pair() for _ in broken()))
    with pytest.raises(ValueError, match="mine"):
        client.sampler.wait("r", on_progress=on_progress)
    assert client.encoder.encode(["a"]).model_version == "v1"


def test_an_iterator_that_is_left_early_cleans_up_in_the_callers_thread(client: Any) -> None:
    cleaned_up = []

    def texts() -> Iterator[str]:
        try:
            yield from itertools.repeat("a")
        finally:
            cleaned_up.append((threading.current_thread(), client.encoder.encode(["a"]).model_version))

    batches = client.encoder.encode_all(texts())
    next(batches)
    batches.close()
    assert cleaned_up == [(threading.current_thread(), "v1")]


def test_a_blocking_call_on_the_loops_own_thread_raises_at_once(client: Any) -> None:
    async def inside() -> None:
        with pytest.raises(errors.FailedPrecondition, match="would wait for itself"):
            client.encoder.encode(["a"])
        with pytest.raises(errors.FailedPrecondition, match="would wait for itself"):
            next(client.encoder.encode_stream([["a"]]))

    LOOP.run(inside())
    assert client.encoder.encode(["a"]).model_version == "v1"


def test_use_after_close_raises_and_so_does_a_call_that_is_cut_off(served: tuple[Servicer, str]) -> None:
    client = aeenc.connect(encoder=served[1], timeout_s=5)
    open_stream = client.encoder.encode_stream(["a"] for _ in range(1_000_000))
    next(open_stream)
    with ThreadPoolExecutor(1) as threads:
        cut_off = threads.submit(client.encoder.encode, ["slow"])
        while served[0].calls < 2:
            time.sleep(0.01)
        client.close()
        with pytest.raises(errors.FailedPrecondition, match=f"connection to {served[1]} is closed; connect again"):
            cut_off.result(5)
    calls = (lambda: client.encoder.encode(["a"]), lambda: next(client.encoder.encode_all(["a"])))
    for call in (*calls, lambda: list(open_stream)):
        with pytest.raises(errors.FailedPrecondition, match=f"connection to {served[1]} is closed; connect again"):
            call()
    client.close()


async def test_the_methods_are_those_of_the_awaiting_client_with_their_types_and_documentation() -> None:
    def taken(method: Any) -> list[tuple[str, str, Any, Any]]:
        parameters = inspect.signature(method).parameters.values()
        return [
            (one.name, one.annotation.partition(" | AsyncIterable")[0], one.default, one.kind) for one in parameters
        ]

    parts = [name for name, one in vars(aeenc.AsyncClient).items() if isinstance(one, cached_property)]
    assert len(parts) == 6
    async with aeenc.connect_async() as awaiting:
        with aeenc.connect() as client:
            for part in parts:
                blocking = getattr(client, part)
                assert vars(aeenc.Client)[part].func.__annotations__["return"] == type(blocking).__name__
                for name, method in inspect.getmembers(getattr(awaiting, part), inspect.ismethod):
                    if name.startswith("_"):
                        continue
                    twin = getattr(blocking, name)
                    assert not inspect.iscoroutinefunction(twin)
                    assert not inspect.isasyncgenfunction(twin)
                    assert twin.__doc__ == method.__doc__
                    assert taken(twin) == taken(method)
                    returned = method.__annotations__["return"].replace("AsyncIterator", "Iterator")
                    assert twin.__annotations__["return"] == returned


LEFT_IN_A_CYCLE = """
import gc
import aeenc
from aeenc.transport.sync import LOOP

class Cycle: pass

client = aeenc.connect(sampler={target!r}, timeout_s=5)
for _ in range(3):
    cycle = Cycle()
    cycle.me, cycle.pairs = cycle, client.sampler.list_pairs("r")
    next(cycle.pairs)
    del cycle

async def collect():
    gc.collect()

gc.disable()
LOOP.run(collect())
client.sampler.get_run("r")
"""


def test_an_iterator_that_the_collector_finds_on_the_loops_thread_ends_in_silence(
    served: tuple[Servicer, str],
) -> None:
    ended = run_script(LEFT_IN_A_CYCLE.format(target=served[1]))
    assert (ended.returncode, "Exception ignored" in ended.stderr) == (0, False), ended.stderr


# A loop thread that ended with the program answers nobody: who waited for it would never end.
LEFT_OVER = """
import aeenc
pairs = aeenc.connect(sampler={target!r}, timeout_s=5).sampler.list_pairs("r")
assert next(pairs).query == "q0"
"""

LEFT_BY_AN_ERROR = """
import aeenc

def follow():
    events = aeenc.connect(sampler={target!r}, timeout_s=5).sampler.watch("r")
    for seq, run in events:
        raise KeyError("mine")  # the traceback keeps the iterator

follow()
"""

CLOSED_TOO_LATE = """
import aeenc

class Holder:
    def __init__(self):
        self.client = aeenc.connect(sampler={target!r}, timeout_s=5)
        self.client.sampler.get_run("r")

    def __del__(self):
        self.client.close()

holder = Holder()
"""


@pytest.mark.parametrize(
    ("script", "code", "told"),
    [(LEFT_OVER, 0, ""), (LEFT_BY_AN_ERROR, 1, "KeyError: 'mine'"), (CLOSED_TOO_LATE, 0, "the program is ending")],
    ids=["left over", "left by an error", "closed too late"],
)
def test_a_program_ends_with_its_iterators_and_clients_still_open(
    served: tuple[Servicer, str], script: str, code: int, told: str
) -> None:
    ended = run_script(script.format(target=served[1]))
    assert ended.returncode == code, ended.stderr
    assert told in ended.stderr


@pytest.mark.parametrize("is_scheduled", [True, False])
def test_an_interrupt_while_a_step_is_handed_over_ends_it_and_closes_the_iterator(monkeypatch, is_scheduled):
    ended: list[str] = []

    async def endless() -> AsyncIterator[int]:
        try:
            await asyncio.sleep(600)
            yield 1
        finally:
            ended.append("closed")

    hand_over = asyncio.run_coroutine_threadsafe

    def interrupted(coroutine, loop):
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", hand_over)
        if is_scheduled:
            hand_over(coroutine, loop)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05), loop).result()  # it waits by then
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(Caller().iterate(endless()))
    assert ended == (["closed"] if is_scheduled else [])


def test_an_interrupt_while_the_loop_is_started_leaves_later_calls_a_loop_that_runs(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    loops = _Loop()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loops.get()
    loop = loops.get()
    assert asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "done"), loop).result(20) == "done"
    loop.call_soon_threadsafe(loop.stop)
    loops._thread.join(20)
    loop.close()


# In a process of its own: forking this one would copy pytest's threads and locks. It prints how each child ended.
FORKS = """
import asyncio, os
import aeenc
from aeenc import errors

def blocking():
    return aeenc.connect(encoder="127.0.0.1:1", timeout_s=0.1).encoder

def idle():
    return aeenc.connect_async(encoder="127.0.0.1:1", timeout_s=0.1)

async def awaiting():
    return idle().encoder

async def encode(client):
    await client.encoder.encode(["a"])

def fork(do):
    if os.fork() == 0:
        try:
            do()
        except errors.AeencError as error:
            print(type(error).__name__, error.message, flush=True)
        os._exit(0)
    os.wait()

unused = idle()
fork(lambda: blocking().encode(["a"]))
if {parent!r} == "blocking":
    use = blocking().encode
else:
    client = asyncio.new_event_loop().run_until_complete(awaiting())
    use = lambda texts: asyncio.run(client.encode(texts))
for do in (lambda: use(["a"]), blocking, lambda: asyncio.run(awaiting()), lambda: asyncio.run(encode(unused))):
    fork(do)
"""
FORKED = "nothing of aeenc may be connected in the parent before a fork; start workers with the spawn method"


@pytest.mark.parametrize("parent", ["blocking", "awaiting"])
def test_after_a_fork_a_child_may_connect_unless_its_parent_had_and_is_told_why(parent: str) -> None:
    ended = run_script(FORKS.format(parent=parent))
    before, *after = ended.stdout.splitlines()
    assert before.startswith("Unavailable "), (before, ended.stderr)
    assert len(after) == 4, ended.stderr
    assert all(told.startswith("FailedPrecondition ") and FORKED in told for told in after), after

"""A Milvus that is away, killed or not there at all: searches say so, the rest goes on, and it is found again.

And what it and the way to it answer, as errors of ours: wait for it, come back later, or a fault of this index.
"""

import asyncio
import sys

import grpc
import pytest

import services.index
from aeenc import errors
from services.index.__main__ import build
from services.index.settings import IndexSettings
from support.servers.milvus_server import MilvusServer, need_milvus
from support.waiting import until
from support.worlds.index_world import FACTS, SPACE, facts, raises, vector_of

need_milvus()

from pymilvus.exceptions import MilvusException, ParamError  # noqa: E402

from services.index.milvus.link import MilvusLink, MilvusNotFound, MilvusNotLoaded  # noqa: E402

TWO = vector_of("ice melts")[None, :]


@pytest.fixture
def server(tmp_path):
    """A Milvus of the test's own, not yet started."""
    running = MilvusServer(tmp_path / "own")
    yield running
    running.stop()


@pytest.fixture
def over(over, server):
    return {**over, "milvus_uri": server.uri, "milvus_timeout_s": 2.0}


async def goes_on(index):
    """What needs no Milvus."""
    assert [premise.text async for premise in index.client.list_premises("science")] == FACTS
    assert [premise.id for premise in await index.client.get_premises("science", ["f3"])] == ["f3"]
    assert (await index.client.retrieve("science", ["ice"], k=1, mode="lexical"))[0]
    assert (await anext(index.client.list_corpora())).active.id


@pytest.mark.slow
async def test_a_milvus_that_goes_and_comes_back_is_named_meanwhile_and_needs_nobody(serve, server):
    server.start()
    async with serve() as index:
        await index.client.build("science", facts())
        before = await index.client.search("science", TWO, space_id=SPACE)
        server.stop()
        search = index.client.search("science", TWO, space_id=SPACE, timeout_s=20)
        await raises(errors.Unavailable, search, server.uri, "start it")
        await until(lambda: index.server.readiness.state == "DEGRADED", timeout_s=10)
        assert server.uri in index.server.readiness.reason
        await goes_on(index)
        later = await index.client.build("science", facts()[:3], activate=False)
        await raises(errors.Unavailable, index.client.activate("science", later.id), server.uri)
        server.start()
        await until(lambda: index.server.readiness.state == "SERVING", timeout_s=20)
        after = await index.client.search("science", TWO, space_id=SPACE)
        assert (after.ids, after.scores[0].tobytes()) == (before.ids, before.scores[0].tobytes())
        await index.client.activate("science", later.id)


@pytest.mark.slow
async def test_an_index_starts_before_its_milvus_which_is_sent_what_it_lacks(serve, server, tmp_path):
    server.start()
    async with serve() as index:
        await index.client.build("science", facts())
    server.stop(9)
    async with serve() as index:
        await until(lambda: index.server.readiness.state == "DEGRADED", timeout_s=10)
        search = index.client.search("science", TWO, space_id=SPACE, timeout_s=20)
        await raises(errors.Unavailable, search, server.uri)
        await goes_on(index)
        server.directory.rename(tmp_path / "lost")
        server.start()
        await until(lambda: index.server.readiness.state == "SERVING", timeout_s=20)
        assert (await index.client.search("science", TWO, space_id=SPACE, k=50)).ids[0]


async def test_an_index_without_a_milvus_says_which_setting_its_generation_needs(serve, server):
    server.start()
    async with serve() as index:
        built = await index.client.build("science", facts())
    async with serve(backend="faiss", milvus_uri="") as index:
        assert built.id in index.server.readiness.reason
        search = index.client.search("science", TWO, space_id=SPACE)
        await raises(errors.FailedPrecondition, search, built.id, "AEENC_INDEX_MILVUS_URI")
        await index.client.build("science", facts())
        assert (await index.client.search("science", TWO, space_id=SPACE)).ids[0]
    async with serve(backend="faiss") as index:  # and one that has it serves both
        await index.client.activate("science", built.id)
        assert (await index.client.search("science", TWO, space_id=SPACE)).generation == built.id


async def test_a_missing_client_stops_the_start_and_is_named(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "pymilvus" or "index.milvus" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(services.index, "milvus", services.index.milvus)  # imported anew, and put back
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(errors.InvalidArgument, match=r"pymilvus.*index-milvus"):
        build(IndexSettings(backend="milvus", milvus_uri="http://127.0.0.1:1", artifacts_dir=tmp_path))


async def test_settings_that_cannot_work_stop_the_start(tmp_path):
    with pytest.raises(ValueError, match="AEENC_INDEX_MILVUS_URI"):
        IndexSettings(backend="milvus", artifacts_dir=tmp_path)
    with pytest.raises(ValueError, match="milvus_prefix"):
        IndexSettings(backend="milvus", milvus_uri="http://m:1", milvus_prefix="a-b", artifacts_dir=tmp_path)


class OfGrpc(grpc.RpcError):
    __module__ = "grpc._channel"

    def __init__(self, status):
        self._status = status

    def code(self):
        return self._status

    def details(self):
        return "the details"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MilvusException(100, "no collection"), MilvusNotFound),
        (MilvusException(1600, "no alias"), MilvusNotFound),
        (MilvusException(101, "not loaded"), MilvusNotLoaded),
        (MilvusException(8, "rate limit"), errors.Overloaded),
        (MilvusException(1, "service not ready[state=Initializing]"), errors.Unavailable),
        (MilvusException(2, "Fail connecting"), errors.Unavailable),
        (MilvusException(grpc.StatusCode.UNAVAILABLE, "retry timeout"), errors.Unavailable),
        (MilvusException(grpc.StatusCode.RESOURCE_EXHAUSTED, "much"), errors.Overloaded),
        (OfGrpc(grpc.StatusCode.DEADLINE_EXCEEDED), errors.Unavailable),
        (OfGrpc(grpc.StatusCode.UNAUTHENTICATED), errors.Unavailable),
        (ConnectionRefusedError("refused"), errors.Unavailable),
        (MilvusException(1, "bug"), MilvusException),
        (ParamError(message="bad"), ParamError),
        (MilvusException(1100, "bad"), MilvusException),
        (OfGrpc(grpc.StatusCode.UNKNOWN), OfGrpc),
    ],
)
async def test_what_may_happen_to_a_sound_call_is_an_error_of_ours_and_a_fault_of_the_index_its_own(
    error, expected, monkeypatch
):
    link = MilvusLink("http://milvus:19530")
    monkeypatch.setattr(link, "_connect", lambda: (_ for _ in ()).throw(error))
    with pytest.raises(expected) as caught:
        await asyncio.to_thread(link.call, "search")
    assert type(caught.value) is expected
    if expected is errors.Unavailable:
        assert "http://milvus:19530" in caught.value.message
        assert "AEENC_INDEX_MILVUS_URI" in caught.value.message
    await link.close()

"""What Milvus and the way to it answer, as errors of ours: wait for it, come back later, or a fault of this index."""

import asyncio

import grpc
import pytest

from aeenc import errors
from support.servers.milvus_server import need_milvus

need_milvus()

from pymilvus.exceptions import MilvusException, ParamError  # noqa: E402

from services.index.milvus.link import MilvusLink, MilvusNotFound, MilvusNotLoaded  # noqa: E402


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

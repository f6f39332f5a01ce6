"""The requests that the SDK sends to an index, and what it does when the index breaks off."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aeenc import IndexClient, Retry, errors
from aeenc.transport.channel import Channel
from aeenc.v1 import index_pb2, index_pb2_grpc
from aeenc.values import Premise
from support.waiting import until
from support.worlds.sampler_world import FakeIndex, connected, refuse, serving

PREMISES = [Premise(id=f"p{n}", text=f"fact {n}") for n in range(10)]


class BreaksOff(index_pb2_grpc.IndexAdminServiceServicer):
    """Has made four premises durable when its first call breaks off."""

    def __init__(self) -> None:
        self.trouble: errors.AeencError | None = errors.Unavailable("restarting")
        self.headers: list[index_pb2.BuildHeader] = []
        self.premises: list[list[str]] = []

    async def BuildGeneration(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        self.headers.append((await anext(requests)).header)
        self.premises.append([one.id async for request in requests for one in request.premises])
        if len(self.headers) == 1 and self.trouble is None:
            yield index_pb2.BuildGenerationResponse(received=10)
            await asyncio.sleep(60)
        elif len(self.headers) == 1:
            yield index_pb2.BuildGenerationResponse(received=10, durable=4)
            await refuse(context, self.trouble)
        yield index_pb2.BuildGenerationResponse(generation=index_pb2.Generation(id="g1"))


@pytest.fixture
async def served() -> AsyncIterator[tuple[BreaksOff, IndexClient]]:
    servicer = BreaksOff()
    async with connected(index_pb2_grpc.add_IndexAdminServiceServicer_to_server, servicer) as channel:
        yield servicer, IndexClient(channel)


async def test_a_build_goes_on_by_itself_under_a_request_id_of_its_own_unless_it_cannot_begin_again(
    served: tuple[BreaksOff, IndexClient],
) -> None:
    index, client = served
    assert (await client.build("science", PREMISES)).id == "g1"
    first, again = index.headers
    assert first.request_id == again.request_id != ""
    assert (first.resume_from, again.resume_from) == (0, 4)
    assert index.premises[1] == [one.id for one in PREMISES[4:]]
    await client.build("science", PREMISES)
    assert index.headers[2].request_id != first.request_id, "another build has another id"
    index.headers.clear()
    with pytest.raises(errors.Unavailable, match="restarting"):
        await client.build("science", iter(PREMISES))
    assert [header.request_id for header in index.headers] == [""]


async def test_a_build_over_a_quota_goes_on_when_the_index_says_unless_that_is_too_late(
    served: tuple[BreaksOff, IndexClient],
) -> None:
    index, client = served
    index.trouble = errors.Overloaded("over the quota", retry_after_s=0.4)
    started = time.monotonic()
    assert (await client.build("science", PREMISES)).id == "g1"
    assert time.monotonic() - started > 0.3
    index.headers.clear()
    with pytest.raises(errors.Overloaded, match="over the quota"):
        await client.build("science", PREMISES, resume_s=0.2)
    assert len(index.headers) == 1


class Starts(BreaksOff):
    """Refuses all builds."""

    async def BuildGeneration(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        self.headers.append((await anext(requests)).header)
        await refuse(context, errors.Unavailable("starting"))
        yield


@pytest.mark.parametrize("first", [BreaksOff(), Starts()], ids=["has begun", "has refused"])
async def test_an_index_that_was_there_may_be_away_for_longer_than_one_that_never_was(first: BreaksOff) -> None:
    first.trouble = None
    received: list[int] = []
    async with serving(index_pb2_grpc.add_IndexAdminServiceServicer_to_server, first) as port:
        client = IndexClient(Channel(f"127.0.0.1:{port}", timeout_s=5, retry=Retry(away_s=0.1)))
        building = asyncio.ensure_future(client.build("science", PREMISES, on_progress=lambda *n: received.extend(n)))
        await until(lambda: bool(received) or len(first.headers) > 1)
    await asyncio.sleep(0.5)
    again = BreaksOff()
    again.headers.append(index_pb2.BuildHeader())
    async with serving(index_pb2_grpc.add_IndexAdminServiceServicer_to_server, again, port):
        assert (await building).id == "g1"
        await client.channel.close()


async def test_a_build_that_is_to_be_tried_once_does_not_wait_for_an_index_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures: list[errors.AeencError] = []

    def pause_s(_: int, error: errors.AeencError) -> float:
        failures.append(error)
        return 0.01

    monkeypatch.setattr("aeenc.index.pause_s", pause_s)
    client = IndexClient(Channel("127.0.0.1:1", retry=False))
    with pytest.raises(errors.Unavailable):
        await client.build("science", PREMISES)
    assert len(failures) == 1
    await client.channel.close()


async def test_premises_that_come_from_a_generator_count_as_accepted() -> None:
    servicer = FakeIndex()
    async with connected(index_pb2_grpc.add_IndexServiceServicer_to_server, servicer) as channel:
        accepted: Any = (ids for ids in (["p1"], ["p2", "p3"]))
        await IndexClient(channel).retrieve("science", ["a", "b"], accepted=accepted)
    assert [list(one.premise_ids) for one in servicer.requests[0].accepted] == [["p1"], ["p2", "p3"]]

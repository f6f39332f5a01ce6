"""A Milvus that is away, slow or killed: named meanwhile, found again by itself, and nothing that it kept is lost."""

import asyncio
import time

import pytest

from aeenc import errors
from support.servers.milvus_server import MilvusServer
from support.waiting import until
from support.worlds.index_world import FACTS, SPACE, facts, raises, vector_of

TWO = vector_of("ice melts")[None, :]


@pytest.fixture
def server(tmp_path):
    """A Milvus of the test's own, not yet started."""
    running = MilvusServer(tmp_path / "own")
    yield running
    running.stop()


@pytest.mark.slow
async def test_a_milvus_that_goes_and_comes_back_is_named_meanwhile_and_needs_nobody(start, server):
    server.start()
    async with start(milvus_uri=server.uri, milvus_timeout_s=2.0) as index:
        generation = await index.client.build("science", facts())
        before = await index.client.search("science", TWO, space_id=SPACE)
        server.stop()
        await raises(errors.Unavailable, index.client.search("science", TWO, space_id=SPACE), server.uri, "start it")
        await raises(errors.Unavailable, index.client.build("science", facts()[:3], resume_s=0), server.uri)
        await until(lambda: index.readiness.state == "DEGRADED", timeout_s=10)
        assert server.uri in index.readiness.reason
        info = await index.client.info()
        assert info.corpora[0].active.id == generation.id
        server.start()
        await until(lambda: index.readiness.state == "SERVING", timeout_s=20)
        after = await index.client.search("science", TWO, space_id=SPACE)
        assert after.ids == before.ids
        assert after.scores[0].tobytes() == before.scores[0].tobytes()


@pytest.mark.slow
async def test_an_index_starts_before_its_milvus_and_finds_it_later(start, server):
    async with start(milvus_uri=server.uri, milvus_timeout_s=2.0) as index:
        assert index.readiness.state == "DEGRADED"
        await raises(errors.Unavailable, index.client.search("science", TWO, space_id=SPACE), server.uri)
        server.start()
        await until(lambda: index.readiness.state == "SERVING", timeout_s=20)
        assert (await index.client.build("science", facts())).active


@pytest.mark.slow
async def test_what_was_acknowledged_is_there_after_milvus_is_killed(start, server):
    server.start()
    async with start(milvus_uri=server.uri) as index:
        await index.client.build("science", facts())
        server.stop(9)
        server.start()
        await until(lambda: index.readiness.state == "SERVING", timeout_s=20)
        assert [one.text async for one in index.client.list_premises("science")] == FACTS
        assert (await index.client.search("science", TWO, space_id=SPACE)).ids[0]


async def test_the_event_loop_goes_on_while_milvus_is_slow(start, monkeypatch):
    from services.index.milvus.generation import GenerationCollection

    async with start() as index:
        await index.client.build("science", facts())
        real, ticks, meanwhile = GenerationCollection.candidates, 0, []

        def slow(self, *arguments, **more):
            before, started = ticks, time.monotonic()
            time.sleep(0.5)
            while not meanwhile and ticks - before <= 10 and time.monotonic() - started < 20:
                time.sleep(0.05)
            meanwhile.append(ticks - before)
            return real(self, *arguments, **more)

        monkeypatch.setattr(GenerationCollection, "candidates", slow)
        call = asyncio.ensure_future(index.client.search("science", TWO, space_id=SPACE))
        while not call.done():
            await asyncio.sleep(0.002)
            ticks += 1
        assert call.result().ids[0]
        assert meanwhile[0] > 10, "a loop that waits for Milvus does not tick"
        late = index.client.search("science", TWO, space_id=SPACE, timeout_s=0.2)
        await raises(errors.DeadlineExceeded, late)

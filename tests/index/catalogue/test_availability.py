"""What goes wrong with one corpus, generation or batch stays its own: the others serve."""

import asyncio
import errno
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import structlog

from aeenc import AsyncClient, errors
from aeenc.v1 import index_pb2
from services.index.catalogue.served import ServedGeneration
from services.index.dense import batcher as batcher_module
from services.index.dense.batcher import SearchBatcher
from services.index.ranking.fusion import Prior
from services.index.values import ALL, SearchHits, SearchParams
from services.kit.healthcheck import connects
from services.launcher.processes import free_port
from services.store.artifacts import ArtifactStore
from support.waiting import until
from support.worlds.index_world import PREMISES, SPACE, Gate, facts, raises, two_generations, vector_of

TWO = vector_of("ice melts")[None, :]


def failing(function, code, word):
    """The function, on a disk that does not give out what belongs to `word`."""

    def call(*args, **kwargs):
        if any(word in str(one) for one in args):
            raise OSError(code, "the disk says no", f"/{word}")
        return function(*args, **kwargs)

    return call


@pytest.mark.parametrize(("name", "code"), [("sweep", errno.EIO), ("list", errno.EACCES), ("open", errno.EIO)])
async def test_a_corpus_that_cannot_be_read_does_not_stop_the_others(serve, monkeypatch, code, name):
    async with serve() as index:
        await index.client.build("science", facts())
        await index.client.build("other", facts())
    monkeypatch.setattr(ArtifactStore, name, failing(getattr(ArtifactStore, name), code, "generations/science"))
    with structlog.testing.capture_logs() as logged:
        async with serve() as index:
            assert (await index.client.search("other", TWO, space_id=SPACE)).ids[0]
            if name == "sweep":
                assert (await index.client.search("science", TWO, space_id=SPACE)).ids[0]
                warned = [one for one in logged if one["event"] == "what ended work has left is not removed"]
                assert [one["corpus"] for one in warned] == ["science"]
                assert "/generations/science" in warned[0]["reason"]
                return
            assert "generations/science" in (await index.client.info()).service.state_reason
            await raises(errors.DataLoss, index.client.search("science", TWO, space_id=SPACE), "disk says no")


async def test_generations_deleted_while_they_are_listed_neither_end_the_listing_nor_hide_others(index):
    first, second = await two_generations(index)
    third = (await index.client.build("science", facts()[:4], activate=False)).id
    seen = []
    async for one in index.client.list_generations("science", page_size=1):
        seen.append(one.id)
        if not one.active:
            await index.client.delete("science", one.id)
    assert seen == [third, second, first]
    stub, unary = index.client._admin, index.client._admin_channel.unary
    for token in ("nonsense", f"2026-07-01T00:00:00 {first}", "2026-07-01T00:00:00+00:00 "):
        nonsense = index_pb2.ListGenerationsRequest(corpus="science", page_token=token)
        await raises(errors.InvalidArgument, unary(stub.ListGenerations, nonsense), "page_token", "page before")


async def test_a_listing_refuses_the_token_of_another_one(index):
    for corpus in ("alpha", "science"):
        await index.client.build(corpus, facts())
    stub, unary = index.client._stub, index.client.channel.unary
    premises = await unary(stub.ListPremises, index_pb2.ListPremisesRequest(corpus="science", page_size=1))
    corpora = await unary(stub.ListCorpora, index_pb2.ListCorporaRequest(page_size=1))
    wrong = index_pb2.ListCorporaRequest(page_token=premises.next_page_token)
    await raises(errors.InvalidArgument, unary(stub.ListCorpora, wrong), "page_token", "this listing")
    wrong = index_pb2.ListPremisesRequest(corpus="science", page_token=corpora.next_page_token)
    await raises(errors.InvalidArgument, unary(stub.ListPremises, wrong), "page_token", "this listing")
    generation = premises.generation
    for position in ("x", "11", "-1", "1.0", "\u0663", "9" * 19, "9" * 5000):
        wrong = index_pb2.ListPremisesRequest(corpus="science", page_token=f"{generation}:{position}")
        await raises(errors.InvalidArgument, unary(stub.ListPremises, wrong), "page_token", "page before")
    again = await unary(stub.ListCorpora, index_pb2.ListCorporaRequest(page_token=corpora.next_page_token))
    assert [one.corpus for one in again.corpora] == ["science"]


@pytest.mark.parametrize(("owner", "name"), [(ServedGeneration, "of"), (Prior, "over")])
async def test_opening_a_generation_or_preparing_a_prior_holds_up_no_other(index, monkeypatch, owner, name):
    ids = [(await index.client.build("science", facts()[:count])).id for count in (4, 6, 8)]
    await index.client.delete("science", (await index.client.build("science", facts()[:2], activate=False)).id)
    await index.client.build("other", facts())
    for corpus in ("science", "other"):
        await index.client.put_explanations(corpus, [("ice melts", ["f1"])])

    def ask(number):
        if owner is Prior:
            return index.client.retrieve(("science", "other")[number], ["heat"], prior=0.5)
        return index.client.get_premises("science", ["f1"], generation=ids[number])

    gate = Gate(getattr(owner, name))
    monkeypatch.setattr(owner, name, gate)
    index.catalogue.open.pinned.clear()
    try:
        first = asyncio.ensure_future(ask(0))
        assert await asyncio.to_thread(gate.entered.wait, 20)
        assert (await asyncio.wait_for(ask(1), 5))[0]
    finally:
        gate.opened.set()
    assert (await first)[0]


async def test_pinned_generations_are_bounded_by_their_size_too(serve):
    async with serve(pinned_bytes=1) as index:
        ids = [(await index.client.build("science", facts()[:count])).id for count in (4, 6, 8)]
        for generation_id in ids[:2]:
            assert await index.client.get_premises("science", ["f1"], generation=generation_id)
        assert [key[1] for key in index.catalogue.open.pinned] == ids[1:2]


class Sliced:
    """A large corpus whose exact search takes three slices; `order` notes each step."""

    exact, rows = False, 1_000

    def __init__(self):
        self.order, self.entered, self.go_on = [], threading.Event(), threading.Event()
        self.go_on.set()

    def steps(self, queries, k, allowed, params):
        for _ in range(3 if params.exact else 1):
            self.order.append((params.exact, len(queries)))
            self.entered.set()
            assert self.go_on.wait(20)
            if len(self.order) < 4 and params.exact:
                yield None
        yield [SearchHits(np.arange(k), np.ones(k, np.float32)) for _ in queries]


async def test_exact_searches_of_a_large_corpus_let_others_have_their_turn():
    index, batcher, vectors = Sliced(), SearchBatcher(), np.ones((6, 4), np.float32)
    served = SimpleNamespace(index=index, allowed=lambda _: None)
    calls = [
        batcher.search(served, vectors, 1, ALL, params=SearchParams(exact=True)),
        batcher.search(served, vectors, 1, ALL),
    ]
    batcher.start()
    try:
        scanned, _ = await asyncio.gather(*calls)
    finally:
        await asyncio.to_thread(batcher.close)
    assert len(scanned) == 6
    assert index.order == [(True, 6), (False, 6), (True, 6), (True, 6)]


async def test_the_loop_does_not_wait_for_further_queries_while_no_batch_can_begin():
    index, batcher, vectors, rounds = Sliced(), SearchBatcher(), np.ones((1, 4), np.float32), []
    served, turn = SimpleNamespace(index=index, allowed=lambda _: None), batcher._wake
    batcher._wake = lambda loop: rounds.append(1) or turn(loop)
    index.go_on.clear()
    batcher.start()
    try:
        first = asyncio.ensure_future(batcher.search(served, vectors, 1, ALL))
        assert await asyncio.to_thread(index.entered.wait, 20)
        rounds.clear()
        others = [asyncio.ensure_future(batcher.search(served, vectors, 1, ALL)) for _ in range(3)]
        await asyncio.sleep(0.02)
        assert rounds == [], "a thread that computes can begin nothing"
        index.go_on.set()
        await asyncio.gather(first, *others)
    finally:
        index.go_on.set()
        await asyncio.to_thread(batcher.close)
    assert index.order == [(False, 1), (False, 3)]


@pytest.mark.parametrize("end", ["cancelled", "deadline", "shutdown"])
async def test_nobody_scans_on_for_a_caller_who_has_left(end, monkeypatch):
    index, batcher, vectors = Sliced(), SearchBatcher(), np.ones((100, 4), np.float32)
    served = SimpleNamespace(index=index, allowed=lambda _: None)
    index.go_on.clear()
    batcher.start()
    call = batcher.search(served, vectors, 1, ALL, params=SearchParams(exact=True), deadline_s=1e6)
    waiting = asyncio.ensure_future(call)
    assert await asyncio.to_thread(index.entered.wait, 20)
    closing = None
    if end == "cancelled":
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    elif end == "deadline":
        monkeypatch.setattr(batcher_module.time, "monotonic", lambda: float("inf"))
    else:
        closing = asyncio.ensure_future(asyncio.to_thread(batcher.close))
        await until(lambda: batcher._closed)
    index.go_on.set()
    wanted = {"deadline": errors.DeadlineExceeded, "shutdown": errors.Unavailable}
    if end in wanted:
        with pytest.raises(wanted[end]):
            await waiting
    monkeypatch.undo()
    if closing is None:
        assert len(await batcher.search(served, vectors, 1, ALL)) == 100
        assert batcher._queue.size == 0
    await (closing or asyncio.to_thread(batcher.close))
    assert [exact for exact, _ in index.order].count(True) == 1


async def test_a_full_log_fails_no_build_and_no_activation(encoder, artifact_store):
    target = f"127.0.0.1:{free_port(set())}"
    words = ["--port", target.rpartition(":")[2], "--encoder-target", encoder.target, "--log-file", "/dev/full"]
    command = [sys.executable, "-m", "services.index", "--artifacts-dir", str(artifact_store.root), *words]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        await until(lambda: connects(target), 60)
        async with AsyncClient(index=target) as clients:
            client = clients.index
            first, second = [await client.build("science", PREMISES, activate=False) for _ in range(2)]
            for generation in (first, second):
                await client.activate("science", generation.id)
                assert (await client.retrieve("science", ["ice"], k=1)).generation == generation.id
        assert process.returncode is None
    finally:
        process.kill()
        await process.wait()

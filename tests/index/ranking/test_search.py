"""Search and Retrieve through the SDK over a socket: right answers, and a message that helps for wrong questions."""

import asyncio
import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import grpc
import numpy as np
import pytest

from aeenc import errors, vectors
from aeenc.v1 import encoder_pb2, index_pb2, index_pb2_grpc, types_pb2
from services.corpus.generation import Premises
from support.waiting import until
from support.worlds.index_world import DIM, FACTS, SPACE, VERSION, facts, premise, raises, vector_of


def query(text: str) -> np.ndarray:
    return vector_of(text)[None, :]


async def test_a_corpus_is_built_searched_and_retrieved_from(index):
    generation = await index.client.build("science", facts())
    assert generation.active
    found = await index.client.search("science", query(FACTS[6]), space_id=SPACE, k=3)
    assert found.ids[0][0] == "f6"
    assert found.scores[0][0] == pytest.approx(1.0, abs=1e-6)
    assert (found.generation, found.space_id, found.exact) == (generation.id, SPACE, True)
    retrieved = await index.client.retrieve("science", ["what melts ice", "what is iron"], k=2)
    assert [hits[0].text for hits in retrieved] == ["heat melts ice", "iron is a kind of metal"]
    assert (retrieved.model_version, retrieved.generation) == (VERSION, generation.id)


async def test_a_search_tells_its_times_where_it_is_asked_to(index):
    await index.client.build("science", facts())
    silent = await index.client.search("science", query(FACTS[6]), space_id=SPACE, k=3)
    started = time.perf_counter()
    timed = await index.client.search("science", query(FACTS[6]), space_id=SPACE, k=3, timings=True)
    elapsed_s = time.perf_counter() - started
    assert silent.timings is None
    request = index_pb2.SearchRequest(
        corpus="science", vectors=vectors.to_proto(query(FACTS[6])), space_id=SPACE, k=3, timings=False
    )
    sent = await index_pb2_grpc.IndexServiceStub(index.client.channel.grpc).Search(request)
    assert not sent.HasField("timings"), "what nobody asked for costs time"
    assert timed.timings is not None
    assert timed.timings.queue + timed.timings.compute <= timed.timings.total <= timedelta(seconds=elapsed_s)
    assert timed.timings.compute.total_seconds() > 0
    assert timed.ids == silent.ids


async def test_answers_over_the_wire_equal_a_brute_force_whatever_the_batch(index):
    await index.client.build("science", [premise(f"p{n}", f"fact {n % 40} about {n % 7} of {n}") for n in range(300)])
    matrix = np.stack([vector_of(f"fact {n % 40} about {n % 7} of {n}") for n in range(300)])

    async def one(rows: list[int], k: int) -> None:
        found = await index.client.search("science", matrix[rows], space_id=SPACE, k=k)
        for row, ids, scores in zip(rows, found.ids, found.scores, strict=True):
            exact = np.einsum("ij,j->i", matrix.astype(np.float64), matrix[row].astype(np.float64)).astype(np.float32)
            order = np.lexsort((np.arange(300), -exact))[:k]
            assert ids == [f"p{n}" for n in order]
            assert scores.tobytes() == exact[order].tobytes()

    rng = np.random.default_rng(3)
    await asyncio.gather(
        *(
            one(rng.integers(0, 300, int(rng.choice([1, 1, 5, 70]))).tolist(), int(rng.choice([3, 50])))
            for _ in range(40)
        )
    )


async def test_a_premise_does_not_explain_itself_unless_asked_to(index):
    await index.client.build("science", facts())
    dropped = await index.client.retrieve("science", [FACTS[0], "a magnet attracts Iron"], k=10)
    assert FACTS[0] not in [hit.text for hit in dropped[0]]
    assert len(dropped[0]) == 9
    assert dropped[1][0].text == FACTS[0], "only exactly the same text is the query's own"
    assert len(dropped[1]) == 10
    kept = await index.client.retrieve("science", [FACTS[0]], k=10, drop_self=False)
    assert kept[0][0].text == FACTS[0]


async def test_the_label_is_resolved_in_the_space_of_the_corpus_and_a_choice_is_passed_on(index, encoder):
    await index.client.build("science", facts())
    await index.client.retrieve("science", ["ice"])
    await index.client.retrieve("science", ["ice"], label="canary", truncate=True)
    await index.client.retrieve("science", ["ice"], version="q1")
    default, label, version = encoder.servicer.requests[-3:]
    assert {request.space_id for request in (default, label, version)} == {SPACE}
    assert {request.role for request in (default, label, version)} == {encoder_pb2.ROLE_QUERY}
    assert (default.model.WhichOneof("selector"), label.model.label, version.model.version) == (None, "canary", "q1")


async def test_precision_routing_key_and_request_id_of_a_retrieve_reach_the_encoder(index, encoder):
    await index.client.build("science", facts())
    await index.client.retrieve("science", ["ice"], precision="int8", routing_key="user 7")
    request = index_pb2.RetrieveRequest(corpus="science", texts=["ice"], k=3)
    await index.client.channel.unary(index.client._stub.Retrieve, request, request_id="of-the-caller")
    chosen, default = encoder.servicer.requests[-2:]
    assert (chosen.precision, chosen.routing_key) == (types_pb2.PRECISION_INT8, "user 7")
    assert (default.precision, default.routing_key) == (0, "")
    assert encoder.servicer.request_ids[-1] == "of-the-caller"


async def test_vectors_of_another_space_are_refused_and_both_are_named(index, encoder):
    await index.client.build("science", facts())
    call = index.client.search("science", query("ice"), space_id="sother")
    await raises(errors.SpaceMismatch, call, "sother", SPACE)
    encoder.servicer.space_id = "sother"
    await raises(errors.SpaceMismatch, index.client.retrieve("science", ["ice"]), "sother", SPACE)


async def test_wrong_questions_get_a_status_and_a_message_that_helps_and_the_service_goes_on(index):
    await index.client.build("science", facts())
    good = query("ice")

    def search(vectors: np.ndarray = good, corpus: str = "science", k: int = 3, **more: object) -> object:
        return index.client.search(corpus, vectors, space_id=SPACE, k=k, **more)

    wrong = good.copy()
    wrong[0, 3] = np.nan
    await raises(errors.InvalidArgument, search(wrong), "vectors[0]", "NaN")
    await raises(errors.InvalidArgument, search(np.concatenate([good, good * np.inf])), "vectors[1]")
    for length in ("3", "1e-30", "1e+30"):
        await raises(errors.InvalidArgument, search(good * np.float32(length)), "vectors[0]", f"length {length};")
    await raises(errors.InvalidArgument, search(good[:, :16]), "16 dimensions", f"has {DIM}")
    await raises(errors.InvalidArgument, search(good[:0]), "vectors", "empty")
    await raises(errors.TooLarge, search(np.repeat(good, 1025, axis=0)), "1,024")
    await raises(errors.InvalidArgument, search(k=0), "k", "1 to 1,000")
    await raises(errors.InvalidArgument, search(k=1001), "k", "1 to 1,000")
    await raises(errors.NotFound, search(corpus="nonsense"), "nonsense", "science")
    await raises(errors.NotFound, search(corpus="../science"), "unknown")
    await raises(errors.NotFound, search(generation="g0"), "g0")
    await raises(errors.InvalidArgument, search(generation="../../x"), "artifact id")
    await raises(errors.InvalidArgument, index.client.search("science", good, space_id=""), "space_id")
    await raises(errors.InvalidArgument, index.client.retrieve("science", []), "texts", "empty")
    await raises(errors.InvalidArgument, index.client.retrieve("science", ["ice", " "]), "texts[1]", "empty")
    await raises(errors.TooLarge, index.client.retrieve("science", ["é" * 8193]), "texts[0]", "16,384")
    await raises(errors.InvalidArgument, index.client.retrieve("science", ["ice"], k=0), "k")
    await raises(errors.NotFound, index.client.retrieve("nonsense", ["ice"]), "nonsense")
    await raises(errors.NotFound, index.client.get_premises("science", ["f1", "x1"]), "x1")
    assert (await search()).ids[0]


@pytest.mark.parametrize("field", ["mode", "truncate", "precision", "fusion.method"])
async def test_a_value_of_a_newer_proto_is_refused_by_name_instead_of_passed_over(index, field):
    await index.client.build("science", facts())
    request = index_pb2.RetrieveRequest(corpus="science", texts=["ice"], k=1)
    within = {"mode": request.options, "fusion.method": request.options.fusion}.get(field, request)
    setattr(within, field.rpartition(".")[2], 99)
    call = index.client.channel.unary(index.client._stub.Retrieve, request)
    await raises(errors.InvalidArgument, call, f"{field}: 99 is unknown to this service")


async def test_an_answer_over_the_size_of_a_call_is_refused(serve):
    async with serve() as index:
        await index.client.build("science", [premise(f"p{n}", f"fact {n} {'x' * 900}") for n in range(60)])
    async with serve(message_bytes=20_000) as index:
        await raises(errors.TooLarge, index.client.retrieve("science", ["fact"], k=60), "20,000", "smaller k")
        listed = [one.id async for one in index.client.list_premises("science")]
        assert listed == [f"p{n}" for n in range(60)], "a page is cut to what fits"


@pytest.mark.parametrize("ask", ["search", "retrieve"])
async def test_an_answer_that_cannot_fit_is_refused_before_anything_is_ranked(index, encoder, ask: str):
    async def ranked(*_args, **_options):
        raise AssertionError("it was ranked")

    await index.client.build("science", [premise(f"p{n}", f"fact {n}") for n in range(40)])
    public = next(one for _, one in index.server._servicers if hasattr(one, "_retrieval"))
    public._retrieval._limits = replace(public._retrieval._limits, message_bytes=20_000)
    calls = {
        "search": lambda count: index.client.search(
            "science", np.repeat(query(FACTS[0]), count, 0), space_id=SPACE, k=1000
        ),
        "retrieve": lambda count: index.client.retrieve("science", ["fact"] * count, k=1000, mode="lexical"),
    }
    assert await calls[ask](2)
    public._retrieval._stages = SimpleNamespace(search=ranked, answer=ranked)
    await raises(errors.TooLarge, calls[ask](100), "4,000 hits", "at most", "smaller k")


async def test_premises_are_not_collected_beyond_what_an_answer_holds(index, monkeypatch):
    await index.client.build("science", [premise(f"p{n}", f"{n} {'x' * 9000}") for n in range(3)])
    read = []
    sound = Premises.__getitem__

    def counted(self, ordinal):
        read.append(ordinal)
        return sound(self, ordinal)

    monkeypatch.setattr(Premises, "__getitem__", counted)
    await raises(errors.TooLarge, index.client.get_premises("science", ["p1"] * 1024), "4,194,304", "fewer")
    # once to find the ordinal by its id, once to collect it, until the answer is full
    assert len(read) < 1024 + 4_194_304 // 9000 + 2
    listed = [one.id async for one in index.client.list_premises("science")]
    assert listed == ["p0", "p1", "p2"]


async def test_search_works_without_an_encoder_and_retrieve_names_it(serve, encoder):
    async with serve(encode_timeout_s=1.0) as index:
        await index.client.build("science", facts())
        await encoder.stop()
        once = index.aeenc.with_options(retry=False).index
        call = once.retrieve("science", ["ice"], timeout_s=20)
        await raises(errors.Unavailable, call, encoder.target, "Search")
        info = await index.client.info()
        assert encoder.target in info.service.state_reason
        assert (await index.client.search("science", query("ice"), space_id=SPACE)).ids[0]


async def test_the_encoders_refusal_reaches_the_caller_and_the_state_recovers(index, encoder):
    await index.client.build("science", facts())
    encoder.servicer.fail = (grpc.StatusCode.INVALID_ARGUMENT, "texts[0]: has 300 tokens")
    await raises(errors.InvalidArgument, index.client.retrieve("science", ["ice"]), "300 tokens")
    encoder.servicer.fail = None
    await index.client.retrieve("science", ["ice"])
    await until(lambda: index.server.readiness.state == "SERVING")


async def test_premises_are_looked_up_by_id_and_alias_and_listed_in_order(index):
    await index.client.build("science", [*facts(), premise("copy", FACTS[2], ["train"])])
    found = await index.client.get_premises("science", ["copy", "f0"])
    assert [(one.id, list(one.aliases), list(one.splits)) for one in found] == [
        ("f2", ["copy"], ["train"]),
        ("f0", [], []),
    ]
    assert [one.text async for one in index.client.list_premises("science")] == FACTS

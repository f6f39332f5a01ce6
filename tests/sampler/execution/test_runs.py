"""The life of a run: starting, following, cancelling, resuming, listing, and what is refused."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from aeenc import errors, trees
from aeenc.v1 import sampler_pb2, types_pb2
from aeenc.values import RunConfig
from services.sampler import convert
from services.sampler.acs.algorithm import Tree
from services.sampler.execution import sampling
from services.sampler.records.node_store import NodeStore
from services.sampler.records.runs import Hypothesis
from support.worlds.sampler_world import HYPOTHESES, SamplerWorld, brute_force, finish, pair_set

CONFIG = {"corpus": "science", "oracle": "fake", "k": 6}


async def test_one_idempotency_key_starts_one_run_of_the_same_hypotheses_questions_and_answers(client):
    (name, text), *others = HYPOTHESES

    def asking(question: str, answer: str) -> list[Any]:
        return [(name, text, question, answer), *others]

    asked = asking("why?", "so")
    first = await client.start_run(asked, idempotency_key="once", **CONFIG)
    again = await client.start_run(asked, idempotency_key="once", **CONFIG)
    starts = [client.start_run(asked, idempotency_key="race", **CONFIG) for _ in range(5)]
    assert len({run.id for run in await asyncio.gather(*starts)}) == 1
    assert first.id == again.id
    assert len([one async for one in client.list_runs()]) == 2
    with pytest.raises(errors.AlreadyExists, match="with other k, max_depth; choose another key"):
        await client.start_run(asked, idempotency_key="once", **{**CONFIG, "k": 7}, max_depth=0)
    for other in (asking("how?", "so"), asking("why?", "no"), HYPOTHESES, asked[:2]):
        with pytest.raises(errors.AlreadyExists, match="with other hypotheses; choose another key"):
            await client.start_run(other, idempotency_key="once", **CONFIG)


async def test_a_start_goes_through_its_hypotheses_beside_the_event_loop(client, monkeypatch):
    read, threads = convert.from_start_requests, set[int]()

    class Noting(list[Hypothesis]):
        def __iter__(self) -> Iterator[Hypothesis]:
            threads.add(threading.get_ident())
            return super().__iter__()

    async def noting(*arguments: Any) -> tuple[RunConfig, list[Hypothesis]]:
        config, hypotheses = await read(*arguments)
        return config, Noting(hypotheses)

    monkeypatch.setattr(convert, "from_start_requests", noting)
    await client.start_run(HYPOTHESES, **CONFIG)
    assert threads
    assert threading.get_ident() not in threads


async def test_entailment_trees_are_exported_whether_many_or_few_fit_into_memory(
    client, monkeypatch: pytest.MonkeyPatch
):
    read, asked = NodeStore.trees, list[int]()

    async def counted(store: NodeStore, run_id: str, indexes: range) -> list[Tree]:
        asked.append(len(indexes))
        return await read(store, run_id, indexes)

    run = await client.start_run(HYPOTHESES, **CONFIG)
    await client.wait(run.id)
    monkeypatch.setattr(NodeStore, "trees", counted)
    small = [one async for one in client.export_trees(run.id)]
    assert asked[:3] == [1, 2, 4]
    asked.clear()
    monkeypatch.setattr(sampling, "EXPORT_CHARS", 1)
    assert [one async for one in client.export_trees(run.id)] == small
    assert asked == [1] * len(HYPOTHESES)
    assert len(small) >= len(HYPOTHESES) - 2
    positive = {(query, premise) for query, premise, sign in brute_force() if sign == "+"}
    for hypothesis_id, record in small:
        tree = trees.tree_from_record(json.loads(record))
        assert (hypothesis_id, tree.hypothesis) in HYPOTHESES
        edges = {(tree.texts[label], tree.texts[child]) for label, kids in tree.children.items() for child in kids}
        assert (tree.id, edges - positive) == (hypothesis_id, set())


@pytest.mark.parametrize(
    ("change", "hypotheses", "error", "message"),
    [
        ({"oracle": "oracel"}, HYPOTHESES, errors.InvalidArgument, "configured are: fake.*aeenc up --oracle"),
        ({"corpus": ""}, HYPOTHESES, errors.InvalidArgument, "config.corpus"),
        ({"corpus": "alchemy"}, HYPOTHESES, errors.NotFound, "alchemy"),
        ({"k": 1001}, HYPOTHESES, errors.InvalidArgument, "is 1001; give 1 to 1,000"),
        (
            {"negative_filter": {"relative_margin": -0.1}},
            HYPOTHESES,
            errors.InvalidArgument,
            "relative_margin: is -0.1",
        ),
        ({"negative_filter": {"absolute_margin": 3}}, HYPOTHESES, errors.InvalidArgument, "absolute_margin: is 3"),
        ({"negative_filter": {"min_rank": 9, "max_rank": 3}}, HYPOTHESES, errors.InvalidArgument, "max_rank: is 3"),
        ({}, [], errors.InvalidArgument, "hypotheses: is empty"),
        ({}, [("a", " ")], errors.InvalidArgument, r"hypotheses\[0\]: is empty"),
        ({}, [("", "text")], errors.InvalidArgument, r"hypotheses\[0\].id"),
        ({}, [("a", "x"), ("a", "y")], errors.InvalidArgument, "'a' stands twice"),
        ({}, [("a", "x" * 20_000)], errors.TooLarge, "over the limit"),
    ],
)
async def test_a_wrong_start_is_refused_by_name(client, change, hypotheses, error, message: str):
    with pytest.raises(error, match=message):
        await client.start_run(hypotheses, **{**CONFIG, **change})
    assert [one async for one in client.list_runs()] == []


async def test_events_are_replayed_from_any_position_and_end_with_the_run(client):
    run = await finish(client)
    events = [event async for event in client.watch(run.id)]
    assert [seq for seq, _ in events] == list(range(1, len(events) + 1))
    assert events[0][1].state == types_pb2.WORK_STATE_PENDING
    assert events[-1][1] == run
    judged = [event.progress.nodes_judged for _, event in events]
    assert judged == sorted(judged)
    tail = [event async for event in client.watch(run.id, from_seq=5)]
    assert tail == events[4:]


async def test_a_cancelled_run_keeps_its_pairs_and_resumes_without_asking_again(world: SamplerWorld, until_progress):
    world.oracle.delay_s = 0.03
    async with world.sampler(wave_nodes=4) as client:
        run = await client.start_run(HYPOTHESES, **CONFIG)
        await until_progress(client, run.id, nodes_judged=6)
        run = await client.cancel(run.id, request_id="stop")
        assert run.state == types_pb2.WORK_STATE_CANCELLED
        assert await client.cancel(run.id, request_id="stop") == run  # the answer of the first attempt was lost
        assert run.ended_at is not None
        kept = await pair_set(client, run.id)
        await asyncio.sleep(0.2)
        assert await pair_set(client, run.id) == kept != set()
        with pytest.raises(errors.FailedPrecondition, match="has ended"):
            await client.cancel(run.id)
        world.oracle.asked.clear()
        await client.resume(run.id)
        run = await client.wait(run.id)
        assert await pair_set(client, run.id) == brute_force()
        assert not set(world.oracle.asked) & {(query, premise) for query, premise, _ in kept}
        with pytest.raises(errors.FailedPrecondition, match="has succeeded"):
            await client.resume(run.id)


async def test_unknown_runs_and_malformed_tokens_are_refused(client):
    for call in (client.get_run("x"), client.cancel("x"), client.resume("x"), anext(client.watch("x"))):
        with pytest.raises(errors.NotFound, match="'x'"):
            await call
    with pytest.raises(errors.NotFound):
        await anext(client.list_pairs("x"))
    run = await finish(client, hypotheses=HYPOTHESES[:1])
    with pytest.raises(errors.InvalidArgument, match="sign: 99 is unknown"):
        await anext(client.list_pairs(run.id, sign=99))
    request = sampler_pb2.ListRunsRequest(page_token="%")
    with pytest.raises(errors.InvalidArgument, match="page_token"):
        await client.channel.unary(client._stub.ListRuns, request)


async def test_runs_and_pairs_are_listed_page_by_page(client):
    ids = [(await finish(client, hypotheses=[(f"t{n}", f"hypothesis {n}")])).id for n in range(3)]
    stub, unary = client._stub, client.channel.unary
    page = await unary(stub.ListRuns, sampler_pb2.ListRunsRequest(page_size=2))
    rest = await unary(stub.ListRuns, sampler_pb2.ListRunsRequest(page_size=2, page_token=page.next_page_token))
    assert [run.id for run in [*page.runs, *rest.runs]] == ids[::-1]
    assert rest.next_page_token == ""
    seqs = [pair.seq async for pair in client.list_pairs(ids[0], page_size=3)]
    assert seqs == list(range(1, len(seqs) + 1)) != []
    negatives = [pair async for pair in client.list_pairs(ids[0], sign=types_pb2.PAIR_SIGN_NEGATIVE)]
    assert {pair.sign for pair in negatives} == {types_pb2.PAIR_SIGN_NEGATIVE}
    assert len(negatives) == (await client.get_run(ids[0])).progress.negatives


@pytest.mark.parametrize("sign", [0, types_pb2.PAIR_SIGN_NEGATIVE])
async def test_a_page_of_pairs_ends_before_it_is_too_large_for_a_message(
    world: SamplerWorld, sign: types_pb2.PairSign, sent_by_redis
):
    most = 40_000
    signs = (types_pb2.PAIR_SIGN_POSITIVE, types_pb2.PAIR_SIGN_NEGATIVE)
    pairs = [types_pb2.Pair(query=f"{n} " + "q" * 9_000, premise="p" * 100, sign=signs[n % 2]) for n in range(30)]
    pairs.append(types_pb2.Pair(query="q" * 16_000, premise="p" * 16_000, sign=types_pb2.PAIR_SIGN_NEGATIVE))
    async with world.sampler(message_bytes=most) as client:
        run_id = ""
        for pair in pairs:
            run_id = (await client.import_pairs("science", [pair], run_id=run_id)).run_id
        seqs, token = [], ""
        while True:
            request = sampler_pb2.ListPairsRequest(run_id=run_id, page_size=100, page_token=token, sign=sign)
            before = await sent_by_redis()
            page = await client.channel.unary(client._stub.ListPairs, request)
            assert page.ByteSize() <= most
            assert sign or await sent_by_redis() - before < 4 * most
            seqs += [pair.seq for pair in page.pairs]
            if not (token := page.next_page_token):
                break
    assert seqs == [n for n, pair in enumerate(pairs, start=1) if sign in (0, pair.sign)]


async def test_imported_pairs_are_a_run_of_their_own(client):
    pair = types_pb2.Pair(query="q", premise="p", sign=types_pb2.PAIR_SIGN_NEGATIVE)
    pair.provenance.annotator = "ann"
    first = await client.import_pairs("science", [pair, pair], request_id="import-1")
    assert await client.import_pairs("science", [pair, pair], request_id="import-1") == first
    more = await client.import_pairs("science", [pair], run_id=first.run_id, request_id="import-2")
    assert (first.added, more.added, more.run_id) == (2, 1, first.run_id)
    listed = [p async for p in client.list_pairs(first.run_id)]
    assert [(p.seq, p.query, p.provenance.annotator) for p in listed] == [(n, "q", "ann") for n in (1, 2, 3)]
    run = await client.get_run(first.run_id)
    assert (run.state, run.progress.negatives) == (types_pb2.WORK_STATE_SUCCEEDED, 3)
    sampled = await finish(client, hypotheses=HYPOTHESES[:1])
    with pytest.raises(errors.InvalidArgument, match="not an import"):
        await client.import_pairs("science", [pair], run_id=sampled.id)


async def test_an_import_names_the_pair_and_the_value_that_no_run_could_have_recorded(client):
    def pair(**provenance: object) -> types_pb2.Pair:
        provenance = types_pb2.Provenance(**provenance)
        return types_pb2.Pair(query="q", premise="p", sign=types_pb2.PAIR_SIGN_POSITIVE, provenance=provenance)

    def changed(**fields: object) -> types_pb2.Pair:
        one = pair()
        one.MergeFrom(types_pb2.Pair(**fields))
        return one

    late = Timestamp(seconds=10**12)
    wrong = [
        (changed(query="q" * 16_385), r"pairs\[1\]\.query: .*16,38\d bytes .*16,384"),
        (changed(premise="  "), r"pairs\[1\]\.premise: is missing"),
        (types_pb2.Pair(premise="p", sign=types_pb2.PAIR_SIGN_POSITIVE), r"pairs\[1\]\.query"),
        (types_pb2.Pair(query="q", premise="p"), r"pairs\[1\]\.sign"),
        (changed(premise_id="i" * 1025), r"pairs\[1\]\.premise_id: has 1,025 characters; at most 1,024"),
        (changed(reason="r" * 1025), r"pairs\[1\]\.reason: has 1,025 characters; at most 1,024"),
        (changed(sign=17), r"pairs\[1\]\.sign: is 17"),
        (pair(annotator="a" * 1025), r"pairs\[1\]\.provenance\.annotator: has 1,025 characters"),
        (pair(grade=float("nan")), r"pairs\[1\]\.provenance\.grade: is nan; give a finite number"),
        (pair(score=float("-inf")), r"pairs\[1\]\.provenance\.score: is -inf"),
        (pair(judged_at=late), r"pairs\[1\]\.provenance\.judged_at: is 1000000000000 s"),
    ]
    for bad, message in wrong:
        with pytest.raises(errors.InvalidArgument, match=message):
            await client.import_pairs("science", [pair(), bad])
    with pytest.raises(errors.InvalidArgument, match="corpus: is empty"):
        await client.import_pairs("", [pair()])
    with pytest.raises(errors.NotFound, match="no run 'none'"):
        await client.import_pairs("science", [pair()], run_id="none")
    assert [run async for run in client.list_runs()] == []


async def test_an_import_of_too_many_pairs_is_refused_before_any_is_looked_at(client, monkeypatch: pytest.MonkeyPatch):
    looked_at: list[str] = []
    monkeypatch.setattr(convert, "_from_pair", lambda _, place: looked_at.append(place))
    pair = types_pb2.Pair(query="q", premise="p", sign=types_pb2.PAIR_SIGN_POSITIVE)
    request = sampler_pb2.ImportPairsRequest(corpus="science", pairs=[pair] * 1025)
    with pytest.raises(errors.TooLarge, match="pairs: 1,025 items are over the limit of 1,024"):
        await client.channel.unary(client._stub.ImportPairs, request)
    assert looked_at == []


async def test_info_names_the_oracles_and_the_limits(client):
    info = await client.info()
    assert list(info.oracles) == ["fake"]
    assert (info.service.limits.k, info.service.limits.items) == (1000, 1024)

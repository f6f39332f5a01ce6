"""A request at all its limits at once: it is answered, or refused from the request alone, before anything is ranked."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aeenc import errors, vectors
from aeenc.v1 import index_pb2, types_pb2
from services.index.ranking.stages import RETRIEVE_HIT_BYTES, check_answer
from services.index.values import CLAUSES
from services.kit.limits import Limits
from support.worlds.index_world import SPACE, premise, raises, vector_of

LIMITS = Limits(k=1000)
PREMISES = 1200
MODES = ("LEXICAL", "DENSE", "HYBRID", "ITERATIVE_LEXICAL")


@pytest.fixture
async def index(index):
    await index.client.build("science", [premise(f"p{n}", f"fact {n % 97} of {n % 31}") for n in range(PREMISES)])
    return index


def whole_filter() -> index_pb2.PremiseFilter:
    """A filter with as many ids, clauses and tags as one may have; premises without tags pass it."""
    clause = index_pb2.TagClause(none_of=[f"{'t' * 60}{n:4}".replace(" ", "-") for n in range(CLAUSES)])
    return index_pb2.PremiseFilter(
        any_split=[f"split-{n}" for n in range(LIMITS.items)],
        only_ids=[f"p{n}" for n in range(LIMITS.items)],
        before_id=f"p{PREMISES - 1}",
        any_clause=[clause] * CLAUSES,
    )


def retrieve(
    texts: int, k: int, mode: str = "LEXICAL", options: Mapping[str, Any] = {}, **fields: Any
) -> index_pb2.RetrieveRequest:
    return index_pb2.RetrieveRequest(
        corpus="science",
        texts=[f"fact {n}" for n in range(texts)],
        k=k,
        options={"mode": index_pb2.RetrieveMode.Value(f"RETRIEVE_MODE_{mode}"), **options},
        exclude_ids=[f"p{n}" for n in range(LIMITS.items)],
        **fields,
    )


def never_ranking(index: Any) -> None:
    async def ranked(*_args: Any, **_options: Any) -> None:
        raise AssertionError("it was ranked")

    public = next(one for _, one in index.server._servicers if hasattr(one, "_retrieval"))
    public._retrieval._stages = SimpleNamespace(search=ranked, answer=ranked)


REFUSED = {
    "texts and k": retrieve(LIMITS.items, LIMITS.k, filter=whole_filter()),
    "texts and rerank": retrieve(LIMITS.items, 1, options={"rerank": LIMITS.k}, filter=whole_filter()),
    "splits": retrieve(1, 1, filter=index_pb2.PremiseFilter(any_split=["dev"] * (LIMITS.items + 1))),
    "clauses": retrieve(
        1,
        1,
        filter=index_pb2.PremiseFilter(
            any_clause=[index_pb2.TagClause(all_of=[f"tag-{n}"]) for n in range(CLAUSES + 1)]
        ),
    ),
    "versions": retrieve(1, 1, options={"rerank": LIMITS.k, "rerank_versions": [f"x{n}" for n in range(9)]}),
    "accepted": retrieve(1, 1, accepted=[types_pb2.PremiseSet(premise_ids=["p1"] * (LIMITS.items + 1))]),
}


async def test_a_request_that_cannot_be_answered_is_refused_before_anything_is_ranked(index):
    never_ranking(index)
    for what, asked in REFUSED.items():
        with pytest.raises(errors.InvalidArgument, match=r"at most|over|up to"):
            pytest.fail(f"{what}: {await index.client.channel.unary(index.client._stub.Retrieve, asked, retry=False)}")


async def test_one_text_at_all_other_limits_is_answered_and_so_are_as_many_as_one_may_send(index):
    async def answered(*given: Any) -> Any:
        asked = retrieve(*given, filter=whole_filter())
        del asked.exclude_ids[1:]
        return await index.client.channel.unary(index.client._stub.Retrieve, asked)

    for mode in MODES:
        answer = await answered(1, LIMITS.k, mode, {"rerank": LIMITS.k})
        [found] = answer.results
        assert len(found.premises) == (LIMITS.k if mode == "DENSE" else len(found.premises)) > 0, mode
        assert len(answer.unknown_splits) == LIMITS.items
    for mode in ("LEXICAL", "DENSE"):
        assert len((await answered(LIMITS.items, 10, mode)).results) == LIMITS.items


async def test_a_search_of_as_many_vectors_as_one_may_send_is_answered_or_refused_by_their_number(index):
    rows = np.repeat(vector_of("fact 1")[None, :], LIMITS.items, 0)
    asked = index_pb2.SearchRequest(
        corpus="science", vectors=vectors.to_proto(rows), space_id=SPACE, k=100, filter=whole_filter()
    )
    answer = await index.client.channel.unary(index.client._stub.Search, asked)
    assert [len(hits.scores) for hits in answer.results] == [100] * LIMITS.items
    asked.k = LIMITS.k
    never_ranking(index)
    call = index.client.channel.unary(index.client._stub.Search, asked, retry=False)
    await raises(errors.TooLarge, call, "1,024,000 hits", "at most", "smaller k")


def test_the_pairs_of_a_reranking_have_the_limit_of_the_hits_of_an_answer():
    assert LIMITS.items * LIMITS.k > LIMITS.message_bytes // RETRIEVE_HIT_BYTES > 300 * LIMITS.k


@pytest.mark.parametrize(
    ("texts", "k", "rows", "fits"),
    [(4, 25, 1000, True), (4, 26, 1000, False), (101, 1, 1000, False), (4, 1000, 25, True), (4, 1000, 26, False)],
)
def test_hits_are_refused_from_the_first_that_no_answer_holds(texts: int, k: int, rows: int, fits: bool):
    with nullcontext() if fits else pytest.raises(errors.TooLarge, match="at most 100;"):
        check_answer(texts, k, rows, 7, Limits(message_bytes=706))

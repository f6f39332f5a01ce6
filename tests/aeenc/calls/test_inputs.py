"""Inputs of callers: what no message can hold, such as one string where a list belongs, is refused by its name."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest

from aeenc import (
    Answer,
    Channel,
    Encoded,
    EncoderClient,
    Fusion,
    IndexClient,
    PeopleClient,
    RegistryClient,
    Retrieval,
    RetrieveOptions,
    SamplerClient,
    Scored,
    SearchResult,
    TrainerClient,
    errors,
    values,
)
from aeenc.v1 import index_pb2, index_pb2_grpc
from support.worlds.sampler_world import connected

Call = Callable[..., Awaitable[object]]
VECTORS = np.ones((1, 2), np.float32)


def searched(channel: Channel, **options: Any) -> Awaitable[object]:
    return IndexClient(channel).search("science", VECTORS, space_id="s", **options)


def retrieved(channel: Channel, **options: Any) -> Awaitable[object]:
    return IndexClient(channel).retrieve("science", ["iron"], **options)


def explained(channel: Channel, ids: Any) -> Awaitable[object]:
    return IndexClient(channel).put_explanations("science", [("iron", ids)])


def trained(channel: Channel, **options: Any) -> Awaitable[object]:
    return TrainerClient(channel).start_job(corpus="science", **options)


def evaluated(channel: Channel, versions: Any) -> Awaitable[object]:
    return evaluated_by(channel, Retrieval(rerank=20, rerank_versions=versions))


def evaluated_by(channel: Channel, retrieval: Retrieval) -> Awaitable[object]:
    return TrainerClient(channel).evaluate("science", [("iron", ["a metal"])], retrieval=retrieval)


LISTS: list[tuple[str, Call]] = [
    ("exclude", lambda channel, given: searched(channel, exclude=given)),
    ("splits", lambda channel, given: searched(channel, splits=given)),
    ("exclude", lambda channel, given: retrieved(channel, exclude=given)),
    ("splits", lambda channel, given: retrieved(channel, splits=given)),
    ("accepted", lambda channel, given: retrieved(channel, accepted=given)),
    (r"accepted\[0\]", lambda channel, given: retrieved(channel, accepted=[given])),
    ("rerank_versions", lambda channel, given: retrieved(channel, rerank_versions=given)),
    ("rerank_versions", evaluated),
    ("texts", lambda channel, given: IndexClient(channel).rankings("science", given)),
    ("ids", lambda channel, given: IndexClient(channel).get_premises("science", given)),
    ("delete_ids", lambda channel, given: IndexClient(channel).build("c", [], delete_ids=given)),
    ("premise_ids", explained),
    ("run_ids", lambda channel, given: trained(channel, run_ids=given)),
    ("data_sets", lambda channel, given: trained(channel, data_sets=given)),
    ("premises", lambda channel, given: EncoderClient(channel).score("why", given)),
    ("premises", lambda channel, given: trained(channel, validation=[("iron", given)])),
]


def submitted(channel: Channel, **options: Any) -> Awaitable[object]:
    return PeopleClient(channel).submit(values.Lease(lease_id="l"), Answer(**{"verdicts": [], **options}))


def built(channel: Channel, premises: Any) -> Awaitable[object]:
    return IndexClient(channel).build("science", premises, resume_s=0.1)


def encoded(channel: Channel, texts: Any, **options: Any) -> Awaitable[object]:
    return EncoderClient(channel).encode(texts, **options)


def searched_by(channel: Channel, vectors: Any) -> Awaitable[object]:
    return IndexClient(channel).search("science", vectors, space_id="s")


def premise(**fields: Any) -> values.Premise:
    return values.Premise(**fields)


ODD: list[tuple[str, Call]] = [
    (r"texts\[1\]: has half a character \('b .ud83d'\)", lambda channel: encoded(channel, ["a", "b \ud83d"])),
    (r"texts\[1\]: is None; give text", lambda channel: encoded(channel, ["a", None])),
    ("texts: is 5; give a list", lambda channel: encoded(channel, 5)),
    (r"request_id: is 'a\\nb'; give", lambda channel: encoded(channel, ["a"], request_id="a\nb")),
    ("precision: is 'fp64'", lambda channel: encoded(channel, ["a"], precision="fp64")),
    ("lane: is 'fast'", lambda channel: encoded(channel, ["a"], lane="fast")),
    ("role: is 'fact'", lambda channel: encoded(channel, ["a"], role="fact")),
    (r"role: is '.ud800'; give one of query", lambda channel: encoded(channel, ["a"], role="\ud800")),
    ("lane: is 'unspecified'; give one of interactive", lambda channel: encoded(channel, ["a"], lane="unspecified")),
    ("role: is ''", lambda channel: encoded(channel, ["a"], role=None)),
    ("k: is -1; give a whole number from 0 to 4,294,967,295", lambda channel: retrieved(channel, k=-1)),
    ("k: is 1099511627776; give a whole number", lambda channel: retrieved(channel, k=2**40)),
    ("mode: is 'sparse'; give one of dense", lambda channel: retrieved(channel, mode="sparse")),
    ("prior: is 'much'; give a number", lambda channel: retrieved(channel, prior="much")),
    ("method: is ''; give one of min_max", lambda channel: retrieved(channel, fusion=fused(None))),
    ("method: is 'foo'; give one of min_max", lambda channel: retrieved(channel, fusion=fused("foo"))),
    ("fusion: is 'min_max'; give a Fusion", lambda channel: retrieved(channel, fusion="min_max")),
    ("accepted: is 5; give a list", lambda channel: retrieved(channel, accepted=5)),
    (r"exclude\[0\]: is 3; give text", lambda channel: retrieved(channel, exclude=[3])),
    ("judgement: is 'YES'; give one of explains", lambda channel: submitted(channel, verdicts={"x": "YES"})),
    ("judgement: is 2.5; give one of explains", lambda channel: submitted(channel, verdicts={"x": 2.5})),
    (r"verdicts\[0\]: is None; give a premise's id", lambda channel: submitted(channel, verdicts=[None])),
    ("alternatives: is one string", lambda channel: submitted(channel, alternatives="f1")),
    (r"premises\[0\]: is 7; give a text, a pair", lambda channel: built(channel, [7])),
    ("splits: is 5; give a list", lambda channel: built(channel, [premise(id="f", text="t", splits=5)])),
    ("wait_s: is nan; give seconds", lambda channel: RegistryClient(channel).publish("q1", wait_s=math.nan)),
    ("vectors have shape", lambda channel: searched_by(channel, [1.0])),
    ("vectors are of type <U4", lambda channel: searched_by(channel, [["iron"]])),
    ("negative_filter: is 5; give a NegativeFilter", lambda channel: started(channel, negative_filter=5)),
    ("negative_filter: has 'no_such', which", lambda channel: started(channel, negative_filter={"no_such": 1})),
    ("negative_filter: has 1, which", lambda channel: started(channel, negative_filter={1: 1})),
    (r"premises\[1\]: has half", lambda channel: built(channel, ["a", "\ud83d"])),
    ("version: is 3; give a list", lambda channel: RegistryClient(channel).publish(cast("Any", 3))),
    (r"version\[1\]: is 3; give text", lambda channel: RegistryClient(channel).publish(["q", cast("Any", 3)])),
    ("validation: has 'iron'; give", lambda channel: trained(channel, validation=["iron"])),
    (r"queries: has 'iron'; give \(text", lambda channel: TrainerClient(channel).evaluate("science", ["iron"])),
    ("retrieval: is a RetrieveOptions", lambda channel: evaluated_by(channel, RetrieveOptions(splits=["facts"]))),
]


def fused(method: Any) -> Fusion:
    return Fusion(method)


def started(channel: Channel, **options: Any) -> Awaitable[object]:
    return SamplerClient(channel).start_run([("h", "t")], **options)


@pytest.mark.parametrize(("told", "call"), ODD, ids=[told for told, _ in ODD])
async def test_what_no_message_can_hold_is_refused_by_its_parameter_and_place(told: str, call: Call) -> None:
    register = index_pb2_grpc.add_IndexAdminServiceServicer_to_server
    async with connected(register, Explanations(), retry=False) as channel:
        with pytest.raises(errors.InvalidArgument, match=told):
            await call(channel)


@pytest.mark.parametrize(
    "client", [EncoderClient, IndexClient, SamplerClient, TrainerClient, RegistryClient, PeopleClient]
)
async def test_a_value_of_no_type_is_refused_by_the_name_that_its_parameter_has(client: Any) -> None:
    channel = Channel("127.0.0.1:1", timeout_s=1, retry=False)
    told: list[errors.FieldViolation] = []
    for method in [one for name, one in inspect.getmembers(client, inspect.isfunction) if name[0] != "_"]:
        _, *parameters = inspect.signature(method).parameters.values()
        named = [one for one in parameters if one.kind != one.VAR_KEYWORD]
        for wrong in named:
            given = {one.name: "x" if one.annotation == "str" else ["x"] for one in named if one.default is one.empty}
            called = method(client(channel), **given | {wrong.name: object()})
            with pytest.raises((errors.InvalidArgument, errors.Unavailable)) as refused:  # the latter: it was sent
                await (anext(called) if inspect.isasyncgen(called) else called)
            told += refused.value.violations
            fields = {re.split(r"\W", one.field)[0] for one in refused.value.violations}
            assert fields <= {one.name for one in named}, f"{method.__name__}({wrong.name}=…): {refused.value}"
    assert told
    await channel.close()


async def test_what_a_callers_own_iterable_raises_is_not_taken_for_a_wrong_value() -> None:
    def texts() -> Iterator[str]:
        yield "a"
        raise ValueError("mine")

    channel = Channel("127.0.0.1:1", timeout_s=5, retry=False)
    with pytest.raises(ValueError, match=r"^mine$"):
        await encoded(channel, texts())
    await channel.close()


class Explanations(index_pb2_grpc.IndexAdminServiceServicer):
    """Reads all that it is sent."""

    async def PutExplanations(self, requests: AsyncIterator[Any], context: Any) -> index_pb2.PutExplanationsResponse:
        return index_pb2.PutExplanationsResponse(total_size=len([request async for request in requests]))

    async def BuildGeneration(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for _ in requests:
            yield index_pb2.BuildGenerationResponse()


@pytest.mark.parametrize(("field", "call"), LISTS, ids=[f"{number}-{name}" for number, (name, _) in enumerate(LISTS)])
async def test_one_string_in_place_of_a_list_is_refused_and_named(field: str, call: Call) -> None:
    async with connected(index_pb2_grpc.add_IndexAdminServiceServicer_to_server, Explanations()) as channel:
        with pytest.raises(errors.InvalidArgument, match=rf"{field}: is one string \('p17'\); give a list of strings"):
            await call(channel, "p17")


def test_answers_with_vectors_can_be_compared_and_kept_in_sets() -> None:
    """numpy's arrays have no one answer to `==`."""
    timings = values.Timings()
    makers: list[Callable[[], object]] = [
        lambda: Encoded(np.ones((1, 2), np.float32), "v", "s", timings, 0),
        lambda: Scored(np.ones(2, np.float32), "v", timings, 0),
        lambda: SearchResult([["p"]], [np.ones(2, np.float32)], "g", "s", True, timings),
    ]
    for make in makers:
        one, other = make(), make()
        assert (one == one, one == other) == (True, False)  # noqa: PLR0124
        assert {one, other} >= {one}

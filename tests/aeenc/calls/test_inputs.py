"""Inputs of callers: what no message can hold, such as one string where a list belongs, is refused by its name."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

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


class Asked:
    """The calls of clients of one channel, with what each needs beside the input of a test."""

    def __init__(self, channel: Channel) -> None:
        index, self.trainer = IndexClient(channel), TrainerClient(channel)
        self.index, self.registry = index, RegistryClient(channel)
        self.encode, self.score = EncoderClient(channel).encode, EncoderClient(channel).score
        self.search = partial(index.search, "science", space_id="s")
        self.retrieve = partial(index.retrieve, "science", ["iron"])
        self.build = partial(index.build, "science", resume_s=0.1)
        self.train = partial(self.trainer.start_job, corpus="science")
        self.submit = partial(PeopleClient(channel).submit, values.Lease(lease_id="l"))
        self.start = partial(SamplerClient(channel).start_run, [("h", "t")])


def evaluated(asked: Asked, retrieval: Any) -> Awaitable[object]:
    return asked.trainer.evaluate("science", [("iron", ["a metal"])], retrieval=retrieval)


LISTS: list[tuple[str, Call]] = [
    ("exclude", lambda asked, given: asked.search(VECTORS, exclude=given)),
    ("splits", lambda asked, given: asked.search(VECTORS, splits=given)),
    (r"accepted\[0\]", lambda asked, given: asked.retrieve(accepted=[given])),
    ("rerank_versions", lambda asked, given: asked.retrieve(rerank_versions=given)),
    ("rerank_versions", lambda asked, given: evaluated(asked, Retrieval(rerank=20, rerank_versions=given))),
    ("texts", lambda asked, given: asked.index.rankings("science", given)),
    ("ids", lambda asked, given: asked.index.get_premises("science", given)),
    ("delete_ids", lambda asked, given: asked.build([], delete_ids=given)),
    ("premise_ids", lambda asked, given: asked.index.put_explanations("science", [("iron", given)])),
    ("run_ids", lambda asked, given: asked.train(run_ids=given)),
    ("data_sets", lambda asked, given: asked.train(data_sets=given)),
    ("premises", lambda asked, given: asked.score("why", given)),
    ("premises", lambda asked, given: asked.train(validation=[("iron", given)])),
]
ODD: list[tuple[str, Call]] = [
    (r"texts\[1\]: has half a character \('b .ud83d'\)", lambda asked: asked.encode(["a", "b \ud83d"])),
    (r"texts\[1\]: is None; give text", lambda asked: asked.encode(["a", None])),
    ("texts: is 5; give a list", lambda asked: asked.encode(5)),
    (r"request_id: is 'a\\nb'; give", lambda asked: asked.encode(["a"], request_id="a\nb")),
    ("precision: is 'fp64'", lambda asked: asked.encode(["a"], precision="fp64")),
    (r"role: is '.ud800'; give one of query", lambda asked: asked.encode(["a"], role="\ud800")),
    ("role: is ''", lambda asked: asked.encode(["a"], role=None)),
    ("k: is -1; give a whole number from 0 to 4,294,967,295", lambda asked: asked.retrieve(k=-1)),
    ("prior: is 'much'; give a number", lambda asked: asked.retrieve(prior="much")),
    ("method: is ''; give one of min_max", lambda asked: asked.retrieve(fusion=Fusion(None))),
    ("fusion: is 'min_max'; give a Fusion", lambda asked: asked.retrieve(fusion="min_max")),
    ("judgement: is 'YES'; give one of explains", lambda asked: asked.submit({"x": "YES"})),
    ("judgement: is 2.5; give one of explains", lambda asked: asked.submit({"x": 2.5})),
    (r"verdicts\[0\]: is None; give a premise's id", lambda asked: asked.submit([None])),
    ("alternatives: is one string", lambda asked: asked.submit(Answer([], alternatives="f1"))),
    (r"premises\[0\]: is 7; give a text, a pair", lambda asked: asked.build([7])),
    ("splits: is 5; give a list", lambda asked: asked.build([values.Premise(id="f", text="t", splits=5)])),
    ("wait_s: is nan; give seconds", lambda asked: asked.registry.publish("q1", wait_s=math.nan)),
    ("vectors have shape", lambda asked: asked.search([1.0])),
    ("vectors are of type <U4", lambda asked: asked.search([["iron"]])),
    ("negative_filter: is 5; give a NegativeFilter", lambda asked: asked.start(negative_filter=5)),
    ("negative_filter: has 'no_such', which", lambda asked: asked.start(negative_filter={"no_such": 1})),
    ("negative_filter: has 1, which", lambda asked: asked.start(negative_filter={1: 1})),
    (r"premises\[1\]: has half", lambda asked: asked.build(["a", "\ud83d"])),
    ("version: is 3; give a list", lambda asked: asked.registry.publish(3)),
    (r"version\[1\]: is 3; give text", lambda asked: asked.registry.publish(["q", 3])),
    ("validation: has 'iron'; give", lambda asked: asked.train(validation=["iron"])),
    (r"queries: has 'iron'; give \(text", lambda asked: asked.trainer.evaluate("science", ["iron"])),
    ("retrieval: is a RetrieveOptions", lambda asked: evaluated(asked, RetrieveOptions(splits=["facts"]))),
]


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    register = index_pb2_grpc.add_IndexAdminServiceServicer_to_server
    async with connected(register, Explanations(), retry=False) as channel:
        yield Asked(channel)


@pytest.mark.parametrize(("told", "call"), ODD, ids=[told for told, _ in ODD])
async def test_what_no_message_can_hold_is_refused_by_its_parameter_and_place(
    asked: Asked, told: str, call: Call
) -> None:
    with pytest.raises(errors.InvalidArgument, match=told):
        await call(asked)


@pytest.mark.parametrize(
    "call",
    [
        lambda index: index.verify(),
        lambda index: index.verify("c", no=1),
        lambda index: anext(index.list_generations()),
    ],
)
async def test_arguments_that_a_method_does_not_take_are_refused_by_its_name(asked: Asked, call: Any) -> None:
    with pytest.raises(TypeError, match=r"^IndexClient\.(verify|list_generations)\(\) .*'(corpus|no)'$"):
        await call(asked.index)


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
        await EncoderClient(channel).encode(texts())
    await channel.close()


class Explanations(index_pb2_grpc.IndexAdminServiceServicer):
    """Reads all that it is sent."""

    async def PutExplanations(self, requests: AsyncIterator[Any], context: Any) -> index_pb2.PutExplanationsResponse:
        return index_pb2.PutExplanationsResponse(total_size=len([request async for request in requests]))

    async def BuildGeneration(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for _ in requests:
            yield index_pb2.BuildGenerationResponse()


@pytest.mark.parametrize(("field", "call"), LISTS, ids=[f"{number}-{name}" for number, (name, _) in enumerate(LISTS)])
async def test_one_string_in_place_of_a_list_is_refused_and_named(asked: Asked, field: str, call: Call) -> None:
    with pytest.raises(errors.InvalidArgument, match=rf"{field}: is one string \('p17'\); give a list of strings"):
        await call(asked, "p17")


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

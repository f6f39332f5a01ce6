"""What the SDK asks a sampler for when a run is started: configuration, key and hypotheses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import grpc
import pytest

from aeenc import SamplerClient, errors, values
from aeenc.v1 import sampler_pb2, sampler_pb2_grpc
from support.worlds.sampler_world import connected

ROOTS = [("t", "ice floats")]


class Starts(sampler_pb2_grpc.SamplerServiceServicer):
    """Keeps the messages that start runs; a run tells its whole configuration, as a sampler's does."""

    def __init__(self) -> None:
        self.messages: list[sampler_pb2.StartRunRequest] = []

    async def StartRun(self, requests: AsyncIterator[Any], context: Any) -> sampler_pb2.StartRunResponse:
        sent = [message async for message in requests]
        self.messages += sent
        return sampler_pb2.StartRunResponse(run=sampler_pb2.Run(id="r", config=sent[0].config))


@pytest.fixture
async def served() -> AsyncIterator[tuple[Starts, SamplerClient]]:
    servicer = Starts()
    async with connected(sampler_pb2_grpc.add_SamplerServiceServicer_to_server, servicer) as channel:
        yield servicer, SamplerClient(channel)


async def test_a_run_with_the_configuration_of_another_is_a_run_of_its_own(
    served: tuple[Starts, SamplerClient],
) -> None:
    client = served[1]
    first = await client.start_run(ROOTS, corpus="science", oracle="gold", k=7, idempotency_key="first")
    again = await client.start_run(ROOTS, config=first.config)
    assert (again.config.corpus, again.config.oracle, again.config.k) == ("science", "gold", 7)
    assert again.config.idempotency_key not in {"first", ""}
    assert (await client.start_run(ROOTS, config=first.config, idempotency_key="mine")).config.idempotency_key == "mine"


EARLIER = values.RunConfig(
    corpus="science",
    oracle="gold",
    k=7,
    max_depth=2,
    max_judgements=9,
    max_nodes_per_tree=9,
    max_negatives_per_query=9,
    split="train",
    conditioned=True,
    live=True,
    model=values.ModelSelector(label="canary"),
    negative_filter=values.NegativeFilter(min_rank=3, rewordings=True),
)


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("corpus", "other"),
        ("k", 3),
        ("max_depth", 0),
        ("max_judgements", 0),
        ("max_nodes_per_tree", 0),
        ("max_negatives_per_query", 0),
        ("split", ""),
        ("conditioned", False),
        ("live", False),
    ],
)
async def test_an_option_wins_over_the_configuration_beside_it_and_the_rest_stays(
    served: tuple[Starts, SamplerClient], option: str, given: Any
) -> None:
    run = await served[1].start_run(ROOTS, config=EARLIER, **{option: given})
    expected = replace(EARLIER, idempotency_key=run.config.idempotency_key, **{option: given})
    assert run.config == expected


@pytest.mark.parametrize("given", [{"max_rank": 50}, values.NegativeFilter(max_rank=50)], ids=["mapping", "value"])
async def test_a_filter_replaces_that_of_the_configuration(served: tuple[Starts, SamplerClient], given: Any) -> None:
    run = await served[1].start_run(ROOTS, config=EARLIER, negative_filter=given)
    assert run.config.negative_filter == values.NegativeFilter(max_rank=50)


FORM = r"hypotheses: .*give \(id, text\)"


@pytest.mark.parametrize(
    ("root", "told", "shown"),
    [
        ("Iron is a metal", FORM, "'Iron is a metal'"),
        (("t",), FORM, "('t',)"),
        (("t", "ice floats", "why?"), FORM, "('t', 'ice floats', 'why?')"),
        (("t", "a", "b", "c", "d"), FORM, "('t', 'a', 'b', 'c', 'd')"),
        (("t", ["ice floats"]), "text: .*give text", "['ice floats']"),
    ],
)
async def test_a_hypothesis_that_is_no_id_and_text_is_named_and_nothing_starts(
    served: tuple[Starts, SamplerClient], root: Any, told: str, shown: str
) -> None:
    with pytest.raises(errors.InvalidArgument, match=told) as raised:
        await served[1].start_run([*ROOTS, root], corpus="science", oracle="gold")
    assert shown in raised.value.message
    assert served[0].messages == []


class Exports(sampler_pb2_grpc.SamplerServiceServicer):
    """Fails each of the first calls after so many trees, and then sends three."""

    def __init__(self, *fails_after: int) -> None:
        self.fails_after, self.calls = list(fails_after), 0

    async def ExportTrees(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.calls += 1
        sent = self.fails_after.pop(0) if self.fails_after else 3
        for n in range(sent):
            yield sampler_pb2.ExportTreesResponse(hypothesis_id=f"t{n}", record_json="{}")
        if sent < 3:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "it restarts")


@pytest.mark.parametrize(("fails_after", "calls", "whole"), [((0, 0), 3, True), ((0, 1), 2, False), ((), 1, True)])
async def test_an_export_begins_again_as_long_as_nothing_has_come(
    fails_after: tuple[int, ...], calls: int, whole: bool
) -> None:
    exports, found = Exports(*fails_after), []
    async with connected(sampler_pb2_grpc.add_SamplerServiceServicer_to_server, exports) as channel:
        with nullcontext() if whole else pytest.raises(errors.Unavailable, match="restarts"):
            async for name, _ in SamplerClient(channel).export_trees("r"):
                found.append(name)
    assert (exports.calls, found) == (calls, ["t0", "t1", "t2"] if whole else ["t0"])

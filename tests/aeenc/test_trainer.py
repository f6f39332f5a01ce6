"""What the SDK asks a trainer for, seen by a trainer that is away at first."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from aeenc import TrainerClient, errors
from aeenc.v1 import trainer_pb2, trainer_pb2_grpc, types_pb2
from support.worlds.sampler_world import connected

GOLD = [("why does ice float?", ["ice is lighter than water"])]


class Starting(trainer_pb2_grpc.TrainerServiceServicer):
    """Breaks its first evaluation off."""

    def __init__(self) -> None:
        self.queries: list[list[str]] = []

    async def Evaluate(self, requests: AsyncIterator[Any], context: Any) -> trainer_pb2.EvaluateResponse:
        self.queries.append([query.text async for request in requests for query in request.queries])
        if len(self.queries) == 1:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")
        return trainer_pb2.EvaluateResponse(report=types_pb2.EvaluationReport(model_version="v1"))


@pytest.fixture
async def served() -> AsyncIterator[tuple[Starting, TrainerClient]]:
    servicer = Starting()
    async with connected(trainer_pb2_grpc.add_TrainerServiceServicer_to_server, servicer) as channel:
        yield servicer, TrainerClient(channel)


async def test_an_evaluation_is_made_again_with_all_its_queries(served: tuple[Starting, TrainerClient]) -> None:
    trainer, client = served
    assert (await client.evaluate("science", GOLD)).model_version == "v1"
    assert trainer.queries == [["why does ice float?"], ["why does ice float?"]]


@pytest.mark.parametrize("name", ["queries", "training", "trees"])
async def test_an_evaluation_of_an_iterator_is_not_made_again_since_the_iterator_cannot_begin_again(
    served: tuple[Starting, TrainerClient], name: str
) -> None:
    trainer, client = served
    given: dict[str, Any] = {"queries": GOLD, name: iter(())}
    with pytest.raises(errors.Unavailable, match="restarting"):
        await client.evaluate("science", **given)
    assert len(trainer.queries) == 1

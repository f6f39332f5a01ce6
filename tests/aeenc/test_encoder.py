"""The encoder's client: lane, precision and route reach the encoder, and its answers the caller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from aeenc import EncoderClient
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc, types_pb2
from support.worlds.index_world import HashedEncoder
from support.worlds.sampler_world import connected


class Recording(HashedEncoder):
    """Says in which precision it was asked."""

    async def _encode(self, request: Any, context: Any) -> Any:
        answer = await super()._encode(request, context)
        answer.precision = request.precision
        return answer

    async def Score(self, request: Any, context: Any) -> Any:
        answer = await super().Score(request, context)
        answer.truncated = 1
        return answer


@pytest.fixture
async def served() -> AsyncIterator[tuple[Recording, EncoderClient]]:
    servicer = Recording()
    async with connected(encoder_pb2_grpc.add_EncoderServiceServicer_to_server, servicer) as channel:
        yield servicer, EncoderClient(channel)


async def test_lane_precision_and_routing_key_reach_the_encoder(served: tuple[Recording, EncoderClient]) -> None:
    servicer, client = served
    encoded = await client.encode(["a"], precision="int8", lane="bulk", routing_key="user 7", request_id="r1")
    assert encoded.precision == "int8"
    assert (await client.encode(["a"])).precision == "", "an encoder that does not say is not taken to be exact"
    stream = client.encode_stream([["a"], ["b"]], precision="float32", lane="interactive", routing_key="user 8")
    assert [batch.precision async for batch in stream] == ["float32", "float32"]
    asked, default, *streamed = servicer.requests
    assert (asked.precision, asked.lane) == (types_pb2.PRECISION_INT8, encoder_pb2.LANE_BULK)
    assert (asked.routing_key, servicer.request_ids[0]) == ("user 7", "r1")
    assert (default.precision, default.lane, default.routing_key) == (0, 0, "")
    assert {(one.precision, one.lane, one.routing_key) for one in streamed} == {
        (types_pb2.PRECISION_FLOAT32, encoder_pb2.LANE_INTERACTIVE, "user 8")
    }
    assert len(set(servicer.request_ids[:3])) == 3, "a call without an id gets a fresh one"


async def test_premises_are_scored_against_a_query(served: tuple[Recording, EncoderClient]) -> None:
    servicer, client = served
    scored = await client.score("why", ["1", "11"], version="x1", truncate=True)
    assert scored.scores.dtype == np.float32
    assert scored.scores.tolist() == [1, 2]
    assert (scored.model_version, scored.truncated) == ("x1", 1)
    (request,) = servicer.score_requests
    assert (request.query, list(request.premises), request.model.version) == ("why", ["1", "11"], "x1")
    assert request.truncate == types_pb2.TRUNCATE_END

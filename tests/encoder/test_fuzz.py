"""For any request the encoder answers unit vectors or a refusal, and goes on serving."""

from __future__ import annotations

import asyncio
import contextlib
import random

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from aeenc.v1 import encoder_pb2, encoder_pb2_grpc, types_pb2
from support.models.tiny_checkpoints import DIM

REFUSALS = {"INVALID_ARGUMENT", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}
ENUM = st.sampled_from([0, 1, 2, 3, 4, -1, 2**31 - 1])
NAME = st.sampled_from(["", "stable", "no-such", "\0", "é" * 2000]) | st.text(max_size=20)
TEXT = (
    st.sampled_from(
        ["sun", "the earth", "x" * 16_384, "x" * 16_385, "é" * 8193, "\0", "\u202esun", "e" + "\u0301" * 99]
    )
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
    | st.text(" \t\n\u2003\u200b", max_size=5)
)
MODEL = st.none() | st.builds(
    lambda kind, name: types_pb2.ModelSelector(**{kind: name}), st.sampled_from(["label", "version"]), NAME
)
REQUEST = st.builds(
    encoder_pb2.EncodeRequest,
    texts=st.lists(TEXT, max_size=6) | st.sampled_from([["sun"] * 1024, ["sun"] * 1025]),
    role=st.sampled_from([1, 2]) | ENUM,
    model=MODEL,
    truncate=ENUM,
    space_id=st.just("") | NAME,
    lane=ENUM,
    precision=st.just(0) | ENUM,
    routing_key=NAME,
)
METHODS = {
    "/aeenc.v1.EncoderService/Encode": encoder_pb2.EncodeRequest,
    "/aeenc.v1.EncoderService/EncodeStream": encoder_pb2.EncodeStreamRequest,
    "/aeenc.v1.EncoderService/Score": encoder_pb2.ScoreRequest,
    "/aeenc.v1.EncoderService/GetInfo": encoder_pb2.EncoderServiceGetInfoRequest,
    "/grpc.health.v1.Health/Check": health_pb2.HealthCheckRequest,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": reflection_pb2.ServerReflectionRequest,
}
ROUNDS = 80


async def test_any_values_are_answered_with_unit_vectors_or_a_refusal_that_says_why(serve, stable) -> None:
    async with serve() as (_, client):
        loop = asyncio.get_running_loop()
        stub = encoder_pb2_grpc.EncoderServiceStub(client.channel.grpc)
        outcomes: set[str] = set()

        async def answer(request: encoder_pb2.EncodeRequest) -> None:
            call = stub.Encode(request, timeout=5)
            code, message = (await call.code()).name, await call.details()
            outcomes.add(code)
            if code != "OK":
                assert code in REFUSALS, (code, message)
                assert message
                return
            response = await call
            rows = np.frombuffer(response.embeddings.data, np.float32).reshape(-1, DIM)
            assert len(rows) == len(request.texts)
            np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)

        @settings(
            max_examples=60,
            derandomize=True,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate],  # to shrink a failure takes a minute of logged tracebacks
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
        )
        @example(encoder_pb2.EncodeRequest(texts=["sun"], role=1, model=types_pb2.ModelSelector(version="no-such")))
        @given(REQUEST)
        def holds(request: encoder_pb2.EncodeRequest) -> None:
            asyncio.run_coroutine_threadsafe(answer(request), loop).result(10)

        await asyncio.to_thread(holds)
        assert outcomes >= {"OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION"}  # the property met each kind


async def test_bytes_that_are_no_message_are_refused_and_are_no_failure_of_the_service(serve, stable, capfd) -> None:
    rng = random.Random(11)
    async with serve() as (server, client):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:

            async def send(method: str, request: bytes) -> None:
                call = channel.stream_stream(method)(iter([request]), timeout=5)
                answers = []
                with contextlib.suppress(grpc.aio.AioRpcError):
                    answers.extend([one async for one in call])
                code, message = (await call.code()).name, await call.details()
                try:
                    METHODS[method].FromString(request)
                except DecodeError:
                    assert code in {"INVALID_ARGUMENT", "INTERNAL"}, (method, request, code, message)
                    assert message
                else:
                    known = {"OK", "NOT_FOUND", "UNIMPLEMENTED", *REFUSALS}
                    assert code in known, (method, request, code, message)
                    assert answers or code != "OK"

            for _ in range(ROUNDS):
                sent = (send(method, rng.randbytes(rng.choice((0, 1, 2, 20, 500)))) for method in METHODS)
                await asyncio.gather(*sent)
        assert len((await client.encode(["sun"])).vectors) == 1
    assert "call failed" not in capfd.readouterr().err

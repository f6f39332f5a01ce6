"""Retries: a call that changes something keeps its request id; a list is sent whole again, an iterator is not.

And how long a call may take, of those that take longer than others.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory

from aeenc import Channel, IndexClient, PeopleClient, RegistryClient, SamplerClient, TrainerClient, errors
from aeenc.trees import Step, Tree
from aeenc.v1 import index_pb2, people_pb2, registry_pb2, sampler_pb2, trainer_pb2, types_pb2
from support.worlds.sampler_world import connected

SERVICES = [
    service
    for module in (index_pb2, people_pb2, sampler_pb2, trainer_pb2, registry_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
# RPC -> what calls it without naming a request
CALLS: dict[str, Callable[[Channel], Awaitable[object]]] = {
    "ActivateGeneration": lambda channel: IndexClient(channel).activate("science", "g"),
    "DeleteGeneration": lambda channel: IndexClient(channel).delete("science", "g"),
    "StartRun": lambda channel: SamplerClient(channel).start_run(
        [("t", "ice floats")], corpus="science", oracle="gold"
    ),
    "CancelRun": lambda channel: SamplerClient(channel).cancel("r"),
    "ResumeRun": lambda channel: SamplerClient(channel).resume("r"),
    "DeleteRun": lambda channel: SamplerClient(channel).delete("r"),
    "CollectGarbage": lambda channel: SamplerClient(channel).collect_garbage(),
    "ImportPairs": lambda channel: SamplerClient(channel).import_pairs("science", [types_pb2.Pair(query="q")]),
    "LeaseTask": lambda channel: PeopleClient(channel).lease("ann"),
    "SubmitVerdicts": lambda channel: PeopleClient(channel).submit(people_pb2.Lease(lease_id="l"), ["p1"]),
    "UndoVerdicts": lambda channel: PeopleClient(channel).undo("ann", "r"),
    "AmendVerdicts": lambda channel: PeopleClient(channel).amend("a", ["p1"], "ann"),
    "Adjudicate": lambda channel: PeopleClient(channel).adjudicate("r", "t", ["p1"], "ann"),
    "CloseTask": lambda channel: PeopleClient(channel).close("r", "t", "ann"),
    "StartJob": lambda channel: TrainerClient(channel).start_job(corpus="science", run_ids=["r"]),
    "CancelJob": lambda channel: TrainerClient(channel).cancel("j"),
    "DeleteJob": lambda channel: TrainerClient(channel).delete("j"),
    "DeleteCheckpoint": lambda channel: TrainerClient(channel).delete_checkpoint("q1"),
    "ResumeJob": lambda channel: TrainerClient(channel).resume("j"),
    "Publish": lambda channel: RegistryClient(channel).publish("q1"),
    "SetLabel": lambda channel: RegistryClient(channel).set_label("canary", "q1"),
    "DeleteLabel": lambda channel: RegistryClient(channel).delete_label("canary"),
    "Rollback": lambda channel: RegistryClient(channel).rollback(),
}
GOLD = [("why does ice float?", ["ice is lighter than water"])]
LONG = [f"number {n}, {'ice' * 3_400}" for n in range(600)]
LONG_GOLD = [(text, GOLD[0][1]) for text in LONG]
TREES = [Tree("t", text, {"sent1": "ice is light"}, (Step(("sent1",), "hypothesis", text),)) for text in LONG]
MESSAGE_BYTES = 4 * 1024 * 1024  # the most that a service accepts, unless its settings say otherwise
# Field of a stream's messages -> what takes a list of any length for it, and one that no single message holds
LISTED: dict[str, tuple[Callable[[Channel, Any], Awaitable[object]], list[Any]]] = {
    "hypotheses": (
        lambda channel, given: SamplerClient(channel).start_run(given, corpus="science", oracle="gold"),
        [(f"t{n}", text) for n, text in enumerate(LONG)],
    ),
    "explanations": (lambda channel, given: IndexClient(channel).put_explanations("science", given), LONG_GOLD),
    "queries": (lambda channel, given: TrainerClient(channel).evaluate("science", given), LONG_GOLD),
    "training": (lambda channel, given: TrainerClient(channel).evaluate("science", GOLD, training=given), LONG_GOLD),
    "trees": (lambda channel, given: TrainerClient(channel).evaluate("science", GOLD, trees=given), TREES),
}
ELSEWHERE = {"BuildGeneration"}  # test_index.py: it goes on behind what is durable


def key_of(request: Any) -> str:
    """What makes a request safe to repeat; empty: nothing."""
    if request.DESCRIPTOR.fields_by_name.get("config"):
        return str(getattr(request.config, "idempotency_key", ""))
    return str(getattr(request, "request_id", "") or getattr(request, "client_seq", ""))


class Shaky:
    """Answers every RPC with an empty message, and the first call with UNAVAILABLE after it has been carried out."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.sent: list[list[Any]] = []  # the messages of each call
        self.left_s: list[float] = []

    def handler(self, service: Any) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            service.full_name, {method.name: self._method(method) for method in service.methods}
        )

    def _method(self, method: Any) -> grpc.RpcMethodHandler:
        request, response = (message_factory.GetMessageClass(kind) for kind in (method.input_type, method.output_type))

        async def answer(messages: list[Any], context: Any) -> Any:
            self.sent.append(messages)
            self.left_s.append(context.time_remaining())
            self.keys.append(key_of(messages[0]))
            if len(self.keys) == 1:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke before the answer came")
            return response()

        async def unary(message: Any, context: Any) -> Any:
            return await answer([message], context)

        async def streamed(messages: Any, context: Any) -> Any:
            return await answer([message async for message in messages], context)

        kind = grpc.stream_unary_rpc_method_handler if method.client_streaming else grpc.unary_unary_rpc_method_handler
        return kind(
            streamed if method.client_streaming else unary,
            request_deserializer=request.FromString,
            response_serializer=response.SerializeToString,
        )


def has_key(message: Any) -> bool:
    inner = [
        field.message_type for field in message.fields if field.name in {"config", "header"} and field.message_type
    ]
    names = {field.name for one in (message, *inner) for field in one.fields}
    return bool(names & {"request_id", "idempotency_key", "client_seq"})


def test_every_rpc_that_takes_a_request_id_is_called_here() -> None:
    known = {method.name for service in SERVICES for method in service.methods if has_key(method.input_type)}
    assert known == set(CALLS) | ELSEWHERE


def register(shaky: Shaky, server: Any) -> None:
    server.add_generic_rpc_handlers([shaky.handler(service) for service in SERVICES])


@pytest.mark.parametrize("name", LISTED)
async def test_a_long_list_travels_in_messages_that_a_service_accepts_and_is_repeated_unless_it_is_an_iterator(
    name: str,
):
    call, given = LISTED[name]
    async with connected(register, shaky := Shaky()) as channel:
        await call(channel, given)
    first, repeated = shaky.sent
    assert first == repeated
    held = [str(one) for message in first for one in getattr(message, name)]
    assert [re.findall(r"number \d+,", one)[0] for one in held] == [text[: text.index(",") + 1] for text in LONG]
    assert max(message.ByteSize() for message in first) < MESSAGE_BYTES
    assert not {"config", "header"} & {field.name for message in first[1:] for field, _ in message.ListFields()}
    async with connected(register, shaky := Shaky()) as channel:
        with pytest.raises(errors.Unavailable, match="the connection broke"):
            await call(channel, iter(given))
    assert len(shaky.sent) == 1


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_that_changes_something_is_repeated_under_the_same_id(name: str) -> None:
    shaky = Shaky()
    async with connected(register, shaky) as channel:
        for _ in range(2):
            await CALLS[name](channel)
    first, repeated, second = shaky.keys
    assert first == repeated != ""
    assert second not in {first, ""}, "another call is another request"


@pytest.mark.parametrize(
    ("limit_s", "call"),
    [
        (600, CALLS["ActivateGeneration"]),
        (3600, lambda channel: IndexClient(channel).verify("science")),
        (120, lambda channel: PeopleClient(channel).get_agreement("r")),
        (90, lambda channel: PeopleClient(channel).get_agreement("r", timeout_s=90)),
        (215, lambda channel: RegistryClient(channel).publish("q1", wait_s=200)),
        (15, lambda channel: RegistryClient(channel).rollback(wait_s=-200)),
    ],
)
async def test_a_call_may_take_as_long_as_what_it_waits_for(limit_s: float, call: Callable[..., Any]) -> None:
    async with connected(register, shaky := Shaky()) as channel:
        await call(channel)
    assert shaky.left_s[0] == pytest.approx(limit_s, rel=0.05), "gRPC rounds long ones"

"""Every RPC of a running fleet, with every odd value in every field of its request, one at a time.

Services and fields come from the descriptors, so a new RPC is scanned by itself. A request is sent as bytes: a field
may also have half a character, another type, or be missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from aeenc.v1 import encoder_pb2, index_pb2, oracle_pb2, registry_pb2, sampler_pb2, trainer_pb2
from benchmarks.house.scan_values import FLOATS, MIB, TEXTS, Scanned

FILES = {
    "encoder": encoder_pb2,
    "index": index_pb2,
    "sampler": sampler_pb2,
    "trainer": trainer_pb2,
    "registry": registry_pb2,
    "oracle": oracle_pb2,
}
TOGETHER = 16
DEPTH = 3  # of messages in messages
UNARY_S, STREAM_S = 8.0, 0.5  # a watch ends when its caller's time is over
WRONG = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
HALF, HOLE = b"\xed\xa0\xbd", "@@@"  # of a character, in UTF-8, and the text whose place it takes
LOST = "Internal error from Core"  # this process's library says it when an answer comes before all was sent
MANY = 20_000  # items of a list
_WHOLE = {
    FieldDescriptor.CPPTYPE_INT32: (0, -1, 2**31 - 1, -(2**31)),
    FieldDescriptor.CPPTYPE_INT64: (0, -1, 2**63 - 1, -(2**63)),
    FieldDescriptor.CPPTYPE_UINT32: (0, 1, 2**31, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 1, 2**63, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (0, -1, 99, 2**31 - 1),
    FieldDescriptor.CPPTYPE_BOOL: (False, True),
}
_FLOATS = {FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE}
_LENGTH_DELIMITED, _VARINT = 2, 0

Sound = Mapping[str, Any]  # what a field of a name holds while another one is odd


async def scan_rpcs(addresses: Mapping[str, str], known: Sound) -> Scanned:
    """Calls all methods at the addresses of the services, by the names of FILES."""
    found = Scanned()
    gate = asyncio.Semaphore(TOGETHER)
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    for name, file in FILES.items():
        async with grpc.aio.insecure_channel(addresses[name], options=options) as channel:

            async def one(method: MethodDescriptor, what: str, messages: Sequence[bytes], at: Any = channel) -> None:
                async with gate:
                    await _call(found, at, method, what, messages)

            for service in file.DESCRIPTOR.services_by_name.values():
                for method in service.methods:
                    await asyncio.gather(*(one(method, *request) for request in requests_of(method, known)))
                    await _lives(found, channel, method)
    return found


def requests_of(method: MethodDescriptor, known: Sound) -> Iterator[tuple[str, list[bytes]]]:
    """The streams of messages of a method, each with one odd field, and what that is."""
    kind = method.input_type
    parts = [one.name for one in kind.oneofs[0].fields] if method.client_streaming and kind.oneofs else [""]
    whole = [_sound(kind, known, chosen=part) for part in parts]
    sent = [one.SerializeToString() for one in whole]
    yield "nothing odd", sent
    yield "no message" if method.client_streaming else "an empty message", [] if method.client_streaming else [b""]
    for place, message in enumerate(whole):
        for what, odd in _odd(message, known, DEPTH):
            yield what, [*sent[:place], odd, *sent[place + 1 :]]


def _sound(kind: Descriptor, known: Sound, depth: int = DEPTH, chosen: str = "") -> Message:
    """A message whose fields are filled, of a oneof the one chosen or the first."""
    made: Message = GetMessageClass(kind)()
    taken: set[str] = set()
    for field in kind.fields:
        group = field.containing_oneof
        if group is not None and len(group.fields) > 1:
            if group.name in taken or (chosen and field.name != chosen):
                continue
            taken.add(group.name)
        _fill(made, field, known, depth)
    return made


def _fill(made: Message, field: FieldDescriptor, known: Sound, depth: int) -> None:
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry or not depth:
            return
        inner = _sound(field.message_type, known, depth - 1)
        if field.is_repeated:
            getattr(made, field.name).add().CopyFrom(inner)
        else:
            getattr(made, field.name).CopyFrom(inner)
    elif (value := known.get(f"{made.DESCRIPTOR.name}.{field.name}", known.get(field.name))) is not None:
        _set(made, field, value)


def _set(made: Message, field: FieldDescriptor, value: Any) -> None:
    if field.is_repeated:
        made.ClearField(field.name)
        getattr(made, field.name).extend(value if isinstance(value, list) else [value])
    else:
        setattr(made, field.name, value)


def _odd(message: Message, known: Sound, depth: int) -> Iterator[tuple[str, bytes]]:
    """The message as bytes with each odd value for each of its fields, and for those of the messages in it."""
    for field in message.DESCRIPTOR.fields:
        bare = _copy(message)
        bare.ClearField(field.name)
        rest = bare.SerializeToString()
        yield f"{field.name}: missing", rest
        is_text = field.cpp_type in {field.CPPTYPE_STRING, field.CPPTYPE_MESSAGE}
        wrong = _VARINT if is_text else _LENGTH_DELIMITED
        yield f"{field.name}: another type", rest + _tag(field, wrong) + (b"\x05" if is_text else b"\x03abc")
        if field.message_type is not None:
            yield f"{field.name}: no message", rest + _tag(field, _LENGTH_DELIMITED) + b"\x03\xff\xff\xff"
            yield f"{field.name}: empty", rest + _tag(field, _LENGTH_DELIMITED) + b"\x00"
            if depth:
                inner = _sound(field.message_type, known, depth - 1)
                for what, odd in _odd(inner, known, depth - 1):
                    yield f"{field.name}.{what}", rest + _tag(field, _LENGTH_DELIMITED) + _length(len(odd)) + odd
            continue
        for what, value in _values(field):
            made = _copy(bare)
            _set(made, field, value)
            data = made.SerializeToString()
            yield f"{field.name}: {what}", data.replace(HOLE.encode(), HALF)


def _values(field: FieldDescriptor) -> Iterator[tuple[str, Any]]:
    kind = field.cpp_type
    if field.type == field.TYPE_BYTES:
        odd: dict[str, Any] = {"empty": b"", "NUL": b"\0", "3 MiB": b"\0" * 3 * MIB, "NaN": b"\0\0\xc0\x7f" * 32}
    elif kind == field.CPPTYPE_STRING:
        odd = {**TEXTS, "half a character": HOLE, "3 MiB": "x" * 3 * MIB}
    else:
        odd = {str(value): value for value in (FLOATS if kind in _FLOATS else _WHOLE[kind])}
    yield from odd.items()
    if field.is_repeated:
        yield "many", [next(iter(odd.values()))] * MANY
        yield "twice", [list(odd.values())[-1 if kind != field.CPPTYPE_STRING else 2]] * 2


def _copy(message: Message) -> Message:
    made = type(message)()
    made.CopyFrom(message)
    return made


def _tag(field: FieldDescriptor, wire_type: int) -> bytes:
    return _length(field.number << 3 | wire_type)


def _length(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


async def _call(found: Scanned, channel: Any, method: MethodDescriptor, what: str, messages: Sequence[bytes]) -> None:
    """Makes a call and judges its status: the service must have chosen it."""
    path = f"/{method.containing_service.full_name}/{method.name}"

    async def stream() -> Any:
        for message in messages:
            yield message

    timeout = STREAM_S if method.server_streaming else UNARY_S
    call = channel.stream_stream(path)(stream(), timeout=timeout)
    try:
        async for _ in call:
            pass
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        pass
    code, details = await call.code(), await call.details()
    lost = code is grpc.StatusCode.UNAVAILABLE and not await call.trailing_metadata()
    wrong = (code in WRONG and details != LOST) or lost
    found.ended(code.name, f"{method.name}: {code.name} {str(details)[:60]} | {what}: {details}" if wrong else "")


async def _lives(found: Scanned, channel: Any, method: MethodDescriptor) -> None:
    """After a method's calls its service must still answer."""
    service = method.containing_service
    if "GetInfo" not in service.methods_by_name:
        return
    try:
        await channel.unary_unary(f"/{service.full_name}/GetInfo")(b"", timeout=UNARY_S)
    except grpc.aio.AioRpcError as error:
        found.ended("dead", f"{service.name}: does not answer after {method.name} | {error.code()} {error.details()}")

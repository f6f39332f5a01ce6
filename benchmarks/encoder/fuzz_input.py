"""The input of the fuzzer: calls with the outcomes that their bytes allow, and connections that break HTTP/2.

The judgement is made here from the contract in `protos/`, independently of the service's own checks.
"""

from __future__ import annotations

import asyncio
import random
import re
import struct
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from aeenc.v1 import encoder_pb2, types_pb2

SERVICE = "/aeenc.v1.EncoderService/"
ENCODE, STREAM, SCORE, INFO = (SERVICE + name for name in ("Encode", "EncodeStream", "Score", "GetInfo"))
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFLECT = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
KNOWN: dict[str, Any] = {
    ENCODE: encoder_pb2.EncodeRequest,
    STREAM: encoder_pb2.EncodeStreamRequest,
    SCORE: encoder_pb2.ScoreRequest,
    INFO: encoder_pb2.EncoderServiceGetInfoRequest,
    CHECK: health_pb2.HealthCheckRequest,
    WATCH: health_pb2.HealthCheckRequest,
    REFLECT: reflection_pb2.ServerReflectionRequest,
}
STREAMING = {STREAM, REFLECT}  # in the direction of requests
UNKNOWN_METHODS = (SERVICE + "Drop", "/", "/aeenc.v1.IndexService/Search", "/a/b/c", SERVICE + "x" * 500)
LANES, PRECISIONS, TRUNCATES = (
    {*kind.values()} for kind in (encoder_pb2.Lane, types_pb2.Precision, types_pb2.Truncate)
)
MESSAGE_BYTES, ITEMS, TEXT_BYTES, KEY_BYTES = 4 * 1024 * 1024, 1024, 16 * 1024, 256
METADATA_BYTES = 4000  # more than that may be refused by gRPC itself
TIGHT_S = 3.0  # a shorter deadline may always be over
PIECES = (
    "", " ", "\t\n\u2003\u3000", "sun", "the earth rotates", "a\0b", "\0", "\u202eabc\u202c", "e" + "\u0301" * 300,
    "👩‍👩‍👧‍👦" * 20, "\ufeff", "\u200b", "\u200b" * 50, "\ud7ff\ue000\uffff\U0010ffff", "x" * 16384, "x" * 16385,
    "é" * 8192, "é" * 8193, "a " * 8192, "[CLS] [SEP] [MASK] [PAD] [UNK]", "##ing ##",
    "%s%n{}{0}", "0" * 5000, "\r\n", "漢字" * 500, "\x1b[2J",
)  # fmt: skip
NAMES = ("", "stable", "canary", "run-1", "no-such", "a:b:c", "../../etc/passwd", "*", "\0", "é" * 2000, "s" * 100_000)


@dataclass(frozen=True)
class Attempt:
    """One call: what is sent, how it ends on the caller's side, and the names of the statuses it may end with."""

    how: str
    method: str
    requests: tuple[bytes, ...]
    allowed: frozenset[str]
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    timeout_s: float | None = 10.0
    cancel_after_s: float | None = None
    finishes: bool = True

    def __str__(self) -> str:
        sent = ", ".join(f"{len(request)} bytes {request[:120].hex()}" for request in self.requests[:3])
        keys = {key: value[:40] for key, value in self.metadata}
        ends = f"cancelled after {self.cancel_after_s}, finishes {self.finishes}"
        return f"{self.how}: [{sent}] {len(self.requests)} in all, {keys}, timeout {self.timeout_s}, {ends}"


def attempt(rng: random.Random) -> Attempt:
    """The next call."""
    how = rng.choices(("random", "mutated", "hostile", "unknown method", "over 4 MiB"), (25, 25, 45, 4, 0.3))[0]
    method = rng.choice(UNKNOWN_METHODS) if how == "unknown method" else _method(rng)
    if how == "over 4 MiB":
        method = rng.choice((ENCODE, STREAM, SCORE))
    count = rng.choices((0, 1, 2, 6), (1, 4, 3, 2) if method in STREAMING else (1, 60, 1, 0))[0]
    requests = tuple(_bytes(rng, how, method) for _ in range(count))
    metadata = _metadata(rng)
    timeout_s = rng.choices((10.0, 4.0, 1.0, 0.02, 0.001, 0.0, -1.0, 1e9, None), (60, 20, 5, 3, 3, 1, 1, 3, 3))[0]
    cancel_after_s = rng.choice((0.0, 0.001, 0.01, 0.2)) if rng.random() < 0.06 else None
    finishes = rng.random() >= 0.03
    if method == WATCH or not finishes or (count != 1 and method not in STREAMING):
        timeout_s = rng.choice((0.05, 0.3))
    allowed = set(_allowed(method, requests))
    if timeout_s is not None and timeout_s < TIGHT_S:
        allowed |= {"DEADLINE_EXCEEDED", "CANCELLED"}  # the second from our own library, when it gives up early
    if cancel_after_s is not None:
        allowed.add("CANCELLED")
    if sum(len(key) + len(value) for key, value in metadata) > METADATA_BYTES:
        allowed.add("RESOURCE_EXHAUSTED")
    return Attempt(how, method, requests, frozenset(allowed), metadata, timeout_s, cancel_after_s, finishes)


def wrong_in(tried: Attempt, answers: list[bytes]) -> str:
    """The fault in the answers to a call that ended with OK; empty when there is none."""
    if tried.method == ENCODE:
        asked = encoder_pb2.EncodeRequest.FromString(tried.requests[0])
        return _wrong_vectors(asked, encoder_pb2.EncodeResponse.FromString(answers[0]))
    if tried.method == STREAM:
        if len(answers) != len(tried.requests):
            return f"{len(answers)} answers to {len(tried.requests)} batches"
        for request, answer in zip(tried.requests, answers, strict=True):
            sent = encoder_pb2.EncodeStreamRequest.FromString(request)
            got = encoder_pb2.EncodeStreamResponse.FromString(answer)
            if sent.batch_seq != got.batch_seq:
                return "a batch out of its order"
            if wrong := _wrong_vectors(sent.batch, got.batch):
                return wrong
    return ""


def _wrong_vectors(asked: encoder_pb2.EncodeRequest, answer: encoder_pb2.EncodeResponse) -> str:
    got = answer.embeddings
    if got.rows != len(asked.texts) or not answer.model_version or not answer.space_id:
        return f"{got.rows} rows for {len(asked.texts)} texts of {answer.model_version!r}"
    kind = np.float32 if got.dtype == types_pb2.D_TYPE_FLOAT32 else np.float16
    lengths = np.linalg.norm(np.frombuffer(got.data, kind).reshape(got.rows, got.dim).astype(np.float32), axis=1)
    return "" if np.all(np.abs(lengths - 1) < 1e-3) else f"vectors of length {lengths.min()} to {lengths.max()}"


def _allowed(method: str, requests: tuple[bytes, ...]) -> frozenset[str]:
    """The statuses that the contract allows for these bytes, with time enough and no cancellation."""
    if method not in KNOWN:
        return frozenset({"UNIMPLEMENTED"})
    one = [_allowed_for(method, request) for request in requests]
    if method in STREAMING:
        ends = frozenset[str]().union(*one) - {"OK"}  # any message may be the one that ends it
        return ends | ({"OK"} if all("OK" in codes for codes in one) else set())
    if len(requests) == 1:
        return one[0]
    # No message, or two, where one belongs: gRPC's own affair, and it may say so, or take the first, or wait.
    return frozenset({"INTERNAL", "UNIMPLEMENTED", "CANCELLED", "DEADLINE_EXCEEDED"}).union(*one)


def _allowed_for(method: str, request: bytes) -> frozenset[str]:
    if len(request) > MESSAGE_BYTES:
        return frozenset({"RESOURCE_EXHAUSTED"})
    try:
        message = KNOWN[method].FromString(request)
    except DecodeError:
        return frozenset({"INTERNAL", "INVALID_ARGUMENT"})
    if method == ENCODE:
        return _allowed_encode(message)
    if method == STREAM:
        return _allowed_encode(message.batch)
    if method == SCORE:
        bad = _bad([message.query]) or _bad(message.premises) or message.truncate not in TRUNCATES
        return frozenset({"INVALID_ARGUMENT"} if bad else {"UNIMPLEMENTED"})  # no cross-encoder is published
    ends = {CHECK: {"OK", "NOT_FOUND"}, WATCH: {"DEADLINE_EXCEEDED", "CANCELLED"}}
    return frozenset(ends.get(method, {"OK"}))


def _allowed_encode(asked: encoder_pb2.EncodeRequest) -> frozenset[str]:
    unknown = asked.lane not in LANES or asked.precision not in PRECISIONS or asked.truncate not in TRUNCATES
    if unknown or _bad(asked.texts) or asked.role not in {1, 2} or len(asked.routing_key.encode()) > KEY_BYTES:
        return frozenset({"INVALID_ARGUMENT"})
    named = asked.model.label or asked.model.version
    codes = {"OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}
    if asked.space_id or named or asked.precision:
        codes.add("FAILED_PRECONDITION")
    if asked.truncate != types_pb2.TRUNCATE_END or asked.precision:
        codes.add("INVALID_ARGUMENT")
    if named and (asked.role == encoder_pb2.ROLE_PREMISE or named != "stable"):
        codes.discard("OK")
    return frozenset(codes)


def _bad(texts: Any) -> bool:
    return not 1 <= len(texts) <= ITEMS or any(not text.strip() or len(text.encode()) > TEXT_BYTES for text in texts)


def _method(rng: random.Random) -> str:
    return rng.choices(tuple(KNOWN), (40, 25, 15, 5, 5, 3, 7))[0]


def _bytes(rng: random.Random, how: str, method: str) -> bytes:
    if how in {"random", "unknown method"}:
        return rng.randbytes(rng.choice((0, 1, 2, 5, 20, 100, 3000, 60_000)))
    data: bytes = _message(rng, method).SerializeToString()
    if how == "over 4 MiB":
        return data + b"\x7a" + _varint(MESSAGE_BYTES) + b"x" * MESSAGE_BYTES  # field 15, which nobody has
    return _mutated(rng, data) if how == "mutated" else data


def _varint(number: int) -> bytes:
    return bytes([*((number >> shift & 0x7F) | 0x80 for shift in (0, 7, 14)), number >> 21])


def _mutated(rng: random.Random, data: bytes) -> bytes:
    """Some bytes flipped, cut, repeated or put in."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(data))
        until = min(len(data), at + rng.choice((1, 2, 8, 64)))
        kind = rng.randrange(4)
        if kind == 0 and until > at:
            data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] if rng.random() < 0.3 else data[:at] + data[until:]
        elif kind == 2:
            data = data[:until] + data[at:until] * rng.choice((1, 1, 3, 500)) + data[until:]
        else:
            data = data[:at] + rng.randbytes(until - at) + data[at:]
    return data


def _message(rng: random.Random, method: str) -> Any:
    """A well-formed message, of good and hostile values."""
    if method == ENCODE:
        return _encode(rng)
    if method == STREAM:
        seq = rng.choice((0, 1, 2**63, 2**64 - 1, rng.getrandbits(64)))
        return encoder_pb2.EncodeStreamRequest(batch=_encode(rng) if rng.random() < 0.9 else None, batch_seq=seq)
    if method == SCORE:
        query, truncate = _text(rng), rng.choice((0, 1, 2, 7))
        return encoder_pb2.ScoreRequest(query=query, premises=_texts(rng), model=_model(rng), truncate=truncate)
    if method in {CHECK, WATCH}:
        return health_pb2.HealthCheckRequest(service=rng.choice(("", "aeenc.v1.EncoderService", _text(rng))))
    if method == REFLECT:
        name = rng.choice(("list_services", "file_by_filename", "file_containing_symbol"))
        return reflection_pb2.ServerReflectionRequest(host=_text(rng), **{name: _text(rng)})
    return KNOWN[method]()


def _encode(rng: random.Random) -> encoder_pb2.EncodeRequest:
    def seldom(*values: Any) -> Any:
        return rng.choice(values) if rng.random() < 0.15 else 0

    return encoder_pb2.EncodeRequest(
        texts=_texts(rng),
        role=rng.choice((1, 2)) or seldom(0, 3, -1, 2**31 - 1),
        model=_model(rng),
        truncate=rng.choice((0, 2, 2)) or seldom(1, 3, -(2**31)),
        space_id=seldom(*NAMES) or "",
        lane=rng.choice((0, 1, 2)) or seldom(3, -5),
        precision=seldom(1, 2, 3, 4, -1),
        routing_key=seldom("u", "k" * 256, "k" * 257, "é" * 200, "\0") or "",
    )


def _model(rng: random.Random) -> types_pb2.ModelSelector | None:
    if rng.random() < 0.7:
        return None
    return types_pb2.ModelSelector(**{rng.choice(("label", "version")): rng.choice((*NAMES, _text(rng)))})


def _texts(rng: random.Random) -> list[str]:
    count = rng.choices((0, 1, 2, 8, 40, 1024, 1025), (3, 40, 30, 20, 5, 0.3, 1))[0]
    return [rng.choice(("sun", "\0 a"))] * count if count > 40 else [_text(rng) for _ in range(count)]


def _text(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(("sun", "a plant needs light", "the moon orbits the earth", "x", "water boils at 100 °C"))
    if kind < 0.75:
        return rng.choice(PIECES)
    ranges = rng.choice(((0, 0x80), (0x300, 0x370), (0x590, 0x700), (0x4E00, 0x9FFF), (0xE000, 0x10FFFF)))
    return "".join(chr(rng.randint(*ranges)) for _ in range(rng.choice((1, 3, 30, 300))))


def _metadata(rng: random.Random) -> tuple[tuple[str, str | bytes], ...]:
    if rng.random() < 0.75:
        return ()
    choices: tuple[tuple[tuple[str, str | bytes], ...], ...] = (
        (("x-request-id", "r" * rng.choice((0, 1, 64, 256, 257, 3000, 30_000))),),
        (("x-request-id", "one"), ("x-request-id", "two")),
        (("x-request-id", " %00~"),),
        (("traceparent", rng.choice(("", "00-zz", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "f" * 3000))),),
        (("x-bytes-bin", rng.randbytes(rng.choice((0, 1, 500)))), ("grpc-status-details-bin", b"\xff" * 20)),
        (("authorization", "Bearer " + "t" * rng.choice((0, 10, 2000))),),
        tuple((f"x-{number}", "v") for number in range(60)),
    )
    return rng.choice(choices)


# Just enough of HTTP/2 to send one broken call on a connection of its own and to read the status of its answer.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
WAIT_S = 1.0
TIMEOUTS = (b"0S", b"-1S", b"99999999H", b"999999999999H", b"1", b"abc", b"", b"5X", b"\xff", b"0.5S", b"1n")
STATUS_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


async def send_broken(host: str, port: int, rng: random.Random, *, bad_paths: bool) -> tuple[str, str]:
    """Sends one broken thing. Returns the name of the status of the answer, or what happened instead; and what it was.

    Outcomes without a status: `closed` by the server, `silent` for a second, `left` by us half way.
    """
    kind, sent = _sent(rng, bad_paths)
    description = f"{kind}: {sent[:400].hex()}"
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except ConnectionError as error:
        return "refused", f"{description}: {error}"
    outcome, received = "silent", b""
    try:
        writer.write(sent)
        await writer.drain()
        if kind == "left":
            return "left", description
        async with asyncio.timeout(WAIT_S):
            while outcome == "silent":
                received += (chunk := await reader.read(65536))
                if status := re.search(rb"grpc-status.(\d+)", received, re.DOTALL):
                    outcome = STATUS_NAMES.get(int(status[1]), f"status {int(status[1])}")
                elif not chunk:
                    outcome = "closed"
    except TimeoutError:
        pass
    except ConnectionError:
        outcome = "closed"
    finally:
        writer.transport.abort() if kind == "left" else writer.close()
    return outcome, f"{description}, answered {received[-200:]!r}"


def _sent(rng: random.Random, bad_paths: bool) -> tuple[str, bytes]:
    body = encoder_pb2.EncodeRequest(texts=["sun"] * rng.choice((1, 30)), role=1).SerializeToString()
    message, flag, headers = body, 0, _headers()
    kind = rng.choice(("noise", "frames", "timeout", "header", "length", "compressed", "left", "fields"))
    if kind == "noise":
        return kind, rng.choice((b"", PREFACE, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01")) + rng.randbytes(500)
    if kind == "frames":
        junk = _frame(rng.randrange(12), rng.randrange(256), rng.getrandbits(31), rng.randbytes(rng.randrange(40)))
        return kind, PREFACE + _frame(SETTINGS, 0, 0, b"") + junk * rng.choice((1, 3))
    if kind == "timeout":
        headers += _header(b"grpc-timeout", rng.choice(TIMEOUTS))
    elif kind == "header":
        name = rng.choice(
            (b"x-request-id", b"traceparent", b"X-UPPER", b"x-bad-bin", b"te", b"user-agent", b"", b"a b")
        )
        headers += _header(name, rng.randbytes(rng.choice((0, 5, 100, 9000))))
    elif kind == "fields":
        changed = {
            b":method": b"GET",
            b":path": rng.randbytes(20) if bad_paths else "/é\0".encode(),
            b"content-type": b"text/html",
            b":scheme": b"x",
        }
        headers = _headers({key: value for key, value in changed.items() if rng.random() < 0.5})
    elif kind == "compressed":
        flag, message = rng.choice((1, 2, 255)), rng.randbytes(50)
        headers += _header(b"grpc-encoding", rng.choice((b"gzip", b"deflate", b"identity", b"zz")))
    elif kind == "left":
        message = body[: len(body) // 2]
    size = (
        rng.choice((0, 1, 2**32 - 1, len(body) + 7)) if kind == "length" else len(body if kind == "left" else message)
    )
    data = struct.pack(">BI", flag, size) + message
    sent = PREFACE + _frame(SETTINGS, 0, 0, b"") + _frame(HEADERS, END_HEADERS, 1, headers)
    return kind, sent + _frame(DATA, 0 if kind == "left" else END_STREAM, 1, data)


def _headers(changed: dict[bytes, bytes] | None = None) -> bytes:
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": b"/aeenc.v1.EncoderService/Encode",
        b":authority": b"localhost",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
    }
    return b"".join(_header(name, value) for name, value in {**fields, **(changed or {})}.items())


def _header(name: bytes, value: bytes) -> bytes:
    """A literal header field without indexing, RFC 7541 section 6.2.2."""
    return b"\0" + _length(len(name)) + name + _length(len(value)) + value


def _length(number: int) -> bytes:
    if number < 127:
        return bytes([number])
    rest, sent = number - 127, [127]
    while rest >= 128:
        sent.append(rest % 128 | 128)
        rest //= 128
    return bytes([*sent, rest])


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload

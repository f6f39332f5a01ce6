"""What no gRPC library sends: garbage for HTTP/2, frames that lie about their length, headers that are not allowed.

Just enough of HTTP/2 to send one call on a connection of its own and to read the status of its answer.
"""

from __future__ import annotations

import asyncio
import random
import re
import struct

import grpc

from aeenc.v1 import encoder_pb2

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
WAIT_S = 1.0
TIMEOUTS = (b"0S", b"-1S", b"99999999H", b"999999999999H", b"1", b"abc", b"", b"5X", b"\xff", b"0.5S", b"1n")
NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


async def wire(host: str, port: int, rng: random.Random, *, bad_paths: bool) -> tuple[str, str]:
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
                    outcome = NAMES.get(int(status[1]), f"status {int(status[1])}")
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

"""Errors on the wire: `aeenc.errors` classes to gRPC statuses with `google.rpc` details, and back.

Both directions live here, so that a service and its caller cannot disagree. Status message and details together stay
under 4 KiB as they are encoded, because HTTP/2 stacks drop larger trailers: the message is cut, and only the first
violations travel.
"""

from __future__ import annotations

import contextlib
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING

import grpc

from aeenc import errors

if TYPE_CHECKING:  # a call that succeeds needs none
    from google.rpc import error_details_pb2

DETAILS_KEY = "grpc-status-details-bin"
REQUEST_ID_KEY = "x-request-id"  # sent by the caller, and returned with an error
DOMAIN = "aeenc"
TRAILER_BYTES = 4096
MESSAGE_BYTES = 2400  # of them for the message, in the status and in the details: 1,000 letters, or 180 in Chinese
FRAMING_BYTES = 256  # of the details, for what wraps their parts
MAX_VIOLATIONS = 16
MAX_VIOLATION_CHARS = 120


def _all_subclasses(cls: type[errors.AeencError]) -> list[type[errors.AeencError]]:
    return [cls, *(leaf for child in cls.__subclasses__() for leaf in _all_subclasses(child))]


# Subclasses of a program's own do not travel, whether they are declared before this module is loaded or after.
_CLASSES = [cls for cls in _all_subclasses(errors.AeencError) if cls.__module__ == errors.__name__]
_BY_REASON = {cls.default_reason: cls for cls in _CLASSES}
_BY_CODE = {cls.code: cls for cls in reversed(_CLASSES)}  # the first declared class of a code wins


def code_of(error: errors.AeencError) -> grpc.StatusCode:
    """Returns the gRPC status code of an error."""
    return grpc.StatusCode[error.code]


def message_of(error: errors.AeencError) -> str:
    """Returns the error's message, cut to fit into a trailer."""
    if _sent_bytes(error.message) <= MESSAGE_BYTES:
        return error.message
    sizes = accumulate(map(_sent_bytes, error.message), initial=_sent_bytes("…"))
    length = sum(1 for _ in takewhile(lambda size: size <= MESSAGE_BYTES, sizes)) - 1
    return error.message[:length] + "…"


def _sent_bytes(text: str) -> float:
    """Returns the bytes of a message in the trailers: percent-encoded in the status, in base64 in its details."""
    data = text.encode()
    return sum(1 if 0x20 <= byte <= 0x7E and byte != ord("%") else 3 for byte in data) + len(data) * 4 / 3


def details_of(error: errors.AeencError) -> bytes:
    """Serialises the `google.rpc.Status` for the trailer `grpc-status-details-bin`."""
    from google.protobuf import duration_pb2
    from google.rpc import error_details_pb2, status_pb2

    message = message_of(error)
    status = status_pb2.Status(code=code_of(error).value[0], message=message)
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    left_bytes = (TRAILER_BYTES - _sent_bytes(message)) * 3 / 4  # base64
    bad = _violations_of(error, room_bytes=left_bytes - info.ByteSize() - FRAMING_BYTES)
    if len(bad.field_violations) < len(error.violations):
        info.metadata["violations"] = str(len(error.violations))
    status.details.add().Pack(info)
    if bad.field_violations:
        status.details.add().Pack(bad)
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return bytes(status.SerializeToString())


def _violations_of(error: errors.AeencError, *, room_bytes: float) -> error_details_pb2.BadRequest:
    """Makes the message of the first violations, as many as fit."""
    from google.rpc import error_details_pb2

    bad = error_details_pb2.BadRequest()
    for violation in error.violations[:MAX_VIOLATIONS]:
        bad.field_violations.add(
            field=violation.field[:MAX_VIOLATION_CHARS], description=violation.description[:MAX_VIOLATION_CHARS]
        )
        if bad.ByteSize() > room_bytes:
            del bad.field_violations[-1]
            break
    return bad


def from_rpc_error(rpc_error: grpc.aio.AioRpcError) -> errors.AeencError:
    """Rebuilds the error that a service raised: same class, message, reason, violations and delay; its request id."""
    code, message = rpc_error.code(), rpc_error.details() or ""
    details, request_id = b"", ""
    for key, value in rpc_error.trailing_metadata() or ():
        if key == REQUEST_ID_KEY and isinstance(value, str):
            request_id = value
        if key == DETAILS_KEY:
            details = value if isinstance(value, bytes) else value.encode()
    error = _detailed(code, message, details)
    error.request_id = request_id
    return error


def _detailed(code: grpc.StatusCode, message: str, details: bytes) -> errors.AeencError:
    """Rebuilds an error from its status and the details beside it, which a foreign server may fill with anything."""
    if not details:
        return _BY_CODE.get(code.name, errors.AeencError)(message)
    from google.protobuf.message import DecodeError
    from google.rpc import error_details_pb2, status_pb2

    status = status_pb2.Status()
    with contextlib.suppress(DecodeError):
        status = status_pb2.Status.FromString(details)
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    retry_after_s: float | None = None
    for detail in status.details:
        with contextlib.suppress(DecodeError):
            if detail.Unpack(retry):
                retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
            else:
                _ = detail.Unpack(info) or detail.Unpack(bad)
    cls = _BY_REASON.get(info.reason, errors.AeencError)
    if cls.code != code.name:  # our own reason under a common code, or a foreign server
        cls = _BY_CODE.get(code.name, errors.AeencError)
    return cls(
        message,
        reason=info.reason or None,
        violations=[errors.FieldViolation(v.field, v.description) for v in bad.field_violations],
        retry_after_s=retry_after_s,
        metadata=dict(info.metadata),
    )

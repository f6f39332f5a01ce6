"""Errors on the wire: however long they are, they arrive as what they are."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

import pytest

from aeenc import Channel, EncoderClient, errors
from aeenc.transport import status
from aeenc.v1 import encoder_pb2_grpc
from support.worlds.sampler_world import serving

UNESCAPED = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")  # in a status message, by gRPC's specification
LONG = 20 * [errors.FieldViolation("texts[3]" * 30, "is too long " * 30)]
LONG_IN_CHINESE = 20 * [errors.FieldViolation("文本" * 100, "太长了" * 100)]


class Refusing(encoder_pb2_grpc.EncoderServiceServicer):
    """Refuses every call with one error."""

    def __init__(self, error: errors.AeencError) -> None:
        self._error = error

    async def Encode(self, request: Any, context: Any) -> Any:
        trailer = ((status.DETAILS_KEY, status.details_of(self._error)),)
        await context.abort(status.code_of(self._error), status.message_of(self._error), trailer)


@pytest.fixture
async def refused(error: errors.AeencError) -> errors.AeencError:
    """The error as it arrives."""
    async with serving(encoder_pb2_grpc.add_EncoderServiceServicer_to_server, Refusing(error)) as port:
        channel = Channel(f"127.0.0.1:{port}", timeout_s=2)
        with pytest.raises(errors.AeencError) as caught:
            await EncoderClient(channel).encode(["a"])
        await channel.close()
    return caught.value


@pytest.mark.parametrize(
    ("error", "least_chars"),
    [
        (errors.InvalidArgument("a hypothesis " * 1000), 1000),
        (errors.InvalidArgument("一个假设" * 1000), 180),
        (errors.InvalidArgument("100 % " * 1000), 500),
        (errors.InvalidArgument("a hypothesis " * 1000, violations=LONG), 1000),
        (errors.InvalidArgument("一个假设" * 1000, violations=LONG_IN_CHINESE, metadata={"corpus": "科学"}), 180),
    ],
    ids=["letters", "Chinese", "signs that are escaped", "with violations", "with violations in Chinese"],
)
async def test_an_error_that_is_too_long_is_cut_and_keeps_its_class(
    error: errors.AeencError, least_chars: int, refused: errors.AeencError
) -> None:
    message, details = status.message_of(error), status.details_of(error)
    assert len(quote(message, safe=UNESCAPED)) + len(base64.b64encode(details)) <= 4096
    assert type(refused) is errors.InvalidArgument
    assert refused.message == message
    assert error.message.startswith(message.removesuffix("…"))
    assert len(message) >= least_chars
    if error.violations:
        assert refused.violations
        assert refused.metadata == {**error.metadata, "violations": "20"}

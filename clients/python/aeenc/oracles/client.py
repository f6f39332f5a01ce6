"""The calling side of an oracle, which the sampler uses; try your own oracle with it.

Answers are not checked: verdicts come back as the oracle gave them, unknown, double and missing ones included.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from aeenc.errors import AeencError
from aeenc.oracle import Task
from aeenc.transport.channel import Channel
from aeenc.v1 import oracle_pb2, oracle_pb2_grpc
from aeenc.values.oracle import Answer
from aeenc.values.writing import as_messages, message


class OracleClient:
    """Calls OracleService. Raises the classes of `aeenc.errors`; does not retry."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._stub = oracle_pb2_grpc.OracleServiceStub(channel.grpc)

    @property
    def connected(self) -> bool:
        """Whether a server is connected at the moment, whatever it answers."""
        return self.channel.grpc.get_state() is grpc.ChannelConnectivity.READY

    async def judge(self, run_id: str, tasks: Sequence[Task], *, timeout_s: float | None = None) -> list[Answer]:
        """Asks the oracle to judge tasks, in one call."""
        sent = as_messages(tasks, oracle_pb2.OracleTask, "tasks")
        request = message(oracle_pb2.JudgeRequest, run_id=run_id, tasks=sent)
        response: oracle_pb2.JudgeResponse | None = await self.channel.unary(
            self._stub.Judge, request, timeout_s=timeout_s, retry=False
        )
        if response is None:  # grpcio's result for bytes that it cannot parse
            raise AeencError(f"{self.channel.target} answered with bytes that are not a JudgeResponse")
        return [Answer.from_message(answer) for answer in response.answers]

"""An oracle that passes every task on to an oracle server, so that a remote oracle can be wrapped like any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from aeenc import values
from aeenc.errors import Unavailable
from aeenc.oracle import Answer, Oracle, Task, Verdict
from aeenc.oracles.client import OracleClient
from aeenc.transport.addresses import split
from aeenc.transport.channel import Channel
from aeenc.transport.checks import check_seconds, refuse_plain_token
from aeenc.v1 import oracle_pb2

TIMEOUT_S = 3600.0  # a person may answer


class RemoteOracle(Oracle):
    """Answers as the oracle at `target` does; a verdict without an annotator gets the answer's.

    Connects at the first task, in the event loop that serves it. Raises as the remote oracle does, and Unavailable when
    it gives no answer, or two. Raises InvalidArgument for a malformed address or time limit, and for a token that would
    travel plain to another host.
    """

    def __init__(
        self,
        target: str,
        *,
        token: str | None = None,
        ca: Path | str | None = None,
        tls: bool = False,
        plain_token: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.name = f"remote-{target}"
        self._target = target
        self._options: dict[str, Any] = {"token": token, "ca": ca, "tls": tls, "plain_token": plain_token}
        self._options["timeout_s"] = check_seconds(timeout_s)
        split(target, tls=bool(tls or ca))
        refuse_plain_token(target, **self._options)
        self._client: OracleClient | None = None

    async def judge(self, task: Task) -> Answer[dict[str, Verdict]]:
        """Returns the remote oracle's answer. A candidate that it judged twice, or not at all, stays unseen."""
        if self._client is None:
            self._client = OracleClient(Channel(self._target, **self._options))
        answers = await self._client.judge(task.run_id, [task])
        mine = [answer for answer in answers if answer.task_id == task.task_id]
        if len(mine) != 1:
            raise Unavailable(f"{self._target} gave {len(mine)} answers to one task; ask again")
        [answer] = mine
        times = Counter(one.premise_id for one in answer.verdicts)
        return Answer(
            _verdicts([one for one in answer.verdicts if times[one.premise_id] == 1], answer.annotator),
            answer.note,
            _verdicts(answer.additions, answer.annotator),
            answer.written,
            answer.intermediates,
            [one.premise_ids for one in answer.alternatives],
            answer.inference,
            answer.node_verdict,
            answer.annotator,
        )

    async def close(self) -> None:
        """Closes the connection."""
        if self._client is not None:
            await self._client.channel.close()


def _verdicts(given: Iterable[values.Verdict], annotator: str) -> dict[str, Verdict]:
    return {
        one.premise_id: Verdict(
            cast("oracle_pb2.Judgement", one.judgement),
            one.leaf,
            one.grade,
            one.annotator or annotator,
            cast("oracle_pb2.Remark", one.remark),
            one.in_sight_ms,
        )
        for one in given
    }

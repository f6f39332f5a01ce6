"""Requests that were carried out, by the ids that callers gave them: a retry gets the answer of the first call.

What carries a request out writes its record in the same step, so that neither can be without the other. Records are
kept for a day, those of imports for as long as their run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from redis.asyncio import Redis

from services.store.formats import check_same, damage_is_data_loss
from services.store.redis import key_prefix, raising_unavailable

T = TypeVar("T")

REQUEST_TTL_S = 86_400
# Lua for the head of a script: `note(record, content, seconds, …)` records a request with further fields and values;
# nothing without content.
NOTE = """
local function note(record, content, seconds, ...)
  if content == '' then return end
  redis.call('HSET', record, 'content', content, ...)
  redis.call('EXPIRE', record, seconds)
end
"""


@dataclass(frozen=True)
class Request:
    """A call with an id of the caller's; empty: its retries are new calls. `content` is what it asks for, by name."""

    id: str
    rpc: str
    content: Mapping[str, Any]

    @property
    def text(self) -> str:
        """What is recorded of it; nothing without an id."""
        return json.dumps({"rpc": self.rpc, **self.content}, sort_keys=True, default=str) if self.id else ""


UNNAMED = Request("", "", {})


@raising_unavailable("requests")
class Requests:
    """The records of one namespace. Raises Unavailable when Redis is down."""

    def __init__(self, redis: Redis, namespace: str) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._prefix = key_prefix(namespace)

    def key(self, request: Request) -> str:
        """Returns the key of a record: a hash with the `content` and the fields of its answer."""
        return f"{self._prefix}request-done:{hashlib.sha256(request.id.encode()).hexdigest()}"

    async def answer(self, request: Request, read: Callable[[dict[str, str]], T]) -> T | None:
        """Reads, by `read`, the record of a request that was made before; None for a new one and one without an id.

        Raises AlreadyExists, naming what differs, if the id was used to ask for something else, and DataLoss for a
        damaged record.
        """
        if not request.id:
            return None
        pipe = self._redis.pipeline(transaction=False, settles=True)
        pipe.hgetall(self.key(request))
        record: dict[str, str] = (await pipe.execute())[0]
        if not record:
            return None
        with damage_is_data_loss(f"the record of request id {request.id[:80]!r}", "choose another id"):
            check_same(request.id, json.loads(record["content"]), json.loads(request.text))
            return read(record)

    async def record(self, request: Request, fields: Mapping[str, Any]) -> None:
        """Stores fields of a request's answer; nothing for a request without an id."""
        if not request.id:
            return
        pipe = self._redis.pipeline(transaction=True)
        pipe.hset(self.key(request), mapping={"content": request.text, **fields})
        pipe.expire(self.key(request), REQUEST_TTL_S)
        await pipe.execute()

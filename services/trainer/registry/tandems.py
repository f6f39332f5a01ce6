"""Tandems: a query encoder, the premise encoder trained with it, and the generation built in their space.

The record does not say which tandem serves: it is the one whose generation the index has active, so that the two never
disagree.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from redis.asyncio import Redis

from services.store.redis import key_prefix, unavailable_if_down

FORMAT_VERSION = 1
REQUEST_TTL_S = 86_400


@dataclass(frozen=True)
class Tandem:
    """A tandem. `version` encodes queries, `premise_version` premises; in mode SIAMESE they are the same.

    `replaces` is the generation that was active before this one was activated, `replaces_space` its space; empty if
    there was none, or if this one was never activated.
    """

    version: str
    premise_version: str
    space_id: str
    corpus: str
    generation: str
    replaces: str = ""
    replaces_space: str = ""


class Tandems:
    """The tandems of one namespace, in Redis. Raises Unavailable if it is away."""

    def __init__(self, redis: Redis, namespace: str) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._prefix = key_prefix(namespace)

    async def put(self, tandem: Tandem) -> None:
        """Stores a tandem under its version."""
        record = json.dumps({"format_version": FORMAT_VERSION, **asdict(tandem)})
        async with unavailable_if_down(f"store the tandem of {tandem.version}"):
            await self._redis.hset(self._key, tandem.version, record)

    async def get(self, version: str) -> Tandem | None:
        """Reads the tandem of a query encoder; None for one that was trained alone."""
        async with unavailable_if_down(f"read the tandem of {version}"):
            record = await self._redis.hget(self._key, version)
        return _tandem(record) if record else None

    async def all(self) -> list[Tandem]:
        """Reads all tandems."""
        async with unavailable_if_down("list the tandems"):
            records = await self._redis.hvals(self._key)
        return [_tandem(record) for record in records]

    async def claim_request(self, request_id: str, generation: str) -> str:
        """Returns the generation that was active at a request's first attempt; `generation` if this is the first."""
        key = f"{self._prefix}tandem-request:{hashlib.sha256(request_id.encode()).hexdigest()}"
        async with unavailable_if_down("note the request"):
            await self._redis.set(key, generation, nx=True, ex=REQUEST_TTL_S)
            return str(await self._redis.get(key) or generation)

    @property
    def _key(self) -> str:
        return f"{self._prefix}tandems"


def of_generation(tandems: Iterable[Tandem], corpus: str, generation: str) -> Tandem | None:
    """Finds the tandem of a corpus's generation; None for a generation that no job has built."""
    return next((one for one in tandems if (one.corpus, one.generation) == (corpus, generation)), None)


def _tandem(text: str) -> Tandem:
    record = json.loads(text)
    record.pop("format_version")
    return Tandem(**record)

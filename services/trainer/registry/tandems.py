"""Tandems: a query encoder, the premise encoder trained with it, and the generation built in their space.

The record does not say which tandem serves: it is the one whose generation the index has active, so that the two never
disagree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from typing import Any

from redis.asyncio import Redis

from services.store.formats import check_format, known_fields, unknown_fields
from services.store.redis import Leases, key_prefix, raising_unavailable

FORMAT_VERSION = 1
TURN_S = 15.0  # how long a trainer that died keeps the others from moving tandems


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


@raising_unavailable("tandems")
class Tandems:
    """The tandems of one namespace, in Redis. Raises Unavailable if it is away, NewerFormat for a newer record."""

    def __init__(self, redis: Redis, namespace: str) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._prefix = key_prefix(namespace)
        self._leases = Leases(redis)

    def turn(self) -> AbstractAsyncContextManager[object]:
        """Waits until no trainer of the namespace moves tandems or closes spaces, and keeps others out of the block.

        What is loaded but not yet active is known to its own publication alone; nobody else may take it for unused.
        """
        return self._leases.turn(f"{self._prefix}tandem-turn", TURN_S)

    async def put(self, tandem: Tandem) -> None:
        """Stores a tandem under its version. What a later minor release has added to its record stays."""
        last = await self._redis.hget(self._key, tandem.version)
        further = unknown_fields(Tandem, _record(last)) if last else {}
        record = {**further, **asdict(tandem), "format_version": FORMAT_VERSION}
        await self._redis.hset(self._key, tandem.version, json.dumps(record))

    async def get(self, version: str) -> Tandem | None:
        """Reads the tandem of a query encoder; None for one that was trained alone."""
        record = await self._redis.hget(self._key, version)
        return _tandem(record) if record else None

    async def all(self) -> list[Tandem]:
        """Reads all tandems."""
        return [_tandem(record) for record in await self._redis.hvals(self._key)]

    async def remove(self, version: str) -> None:
        """Forgets the tandem of a query encoder, if it has one."""
        await self._redis.hdel(self._key, version)

    @property
    def _key(self) -> str:
        return f"{self._prefix}tandems"


def of_generation(tandems: Iterable[Tandem], corpus: str, generation: str) -> Tandem | None:
    """Finds the tandem of a corpus's generation; None for a generation that no job has built."""
    return next((one for one in tandems if (one.corpus, one.generation) == (corpus, generation)), None)


def _tandem(text: str) -> Tandem:
    return Tandem(**known_fields(Tandem, _record(text)))


def _record(text: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(text)
    check_format(record, FORMAT_VERSION, f"the tandem of {record.get('version')}")
    return record

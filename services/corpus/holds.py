"""Generations that live work needs, held at the index under the work's name, such as `run-<id>` or `job-<id>`.

Redis notes what is held, so that a later look of any process ends what a dead one has left, and sets what the index was
away for.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from redis.asyncio import Redis

from aeenc import errors
from aeenc.index import IndexClient
from services.kit.logs import get
from services.store.formats import made_of
from services.store.life_cycles import WorkKeys
from services.store.redis import unavailable_if_down

log = get(__name__)

_PASSING = (errors.Unavailable, errors.Overloaded, errors.DeadlineExceeded)


class GenerationHolds:
    """What one kind of work holds in one namespace. Work goes on without a hold that fails; the log says so."""

    def __init__(self, redis: Redis, keys: WorkKeys, index: IndexClient) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._keys, self._index = keys, index

    def name(self, work_id: str) -> str:
        """The holder's name."""
        return f"{self._keys.noun}-{work_id}"

    async def hold(self, work_id: str, corpus: str, generation: str) -> None:
        """Keeps a generation from deletion. To do it again changes nothing."""
        name = self.name(work_id)
        try:
            async with unavailable_if_down(f"note what {name} holds"):
                await self._redis.hset(self._keys.holds, work_id, json.dumps([corpus, generation]))
            await self._index.hold(corpus, generation, name)
        except errors.AeencError as error:
            log.warning("nothing keeps a generation", holder=name, generation=generation, reason=error.message)
            if not isinstance(error, _PASSING):  # else a later look tries again
                with contextlib.suppress(errors.Unavailable):  # a later look asks the index again
                    await self._forget(work_id)

    async def release(self, work_id: str) -> bool:
        """Ends the hold of work that is over. False: it stays for now."""
        try:
            async with unavailable_if_down(f"read what {self.name(work_id)} holds"):
                held = await self._redis.hget(self._keys.holds, work_id)
            if held is not None:
                for corpus, generation in await self._noted(self.name(work_id), held):
                    with contextlib.suppress(errors.NotFound):
                        await self._index.release(corpus, generation, self.name(work_id))
                await self._forget(work_id)
        except errors.AeencError as error:
            log.warning("the hold of ended work stays", holder=self.name(work_id), reason=error.message)
            return False
        return True

    async def _noted(self, name: str, held: str) -> list[tuple[str, str]]:
        """Reads corpus and generation of what is held. If the note is damaged, the index tells them."""
        with contextlib.suppress(ValueError):
            return [made_of(tuple[str, str], json.loads(held))]
        corpora = [one.corpus async for one in self._index.list_corpora()]
        found = [(corpus, one) for corpus in corpora async for one in self._index.list_generations(corpus)]
        return [(corpus, one.id) for corpus, one in found if name in one.held_by]

    async def held(self) -> list[str]:
        """The work that holds a generation, or is about to. Raises Unavailable."""
        async with unavailable_if_down("read what is held"):
            return list(await self._redis.hkeys(self._keys.holds))

    async def close(self) -> None:
        """Closes the connection to the index."""
        await self._index.channel.close()

    async def _forget(self, work_id: str) -> None:
        async with unavailable_if_down(f"note that {self.name(work_id)} holds nothing"):
            await self._redis.hdel(self._keys.holds, work_id)

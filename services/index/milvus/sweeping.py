"""Keeps a Milvus and what this process knows of it in step, and removes what killed builds and deletions left.

A build changes its row now and then; one whose row is the same after `lease_s` is dead. No clock is compared with
another machine's.
"""

from __future__ import annotations

import asyncio
import time

from aeenc import errors
from services.index.milvus.catalogue import MilvusCatalogue
from services.index.milvus.collection import GenerationCollection
from services.index.milvus.link import MilvusLink
from services.index.milvus.records import Records
from services.kit import logs
from services.kit.concurrency import cancel_all

log = logs.get(__name__)

LOOKS = 4  # in the time after which what is silent is swept


class Sweeper:
    """Reads the catalogue again every `refresh_s`, and sweeps what was unfinished and silent for `lease_s`."""

    def __init__(
        self, link: MilvusLink, records: Records, catalogue: MilvusCatalogue, *, refresh_s: float, lease_s: float
    ) -> None:
        self._link, self._records, self._catalogue = link, records, catalogue
        self._refresh_s, self._lease_s = refresh_s, lease_s
        self._seen: dict[str, tuple[int, float]] = {}  # of unfinished collections: the beat, and since when it is so
        self._look_at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Reads all once and starts. A Milvus that is away does not stop it: it is found once it is there."""
        await self._round()
        self._task = asyncio.ensure_future(self._keep())

    async def close(self) -> None:
        """Stops."""
        if self._task is not None:
            await cancel_all([self._task])

    def sweep(self) -> None:
        """Removes what has been silent for too long; blocks."""
        now = time.monotonic()
        unfinished = self._records.all().unfinished
        self._seen = {
            one.collection: seen
            if (seen := self._seen.get(one.collection)) and seen[0] == one.beat
            else (one.beat, now)
            for one in unfinished
        }
        for name, (_, since) in self._seen.items():
            if now - since >= self._lease_s:
                GenerationCollection(self._link, name, 0).drop()
                self._records.remove(name)
                log.warning("removed what a killed build or deletion left", collection=name)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            await self._round()

    async def _round(self) -> None:
        try:
            await self._catalogue.refresh()
            if time.monotonic() >= self._look_at:
                self._look_at = time.monotonic() + self._lease_s / LOOKS
                await self._link.write(self.sweep)
        except errors.AeencError as error:  # the link has told; the next round may find it well again
            log.warning("the catalogue in Milvus cannot be read", reason=error.message)
        except Exception:
            log.exception("the catalogue in Milvus cannot be read")

"""Follows what other processes do to the store, every `look_s` seconds: corpora, activations, deletions, explanations.

look at the store ──► open and warm beside what serves ──► swap ──► tell the others how far we are
beside it, all the time: tell the others that we live, however long an opening takes
└── the store is away: what is open keeps serving, and readiness says so
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from services.index.catalogue.catalogue import Catalogue
from services.index.catalogue.replicas import Replicas
from services.kit import logs
from services.kit.concurrency import cancel_all

log = logs.get(__name__)


class Follower:
    """Keeps a catalogue up to date. `on_state` takes a problem, or "" for none."""

    def __init__(
        self, catalogue: Catalogue, replicas: Replicas, look_s: float, on_state: Callable[[str], None]
    ) -> None:
        self._catalogue, self._replicas = catalogue, replicas
        self._look_s, self._on_state = look_s, on_state
        self._tasks: list[asyncio.Task[None]] = []

    def beat(self) -> None:
        """Starts to tell the others that this replica lives."""
        self._tasks.append(asyncio.create_task(self._beat()))

    def start(self) -> None:
        """Starts to follow."""
        self._tasks.append(asyncio.create_task(self._keep()))

    async def close(self) -> None:
        """Stops, and takes this replica off the list."""
        await cancel_all(self._tasks)
        await asyncio.to_thread(self._replicas.sign_off)

    async def _beat(self) -> None:
        while True:
            with suppress(OSError):  # following says so
                await self._catalogue.report()
            await asyncio.sleep(self._look_s)

    async def _keep(self) -> None:
        failure = ""
        while True:
            await asyncio.sleep(self._look_s)
            try:
                await self._catalogue.follow()
                self._on_state("")
            except OSError as error:
                self._on_state(f"the store cannot be read ({error}); what is open keeps serving")
            except Exception as error:
                if failure != (failure := repr(error)):  # logged once, not twice a second
                    log.exception("the store cannot be followed")
                self._on_state("the store cannot be followed; what is open keeps serving")

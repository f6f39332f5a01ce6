"""Deletes runs: those that are asked for, and those that the settings no longer keep.

    DeleteRun ──────────────▶ tombstone, one script ─▶ parts, one step each ─▶ label ─▶ nothing is left
    age or number ─▶ expired ───┘                       └── carried on by the next look of any sampler

A look also ends the labels and holds that ended runs have left. Redis's clock says how old a run is. Of several
samplers one at a time looks for old runs.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict

from aeenc import errors
from aeenc.values import Garbage
from services.kit.logs import get
from services.sampler.execution.holds import RunHolds
from services.sampler.records.run_store import RunStore
from services.store.formats import UNREADABLE, made_of
from services.store.life_cycles import Expired
from services.store.requests import UNNAMED, Request

log = get(__name__)

LOOK_S = 60.0  # between two looks for old runs
LEASE_S = 30.0
MOST = 1000  # runs that one call removes

KeysOf = Callable[[str], AsyncIterator[list[str]]]


class Retention:
    """Removes runs of one namespace. `parts` give the keys of a run, by its id, in steps.

    Runs are kept for `keep_s` after their end, the last `kept` of them; 0 sets no limit.
    """

    def __init__(
        self, runs: RunStore, parts: Sequence[KeysOf], holds: RunHolds, *, instance: str, keep_s: float, kept: int
    ) -> None:
        self._runs, self._parts, self._holds = runs, parts, holds
        # As of a run that has the name `retention`, which none has: their ids are hexadecimal.
        self._lease = runs.cycles.lease("retention", f"{instance}:{uuid.uuid4().hex[:8]}", LEASE_S)
        self._keep_s, self._kept = keep_s, kept

    async def delete(self, run_id: str, request_id: str) -> None:
        """Deletes an ended run, once for a request id. Raises NotFound, FailedPrecondition, AlreadyExists."""
        await self._remove(run_id, Request(request_id, "DeleteRun", {"run_id": run_id}))

    async def collect(self, request_id: str, *, dry_run: bool) -> list[Garbage]:
        """Deletes the runs that are no longer kept, and says which; with `dry_run` it says so only."""
        request = Request(request_id, "CollectGarbage", {"dry_run": dry_run})
        found = await self._runs.cycles.requests.answer(
            request, lambda record: made_of(list[Garbage], json.loads(record["garbage"]))
        )
        if found is None:
            found = []
            for one in (await self._runs.cycles.expired(self._keep_s, self._kept))[:MOST]:
                with contextlib.suppress(errors.NotFound, *UNREADABLE):  # deleted meanwhile, or it is damaged and stays
                    await self._runs.get(one.id)
                    parts = (keys for part in self._parts async for keys in part(one.id))
                    size = sum([await self._runs.cycles.size_bytes(keys) async for keys in parts])
                    found.append(Garbage(kind="run", id=one.id, reason=one.reason, bytes=size))
            await self._runs.cycles.requests.record(request, {"garbage": json.dumps([asdict(old) for old in found])})
        if not dry_run:
            for old in found:
                await self._remove_old(old)
        return found

    async def look(self) -> None:
        """Removes old runs, and carries on deletions that broke off."""
        for run_id in await self._runs.cycles.deleted():
            with contextlib.suppress(*UNREADABLE):  # a sampler of the newer release carries it on
                await self._clear(run_id)
        if not await self._lease.renew():
            return
        try:
            for one in await self._runs.cycles.expired(self._keep_s, self._kept):
                if not await self._lease.renew():
                    return
                await self._remove_old(one)
            await self._keep_holds()
        finally:
            await self._lease.release()

    async def _keep_holds(self) -> None:
        """Ends the labels and holds of ended runs: the sampler died before it could, or the registry was away.

        Those of unknown runs stay: the registry may serve samplers of another namespace, too. Live runs hold their
        generation again, or for the first time: the index may have been away, or was restored, or the call that started
        or resumed the run ended before it was held.
        """
        for run_id in {*await self._holds.held(), *await self._runs.cycles.active()}:
            with contextlib.suppress(errors.NotFound, *UNREADABLE):
                if not (run := await self._runs.get(run_id)).ended:
                    await self._holds.hold_generation(run)
                else:
                    await self._holds.drop(run_id)
                    if not (resumed := await self._runs.get(run_id)).ended:
                        await self._holds.hold(resumed)

    async def _remove_old(self, old: Expired | Garbage) -> None:
        # It was deleted or resumed meanwhile, or is damaged.
        with contextlib.suppress(errors.NotFound, errors.FailedPrecondition, errors.DataLoss):
            await self._runs.get(old.id)
            await self._remove(old.id, UNNAMED)
            log.info("run removed", run=old.id, reason=old.reason)

    async def _remove(self, run_id: str, request: Request) -> None:
        await self._runs.delete(run_id, request)
        await self._clear(run_id)

    async def _clear(self, run_id: str) -> None:
        """Removes what a deleted run has left, or leaves it to a later look."""

        async def remove(record: dict[str, str]) -> None:
            for part in self._parts:
                async for keys in part(run_id):
                    if keys:
                        await self._runs.remove(keys)
            if record.get("imported") != "1" and not await self._holds.drop(run_id):  # imports have none
                raise errors.Unavailable(f"run {run_id} keeps its label or hold, for the reason above")

        try:
            await self._runs.cycles.clear(run_id, remove)
        except errors.Unavailable as error:
            log.warning("a deleted run is removed later", run=run_id, reason=error.message)

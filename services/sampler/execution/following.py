"""Lets runs follow their label: what is not judged yet is retrieved by the version that the label names now.

    label moves ─▶ follow: run-<id> holds the new version ─▶ the run's current version ─▶ open tasks are withdrawn
                                                                                             │
    the worker retrieves their nodes again, and every later node, by the current version ◀───┘

A live run does so by itself; any other one when somebody asks for it. The generation never changes.
"""

from __future__ import annotations

from dataclasses import replace

from aeenc import errors
from services.kit.concurrency import every
from services.kit.logs import get
from services.sampler.execution.holds import RunHolds
from services.sampler.execution.retrieval import Retrieval
from services.sampler.oracles.gateway import Gateway
from services.sampler.records.run_store import RunStore
from services.sampler.records.runs import Run

log = get(__name__)

FOLLOW_S = 5.0  # between two looks at the label of a live run


class Following:
    """Moves runs to newer encoder versions. Raises the classes of `aeenc.errors`."""

    def __init__(self, store: RunStore, retrieval: Retrieval, holds: RunHolds) -> None:
        self._store, self._retrieval, self._holds = store, retrieval, holds

    async def follow(self, run_id: str, *, dry_run: bool = False) -> Run:
        """The run, with the version that its label names now as the current one.

        Raises FailedPrecondition for a run that has ended (RUN_ENDED) or names a version itself (VERSION_FIXED), and
        what Retrieve raises, such as for a label that names no version in the space of the run's generation.
        """
        run = await self._store.get(run_id)
        if run.ended:
            message = f"run {run_id} has ended ({run.state}); there is nothing left to retrieve for"
            raise errors.FailedPrecondition(message, reason="RUN_ENDED")
        if run.config.version:
            message = f"run {run_id} names version {run.config.version}; start runs with a label to follow it"
            raise errors.FailedPrecondition(message, reason="VERSION_FIXED")
        version, _ = await self._retrieval.resolve(run.config, run.config.corpus, run.generation)
        newer = replace(run, current_version=version)
        if version != run.version and not dry_run:
            await self._holds.hold(newer)
            if await self._store.follow(run_id, version):
                log.info("run follows its label", run=run_id, version=version, before=run.version)
            else:  # it has ended meanwhile
                await self._holds.drop(run_id)
        return newer

    async def keep_up(self, run_id: str, oracle: Gateway) -> None:
        """Follows the label of a live run until it is cancelled."""

        async def step() -> None:
            await oracle.send_back(await self.follow(run_id))

        await every(FOLLOW_S, step, f"run {run_id} stays with its version for now")

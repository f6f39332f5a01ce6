"""Finds runs that wait for a sampler, leases them, works on them, and records how they ended.

    poll or wake ─▶ active runs ─▶ room? ─▶ lease ─▶ hold run-<id> ─▶ RunWorker ─▶ SUCCEEDED or FAILED
                                              └── renewed three times a term; lost: the work stops ──┘

A lease keeps two samplers from working on one run. It expires by itself when its sampler is killed. The label keeps
the encoder version of a live run loaded while `stable` moves on; without it the run works for as long as some other
label names its version.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping

from aeenc import errors
from services.kit.concurrency import cancel_all, every, finish
from services.kit.logs import get
from services.kit.readiness import Readiness
from services.kit.tracing import failed, span
from services.sampler.execution.holds import RunHolds
from services.sampler.execution.retrieval import Retrieval
from services.sampler.execution.run_worker import RunStopped, RunWorker
from services.sampler.oracles.gateway import Gateway, RunFailed
from services.sampler.records.node_store import NodeStore
from services.sampler.records.run_store import RunStore
from services.sampler.records.runs import Run
from services.store.formats import UNREADABLE, NewerFormat
from services.store.life_cycles import LIVE, State
from services.store.redis import WorkLease

log = get(__name__)

CANCELLED = "it was cancelled elsewhere, and perhaps resumed"


class Runner:
    """Works on at most `max_active_runs` runs at once, between `start` and `stop`.

    Runs that ask a queue of people count separately, up to `max_people_runs`: they wait for days, at little cost.
    """

    def __init__(
        self,
        store: RunStore,
        nodes: NodeStore,
        retrieval: Retrieval,
        oracles: Mapping[str, Gateway],
        holds: RunHolds,
        readiness: Readiness,
        *,
        instance: str,
        wave_nodes: int,
        max_active_runs: int,
        max_people_runs: int,
        lease_s: float,
        poll_s: float,
    ) -> None:
        self._store, self._nodes, self._retrieval = store, nodes, retrieval
        self._oracles, self._holds, self._readiness = oracles, holds, readiness
        # A restarted process gets another owner: what its predecessor still has in flight must not count as its own.
        self._owner = f"{instance}:{uuid.uuid4().hex[:8]}"
        self._wave_nodes = wave_nodes
        self._max_active_runs, self._max_people_runs = max_active_runs, max_people_runs
        self._lease_s, self._poll_s = lease_s, poll_s
        self._working: dict[str, asyncio.Task[None]] = {}
        self._oracle_of: dict[str, str] = {}  # run -> name; of the runs that wait for a sampler or have one
        self._unreadable: set[str] = set()  # runs of a newer release, and damaged ones
        self._wake = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    @property
    def active_runs(self) -> list[str]:
        """The runs that this process works on."""
        return sorted(self._working)

    @property
    def waiting_runs(self) -> dict[str, str]:
        """Those of them that wait for their oracle, and those that other samplers have to work on, with the reason."""
        reasons: dict[str, str] = {}
        for run_id, name in self._oracle_of.items():
            if (oracle := self._oracles.get(name)) is None:
                reasons[run_id] = f"this sampler has no oracle or queue {name!r}: configure it, or leave it to another"
            elif run_id in self._working:
                reasons[run_id] = oracle.waiting(run_id)
        return {run_id: reason for run_id, reason in sorted(reasons.items()) if reason}

    def start(self) -> None:
        """Begins to look for runs."""
        trouble, tell = "looking for runs failed", self._readiness.degraded
        self._loop = asyncio.create_task(every(self._poll_s, self._look, trouble, wake=self._wake, tell=tell))

    def wake(self) -> None:
        """Looks for runs now instead of at the next poll."""
        self._wake.set()

    async def drop(self, run_id: str) -> None:
        """Stops working on a run that was cancelled, and returns when the work has ended."""
        if (task := self._working.get(run_id)) is not None:
            await cancel_all([task])

    async def stop(self) -> None:
        """Lets go of all runs, so that another sampler can take them over at once."""
        await cancel_all([self._loop] if self._loop else [])
        await cancel_all(list(self._working.values()))
        for oracle in self._oracles.values():
            await oracle.close()

    async def _look(self) -> None:
        active = await self._store.cycles.active()
        self._oracle_of = {run_id: name for run_id, name in self._oracle_of.items() if run_id in active}
        self._unreadable &= set(active)
        for run_id in active:
            if run_id in self._working:
                continue
            if run_id not in self._oracle_of:
                try:
                    self._oracle_of[run_id] = name = (await self._store.get(run_id)).config.oracle
                    self._unreadable.discard(run_id)  # somebody has restored its record
                    if name not in self._oracles:
                        log.warning("run is left to samplers that have its oracle", run=run_id, oracle=name)
                except UNREADABLE as error:
                    self._leave(run_id, error)
                    continue
            is_ours = self._oracle_of[run_id] in self._oracles and run_id not in self._unreadable
            if not is_ours or not self._has_room(run_id):
                continue
            lease = self._store.cycles.lease(run_id, self._owner, self._lease_s)
            if await lease.renew():
                task = asyncio.create_task(self._hold(run_id, lease))
                self._working[run_id] = task
                task.add_done_callback(lambda _, run_id=run_id: self._done(run_id))  # type: ignore[misc]
        self._readiness.serving()

    def _leave(self, run_id: str, error: errors.AeencError) -> None:
        if run_id not in self._unreadable:
            log.warning("run is left alone", run=run_id, reason=error.message)
        self._unreadable.add(run_id)

    def _has_room(self, run_id: str) -> bool:
        """Whether one more run of this kind may be worked on. Those that wait for people take nobody else's place."""
        people = self._asks_people(run_id)
        alike = sum(self._asks_people(other) is people for other in self._working)
        return alike < (self._max_people_runs if people else self._max_active_runs)

    def _asks_people(self, run_id: str) -> bool:
        oracle = self._oracles.get(self._oracle_of.get(run_id, ""))
        return oracle is not None and oracle.asks_people

    def _done(self, run_id: str) -> None:
        del self._working[run_id]
        self.wake()

    async def _hold(self, run_id: str, lease: WorkLease) -> None:
        """Works on a run while its lease can be renewed."""

        async def is_over() -> str:
            # A worker that waits for its oracle writes nothing, so no refused write tells it of a cancellation.
            state = (await self._store.get(run_id)).state
            return CANCELLED if state in ("CANCELLED", "PENDING") else ""

        try:
            if why := await lease.during(self._work(run_id, lease), is_over):
                (log.info if why == CANCELLED else log.warning)("run was stopped", run=run_id, reason=why)
        except UNREADABLE as error:  # its record, which is looked at again
            self._leave(run_id, error)
            self._oracle_of.pop(run_id, None)
        except Exception:
            log.exception("run worker failed", run=run_id)

    async def _work(self, run_id: str, lease: WorkLease) -> None:
        run = await self._store.get(run_id)
        worker = {"worker": self._owner}  # a former worker cannot take its lease back
        if await self._store.cycles.transition(run_id, LIVE, "RUNNING", owner=self._owner, fields=worker) != "OK":
            return
        with span("run", within=run.traceparent, run_id=run_id, oracle=run.config.oracle):
            await self._work_on(run, lease)

    async def _work_on(self, run: Run, lease: WorkLease) -> None:
        run_id, oracle = run.id, self._oracles[run.config.oracle]
        log.info("run is worked on", run=run_id, judged=run.progress.nodes_judged)
        # A call that is broken off may hold the generation after CancelRun has released it.
        await finish(self._holds.hold(run))
        oracle.begin()
        worker = RunWorker(run, lease, self._store, self._nodes, self._retrieval, oracle, self._wave_nodes)
        keeping_up = [asyncio.create_task(self._holds.keep_up(run_id, oracle))] if run.config.live else []
        try:
            try:
                await worker.work()
            finally:
                await cancel_all(keeping_up)
        except RunStopped:
            log.info("run was stopped", run=run_id)
        except NewerFormat as error:
            self._leave(run_id, error)
        except (RunFailed, errors.AeencError) as error:
            is_gone = isinstance(error, errors.NotFound)
            remedy = "start a new run, or resume this one once it is there again" if is_gone else "then resume the run"
            reason = str(error) if isinstance(error, RunFailed) else f"{error.message} ({remedy})"
            log.warning("run failed", run=run_id, reason=reason, exc_info=not isinstance(error, RunFailed))
            await self._end(run, "FAILED", reason)
        except Exception as error:  # whatever it is, the run has to report it and stay resumable
            log.exception("run failed unexpectedly", run=run_id)
            reason = f"internal error ({type(error).__name__}); the sampler's log has it; resume the run to try again"
            await self._end(run, "FAILED", reason)
        else:
            log.info("run succeeded", run=run_id)
            await self._end(run, "SUCCEEDED", "")

    async def _end(self, run: Run, state: State, error: str) -> None:
        if state == "FAILED":
            failed()
        ending = self._store.cycles.end(run.id, state, self._poll_s, error=error, owner=self._owner)
        if await ending:  # else a successor uses the label
            await self._holds.drop(run.id)

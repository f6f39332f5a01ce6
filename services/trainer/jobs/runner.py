"""The job runner: leases one waiting job at a time, has a child process compute it, and records how it ended.

    JobStore.active() ──► lease, renewed ──► inputs in JobFiles ──► Child (torch) ──► result.json
           ▲                                                             │ progress.json, polled
           │                                                             ▼
    SUCCEEDED or FAILED ◄── tandem built, if any ◄── checkpoints registered

A job whose service is away stays RUNNING and is tried again later (`Backoff`). A job left behind by a dead trainer goes
on from its last epoch once its lease has lapsed.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aeenc import errors
from aeenc.calls.retrieval import Mode, Retrieval
from aeenc.index import IndexClient
from services.corpus.generation import open_generation
from services.corpus.holds import GenerationHolds
from services.kit.concurrency import EXIT_DISK_FULL, cancel_all, every, finish, run_in_thread
from services.kit.logs import get
from services.kit.readiness import Readiness
from services.kit.tracing import failed, span
from services.store.files import DISK_FULL
from services.store.formats import UNREADABLE, NewerFormat, made_of
from services.store.life_cycles import LIVE, State
from services.store.redis import WorkLease, once_redis_answers
from services.trainer.evaluation.evaluator import IndexRanks
from services.trainer.evaluation.protocol import EvaluationQuery
from services.trainer.jobs.files import EPOCH_STATE, ComputeOptions, JobFiles, TrainingPlan
from services.trainer.jobs.job import Job, JobProgress, JobStore
from services.trainer.jobs.losses import BASE_MODELS, NOTHING_CONFIGURED, Configured
from services.trainer.jobs.pair_sources import DataSets, SampledPairs
from services.trainer.jobs.tandem_building import TandemBuilder
from services.trainer.jobs.training_set import CANDIDATES, HeldBack, JudgedPair, as_stored, hold_back
from services.trainer.models.base_model import find_base_model
from services.trainer.registry.checkpoints import Checkpoints
from services.trainer.registry.child import Child, asked_to_end, describe_exit

log = get(__name__)

TRANSIENT = (errors.Unavailable, errors.Overloaded, errors.DeadlineExceeded)  # the same call may succeed later
ENDED_ELSEWHERE = "it was ended elsewhere"
FIRST_S = 1.0
LONGEST_S = 30.0
MOST_ENDS = 5


class JobFailed(Exception):
    """Ends a job as FAILED; the message names the remedy. `version` is the checkpoint it still made; empty if none."""

    def __init__(self, reason: str, version: str = "") -> None:
        super().__init__(reason)
        self.version = version


class JobStopped(Exception):
    """Leaves a job as it is: it was cancelled or taken over, or the trainer ends."""


class JobRunner:
    """Works on one job at a time, between `start` and `stop`."""

    def __init__(
        self,
        store: JobStore,
        checkpoints: Checkpoints,
        pairs: SampledPairs,
        data_sets: DataSets,
        readiness: Readiness,
        *,
        tandems: TandemBuilder,
        index: IndexClient,
        holds: GenerationHolds,
        instance: str,
        jobs_dir: Path,
        means: ComputeOptions,
        configured: Configured = NOTHING_CONFIGURED,
        lease_s: float,
        poll_s: float,
    ) -> None:
        self._store, self._checkpoints, self._readiness = store, checkpoints, readiness
        self._pairs, self._data_sets, self._tandems, self._index = pairs, data_sets, tandems, index
        self._holds = holds
        # A restarted process is another owner: its predecessor's calls in flight must not count as its own.
        self._owner = f"{instance}:{uuid.uuid4().hex[:8]}"
        self._jobs_dir, self._means, self._configured = jobs_dir, means, configured
        self._lease_s, self._poll_s = lease_s, poll_s
        self.active_job = ""
        self._ends = Counter[tuple[str, int]]()  # of a job's process on request, by job and epochs finished
        self._backoff = Backoff(readiness)
        self._work: asyncio.Task[None] | None = None
        self._loop: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    def start(self, handicap: str = "") -> None:
        """Starts looking for jobs. `handicap`: what the trainer lacks; such a trainer is DEGRADED."""
        self._backoff.handicap = handicap
        looking = every(
            self._poll_s, self._look, "looking for jobs failed", wake=self._wake, tell=self._readiness.degraded
        )
        self._loop = asyncio.create_task(looking)

    def wake(self) -> None:
        """Looks for jobs now instead of at the next poll, including those that wait for a service."""
        self._backoff.make_all_due()
        self._wake.set()

    async def drop(self, job_id: str) -> None:
        """Stops work on a cancelled job, or its wait for a service."""
        self._backoff.clear(job_id)
        if job_id == self.active_job and self._work is not None:
            await cancel_all([self._work])

    async def stop(self) -> None:
        """Releases the job, so that another trainer can take it over at once."""
        await cancel_all([task for task in (self._loop, self._work) if task is not None])

    @property
    def _draining(self) -> bool:
        """Whether the trainer is shutting down: another one continues its job, and it starts none."""
        return self._readiness.state == "DRAINING"

    async def _look(self) -> None:
        waiting = await self._store.cycles.active()
        self._backoff.keep_only(waiting)  # makes the service ready before any work: a job may take hours
        for job_id in waiting:
            if self._draining:
                return
            lease = self._store.cycles.lease(job_id, self._owner, self._lease_s)
            if self._backoff.is_due(job_id) and await lease.renew():
                self.active_job = job_id
                self._work = asyncio.create_task(self._hold(job_id, lease))
                await asyncio.wait([self._work])
                self.active_job = ""
            elif self._backoff.is_due(job_id):
                self._backoff.clear(job_id)  # another trainer works on it

    async def _hold(self, job_id: str, lease: WorkLease) -> None:
        """Works on a job while the lease holds and the job is live."""

        async def is_over() -> str:
            state = await self._store.state(job_id)
            return "" if state in LIVE else f"{ENDED_ELSEWHERE}: {state}"

        try:
            if why := await lease.during(self._do(job_id), is_over):
                tell = log.info if why.startswith(ENDED_ELSEWHERE) else log.warning
                tell("job was stopped", job=job_id, reason=why)
                return
        except (*TRANSIENT, *UNREADABLE) as error:
            pause_s = self._backoff.postpone(job_id, error.message)
            log.warning("job waits", job=job_id, reason=error.message, seconds=pause_s)
            return
        except Exception:
            log.exception("job runner failed", job=job_id)
        self._backoff.clear(job_id)

    async def _do(self, job_id: str) -> None:
        job = await self._store.get(job_id)
        if await self._store.transition(job_id, LIVE, "RUNNING", worker=self._owner, owner=self._owner) != "OK":
            return
        with span("job", within=job.traceparent, job_id=job_id):
            log.info("job is worked on", job=job_id, epochs_done=job.progress.epochs_done)
            try:
                version = await self._compute(job)
            except JobStopped:
                log.info("job was stopped", job=job_id)
            except (*TRANSIENT, NewerFormat):
                raise  # `_hold` postpones the job, which stays RUNNING
            except Exception as error:  # noqa: BLE001 - the job must name the failure and stay resumable
                await asyncio.to_thread(self._checkpoints.store.check_there)  # a lost volume is waited for
                version = error.version if isinstance(error, JobFailed) else ""
                await self._end(job_id, "FAILED", error=_reason(job_id, error), version=version)
            else:
                await self._end(job_id, "SUCCEEDED", version=version)

    async def _compute(self, job: Job) -> str:
        files = JobFiles(self._jobs_dir / job.id)
        result = files.result()
        # Damaged checkpoints are removed even if all is computed again: nothing replaces one that stands.
        intact = [await self._checkpoints.is_intact(made) for made in _checkpoints_in(result or {})]
        if result is None or "error" in result or not all(intact):
            files.forget_result()
            await self._prepare(job, files)
            result = await self._run_child(job, files)
        if result.get("transient"):
            raise errors.Unavailable(str(result["error"]))
        version, premise_version = str(result.get("version", "")), str(result.get("premise_version", ""))
        for made in _checkpoints_in(result):
            row = await once_redis_answers(partial(self._checkpoints.register, made), self._poll_s)
        if premise_version:
            await self._report(job.id, {**(files.progress() or {}), "phase": "building"})
            try:
                await self._tandems.build(job, row.space_id, version, premise_version)
            except errors.NotFound as error:
                began = f"generation {job.generation} of corpus {job.config.corpus!r}"
                raise JobFailed(f"{error.message}; if {began} has been deleted, start a new job") from error
        if "error" in result:
            raise JobFailed(str(result["error"]), version)
        return version

    async def _prepare(self, job: Job, files: JobFiles) -> None:
        """Writes the child's inputs once: a resumed job learns from the same pairs. Raises as `has_inputs` does."""
        validation = await self._store.validation(job.id)
        plan = TrainingPlan(
            job_id=job.id,
            config=job.config,
            generation=job.generation,
            artifacts_dir=str(self._checkpoints.store.root.resolve()),
            means=self._means,
            artifacts_url=self._checkpoints.store.url,
            holds_back=bool(job.config.run_ids) and not validation,
            base_model=await asyncio.to_thread(base_model_of, job.config.base_model, self._configured, files),
            custom_loss=self._configured.loss(job.config.custom_loss),
            serving=await self._checkpoints.serving(
                job.config.base_version, cross_encoders=job.config.mode == "CROSS_ENCODER"
            ),
        )
        await run_in_thread(files.write_plan, plan)  # settings may have changed since an earlier attempt
        if not await run_in_thread(files.has_inputs):
            pairs = await self._pairs.read(job.config.run_ids)
            further, held_out = await asyncio.to_thread(self._data_sets.read, job.config.data_sets, job.config.split)
            if plan.holds_back:
                held = await asyncio.to_thread(self._held_back, job, pairs, further)
                pairs, validation = held.pairs, held.queries
            else:
                pairs += further
            candidates = await self._candidates(job, pairs, validation) if job.config.candidates else None
            await run_in_thread(files.write_inputs, pairs, validation, held_out, candidates)

    def _held_back(self, job: Job, pairs: list[JudgedPair], further: list[JudgedPair]) -> HeldBack:
        try:
            opened = open_generation(self._checkpoints.store, job.config.corpus, job.generation)
        except errors.NotFound:  # the job's process says so, with the remedy
            return HeldBack([], [*pairs, *further])
        judged, others = ([*as_stored(one, opened)] for one in (pairs, further))
        return hold_back(judged, others, opened.premises, job.config.seed)

    async def _candidates(
        self, job: Job, pairs: list[JudgedPair], validation: list[EvaluationQuery]
    ) -> dict[str, list[str]]:
        """Retrieves for the queries that explanations are known of, and for those of the validation."""
        explained = await asyncio.to_thread(lambda: {pair.query: None for pair in pairs if pair.sign == "POSITIVE"})
        queries = explained | {query.text: None for query in validation}
        mode: Mode = job.config.candidates.lower()  # type: ignore[assignment]
        store, config = self._checkpoints.store, job.config
        opened = await asyncio.to_thread(open_generation, store, config.corpus, job.generation)
        return await IndexRanks(self._index, opened, Retrieval(mode)).ids(list(queries), CANDIDATES)

    async def _run_child(self, job: Job, files: JobFiles) -> dict[str, object]:
        self._backoff.clear(job.id)
        child = await Child.start("job", str(files.directory.resolve()))
        ended = asyncio.create_task(child.wait())
        reported: dict[str, object] | None = None
        try:
            while not ended.done():
                await asyncio.wait([ended], timeout=self._poll_s)
                progress = files.progress()
                if progress is not None and progress != reported:
                    reported = progress
                    await self._report(job.id, progress)
            result = files.result()
            if result is not None:
                return result
            if self._draining:
                raise JobStopped
            if asked_to_end(ended.result()):  # perhaps the start of a shutdown that has not reached this process yet
                self._count_end((job.id, int((files.progress() or {}).get("epochs_done", 0))), -ended.result())
                raise errors.Unavailable(f"its process was asked to end (signal {-ended.result()})")
            raise JobFailed(describe_exit(ended.result()))
        finally:
            # Shielded from further cancellation: nobody else may use the directory before the child is gone.
            await finish(child.end())
            await cancel_all([ended])

    def _count_end(self, within: tuple[str, int], signal: int) -> None:
        """Counts an end on request within a job's epoch. Raises JobFailed for the last of MOST_ENDS."""
        self._ends[within] += 1
        if self._ends[within] >= MOST_ENDS:
            raise JobFailed(
                f"its process was asked to end {self._ends.pop(within)} times (signal {signal}) before it finished "
                "another epoch; find out who stops it, then resume"
            )

    async def _report(self, job_id: str, progress: dict[str, object]) -> None:
        with contextlib.suppress(errors.Unavailable):  # the next report replaces this one
            answer = await self._store.progress(job_id, self._owner, made_of(JobProgress, progress))
            if answer != "OK":
                raise JobStopped

    async def _end(self, job_id: str, state: State, *, error: str = "", version: str = "") -> None:
        log.info("job ended", job=job_id, state=state, error=error, version=version)
        if state == "FAILED":
            failed()
        fields = {"version": version}
        ending = self._store.cycles.end(job_id, state, self._poll_s, error=error, owner=self._owner, fields=fields)
        if await ending:  # else a successor needs the hold
            await self._holds.release(job_id)
            if state == "SUCCEEDED":  # it is never resumed
                await run_in_thread(shutil.rmtree, self._jobs_dir / job_id, ignore_errors=True)


def _reason(job_id: str, error: Exception) -> str:
    """Says why a job failed and what to do; what nobody expects goes to the log with its traceback."""
    if isinstance(error, JobFailed):
        return str(error)
    if isinstance(error, OSError):
        return describe_exit(EXIT_DISK_FULL) if error.errno in DISK_FULL else f"{error}; then resume the job"
    if isinstance(error, errors.AeencError):
        return f"{error.message} (then resume the job)"
    log.error("job failed unexpectedly", job=job_id, exc_info=error)
    return f"internal error ({type(error).__name__}); the trainer's log has it; resume the job to try again"


def _checkpoints_in(result: dict[str, object]) -> list[str]:
    """Lists the checkpoints that a child's result names, each once."""
    return list(dict.fromkeys(str(result[name]) for name in ("premise_version", "version") if name in result))


@dataclass(frozen=True)
class _Pause:
    reason: str
    length_s: float
    until: float  # by time.monotonic


class Backoff:
    """Pauses of jobs whose service is away. While one waits the trainer is DEGRADED and names the reason."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness, self.handicap = readiness, ""
        self._pauses: dict[str, _Pause] = {}

    def postpone(self, job_id: str, reason: str) -> float:
        """Pauses a job and returns for how many seconds: twice as long as before, up to LONGEST_S."""
        before = self._pauses.get(job_id)
        length_s = min(before.length_s * 2, LONGEST_S) if before else FIRST_S
        self._pauses[job_id] = _Pause(reason, length_s, time.monotonic() + length_s)
        self.report()
        return length_s

    def is_due(self, job_id: str) -> bool:
        """Tells whether a job may be tried."""
        pause = self._pauses.get(job_id)
        return pause is None or time.monotonic() >= pause.until

    def clear(self, job_id: str) -> None:
        """Forgets a job that no longer waits."""
        if self._pauses.pop(job_id, None) is not None:
            self.report()

    def keep_only(self, active: Collection[str]) -> None:
        """Forgets all other jobs."""
        self._pauses = {job_id: pause for job_id, pause in self._pauses.items() if job_id in active}
        self.report()

    def make_all_due(self) -> None:
        """Lets all jobs be tried now."""
        self._pauses = {job_id: _Pause(pause.reason, pause.length_s, 0.0) for job_id, pause in self._pauses.items()}

    def report(self) -> None:
        """Sets the readiness: DEGRADED while a job waits, else SERVING."""
        waiting = (f"job {job_id} waits: {pause.reason}" for job_id, pause in self._pauses.items())
        if lacking := next(waiting, self.handicap):
            self._readiness.degraded(lacking)
        else:
            self._readiness.serving()


def base_model_of(name: str, configured: Configured, files: JobFiles) -> str:
    """Finds the directory of a base model of the settings, if named; after an epoch, that with which the job has begun.

    Raises NotFound for an unknown name, FailedPrecondition where the model is not there, Unavailable where the hub is.
    """
    if not name:
        return ""
    if (files.directory / EPOCH_STATE).is_file():
        return files.plan().base_model
    return str(find_base_model(configured.base_model(name), setting=BASE_MODELS).resolve())

"""A training job: its configuration, progress and events, their JSON, and where Redis keeps them (`JobStore`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, Self

from redis.asyncio import Redis

from aeenc.errors import InvalidArgument
from aeenc.files.lines import digest
from services.store.formats import RESTORE, check_format, damage_is_data_loss, made_of
from services.store.life_cycles import LIVE, UNFINISHED_TTL_S, LifeCycles, State, WorkKeys
from services.store.redis import raising_unavailable
from services.store.requests import Request
from services.trainer.evaluation.protocol import EvaluationQuery
from services.trainer.jobs.losses import LOSSES, OPTIONS, Batching, LossSpec, Mode
from services.trainer.jobs.training_set import OwnText
from services.trainer.registry.quality_gate import Comparison

FORMAT_VERSION = 1

Targets = Literal["BINARY", "GRADES", "GRADE_DISTRIBUTION"]
Negatives = Literal["RETRIEVED", "RANDOM", "NONE"]
PROTOTYPES = 30  # of each class of questions
_RANGES: Mapping[str, tuple[float, float]] = {
    "epochs": (0, 100),
    "batch_size": (1, 1024),
    "learning_rate": (1e-8, 1.0),
    "temperature": (1e-3, 10.0),
    "margin": (0.0, 2.0),
    "regularization": (0.0, 1000.0),
    "refused_weight": (1e-3, 1000.0),
    "guide_margin": (-1.0, 1.0),
    "prototypes": (1, 10_000),
    "initial_share": (0.0, 1.0),
}
EVENT_FIELDS = ("state", "error", "version", "progress", "ended_at")


@dataclass(frozen=True)
class JobConfig:
    """A job's configuration. Fields and units are those of the JobConfig message, with all defaults filled in."""

    corpus: str
    run_ids: tuple[str, ...]
    idempotency_key: str = ""
    base_version: str = ""
    loss: str = "FULL_CORPUS_SOFTMAX"
    epochs: int = 0  # by the size of the data
    batch_size: int = 32
    learning_rate: float = 1e-4
    temperature: float = 0.03
    margin: float = 0.1
    regularization: float = 0.0
    refused_weight: float = 1.0
    seed: int = 0
    split: str = ""
    note: str = ""
    data_sets: tuple[str, ...] = ()
    batching: Batching = "QUERIES"
    hard_negatives: int = 1
    guide_version: str = ""
    guide_margin: float = 0.0
    accumulation: int = 1
    initial_share: float = 0.0
    items_per_epoch: int = 0
    mode: Mode = "SINGLE"
    targets: Targets = "BINARY"
    candidates: str = ""  # a mode of Retrieve; empty: what encoders rank first
    negatives: Negatives = "RETRIEVED"
    own_text: OwnText = "EXCLUDED"
    prototypes: int = PROTOTYPES
    custom_loss: str = ""  # in place of `loss`: a name of the operator's settings
    base_model: str = ""  # that a cross-encoder starts from, a name there; empty: the space's pre-trained encoder

    @classmethod
    def of(cls, given: Mapping[str, Any], loss_of_own: LossSpec = LossSpec("", "pairs")) -> Self:  # noqa: B008 - frozen
        """Fills in what is not given, by mode, loss and batching. `loss_of_own` is that of a `custom_loss`."""
        mode = given.get("mode", "SINGLE")
        usual: dict[str, Any] = {"corpus": "", "run_ids": ()}
        if mode == "CROSS_ENCODER":
            usual |= {"loss": "REGRESSION", "batch_size": 8, "hard_negatives": 6}
        elif mode != "SINGLE":  # every premise of a batch is encoded
            usual |= {"batching": "ITEMS"}
        usual |= given
        spec = loss_of_own if usual.get("custom_loss") else LOSSES[usual.get("loss", cls.loss)]
        spec = spec.by(usual.get("batching", cls.batching))
        numbers = ("learning_rate", "temperature", "margin", "regularization")
        return cls(**{name: getattr(spec, name) for name in numbers} | usual)

    @property
    def loss_name(self) -> str:
        """The name of the loss that it trains with."""
        return self.custom_loss or self.loss

    def check(self, loss: LossSpec) -> None:
        """Raises InvalidArgument for what cannot be trained with a loss, is out of range, or would be ignored."""
        if conflict := loss.conflict(self.mode, self.loss_name):
            raise InvalidArgument.field("config.custom_loss" if self.custom_loss else "config.loss", conflict)
        if self.mode == "SIAMESE" and self.own_text == "NEGATIVE":
            raise InvalidArgument.field(
                "config.own_text",
                "is NEGATIVE, but mode SIAMESE gives a text one vector as query and as premise, so that the two cannot "
                "be parted; give EXCLUDED, or mode SINGLE or DUAL",
            )
        fewest = int(self.mode == "CROSS_ENCODER")
        ranges = {**_RANGES, "hard_negatives": (fewest, 64), "accumulation": (1, self.batch_size)}
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not low <= value <= high:  # NaN fails this too
                raise InvalidArgument.field(f"config.{name}", f"is {value:.8g}; give {low:g} to {high:g}")
        usual = self.of({"mode": self.mode, "loss": self.loss, "custom_loss": self.custom_loss})
        for name in sorted(OPTIONS - loss.options):
            if (value := getattr(self, name)) != getattr(usual, name):
                given = f"{value:g}" if isinstance(value, float) else value
                raise InvalidArgument.field(
                    f"config.{name}", f"is {given}, which {self.loss_name} has no use for; leave it out"
                )

    def fingerprint(self, validation: Sequence[EvaluationQuery]) -> str:
        """Hashes the request, so that two StartJob calls under one idempotency key can be compared."""
        return digest([self, [query.to_record() for query in validation]])


@dataclass(frozen=True)
class JobProgress:
    """How far a job has come; fields and units are those of the JobProgress message."""

    phase: str = ""
    epochs_done: int = 0
    steps_done: int = 0
    steps: int = 0
    loss: float = 0.0
    validation_map: float = 0.0
    best_validation_map: float = 0.0
    remaining_s: float = 0.0
    queries: int = 0
    positives: int = 0
    negatives: int = 0
    dropped: int = 0
    skipped: int = 0
    outside: int = 0
    epochs: int = 0
    gain: Comparison | None = None


@dataclass(frozen=True)
class Job:
    """A training job as it is stored."""

    id: str
    config: JobConfig
    generation: str
    state: State
    created_at: datetime
    progress: JobProgress = JobProgress()
    error: str = ""
    version: str = ""
    ended_at: datetime | None = None
    fingerprint: str = ""
    traceparent: str = ""  # of the call that started it

    @property
    def ended(self) -> bool:
        """Whether the job has reached a final state."""
        return self.state not in LIVE


def job_of(job_id: str, record: Mapping[str, str]) -> Job:
    """Reads a job from its stored fields. Raises NewerFormat or DataLoss, naming the job."""
    with damage_is_data_loss(f"job {job_id}", RESTORE):
        check_format(record, FORMAT_VERSION, f"job {job_id}")
        config = json.loads(record["config"])
        check_format(config, FORMAT_VERSION, f"the configuration of job {job_id}")
        progress, ended_at = json.loads(record.get("progress") or "{}"), record.get("ended_at") or None
        return made_of(Job, {**record, "id": job_id, "config": config, "progress": progress, "ended_at": ended_at})


@raising_unavailable("jobs")
class JobStore:
    """Records of all jobs of one namespace, with the life cycle of `services/store` (`cycles`), and their gold queries.

    A method returns once its change is stored. It raises Unavailable if Redis is away, and NewerFormat, naming the job,
    for a newer release's record.
    """

    def __init__(self, redis: Redis, namespace: str) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._keys = self.keys = WorkKeys(namespace, "job")
        self.cycles = LifeCycles(redis, self._keys, EVENT_FIELDS, job_of, needs_lease=False)

    async def create(self, job: Job, validation: Sequence[EvaluationQuery]) -> str:
        """Stores a new job, or finds the one that its idempotency key started. Returns the id of the stored job."""
        record = {
            "format_version": FORMAT_VERSION,
            "config": json.dumps({"format_version": FORMAT_VERSION, **asdict(job.config)}),
            "generation": job.generation,
            "state": job.state,
            "created_at": job.created_at.isoformat(),
            "fingerprint": job.fingerprint,
            "traceparent": job.traceparent,
        }
        queries = self._validation(job.id)
        asked = json.dumps([FORMAT_VERSION, [query.to_record() for query in validation]])
        await self._redis.set(queries, asked, ex=UNFINISHED_TTL_S)
        return await self.cycles.create(job.id, job.config.idempotency_key, record, waits=True, keys=[queries])

    async def get(self, job_id: str, then: Mapping[str, str] = MappingProxyType({})) -> Job:
        """Reads a job, as it was when its EVENT_FIELDS had the values of `then`. Raises NotFound."""
        return job_of(job_id, {**await self.cycles.get(job_id), **then})

    async def state(self, job_id: str) -> State | None:
        """Reads the state of a job; None for an unknown job."""
        state: State | None = await self._redis.hget(self._keys.record(job_id), "state")
        return state

    async def validation(self, job_id: str) -> list[EvaluationQuery]:
        """Reads the validation queries of a job."""
        stored = await self._redis.get(self._validation(job_id))
        with damage_is_data_loss(what := f"the validation of job {job_id}", "start a new job"):
            version, queries = json.loads(stored)[:2]
            check_format({"format_version": version}, FORMAT_VERSION, what)
            return list(map(EvaluationQuery.of_record, queries))

    async def transition(
        self, job_id: str, allowed: Sequence[State], state: State, version: str = "", worker: str = "", **how: Any
    ) -> str:
        """Moves a job to a state, as `LifeCycles.transition` does; it then has this version, and this `worker`."""
        fields = {"version": version, **({"worker": worker} if worker else {})}
        return await self.cycles.transition(job_id, allowed, state, fields=fields, **how)

    async def progress(self, job_id: str, owner: str, progress: JobProgress) -> str:
        """Records a job's progress. Returns OK, LOST, or the state in which the job has ended."""
        fields = {"progress": json.dumps(asdict(progress))}
        return await self.cycles.transition(job_id, ("RUNNING",), "RUNNING", owner=owner, fields=fields)

    async def delete(self, job_id: str, request: Request) -> None:
        """Takes an ended job out of sight; `clear` removes the rest. A retry of the `request` does nothing.

        Raises as `LifeCycles.delete` does.
        """
        await self.cycles.delete(job_id, lambda record: job_of(job_id, record).config.idempotency_key, request)

    async def clear(self, job_id: str) -> None:
        """Removes what a deleted job has left here."""
        await self.cycles.clear(job_id, lambda _record: self._redis.unlink(self._validation(job_id)))

    async def size_bytes(self, job_id: str) -> int:
        """Tells about how much memory a job takes in Redis."""
        own = self._keys
        return await self.cycles.size_bytes([own.record(job_id), own.events(job_id), self._validation(job_id)])

    def _validation(self, job_id: str) -> str:
        """The key of a job's validation queries (string)."""
        return self._keys.part(job_id, "validation")

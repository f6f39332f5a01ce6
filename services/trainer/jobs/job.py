"""Values of a training job: its configuration, its progress and events, and their JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Literal, Self

from services.store.formats import check_format, known_fields
from services.store.life_cycles import LIVE, State
from services.trainer.evaluation.protocol import EvaluationQuery
from services.trainer.jobs.losses import LOSSES, Batching, LossSpec, Mode
from services.trainer.jobs.training_set import OwnText
from services.trainer.registry.quality_gate import Comparison

FORMAT_VERSION = 1

Targets = Literal["BINARY", "GRADES", "GRADE_DISTRIBUTION"]
Negatives = Literal["RETRIEVED", "RANDOM", "NONE"]
PROTOTYPES = 30  # of each class of questions


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

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Reads a configuration from JSON."""
        names = {name: tuple(record[name]) for name in ("run_ids", "data_sets")}
        return cls(**{**known_fields(cls, record), **names})

    def fingerprint(self, validation: Sequence[EvaluationQuery]) -> str:
        """Hashes the request, so that two StartJob calls under one idempotency key can be compared."""
        content = [asdict(self), [query.to_record() for query in validation]]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Reads a progress from JSON."""
        gain = record.get("gain")
        made = Comparison(**known_fields(Comparison, gain)) if gain else None
        return cls(**{**known_fields(cls, record), "gain": made})


@dataclass(frozen=True)
class Job:
    """A training job as it is stored."""

    id: str
    config: JobConfig
    generation: str
    state: State
    error: str
    progress: JobProgress
    version: str
    created_at: datetime
    ended_at: datetime | None
    fingerprint: str = ""
    event_seq: int = 0
    traceparent: str = ""  # of the call that started it

    @property
    def ended(self) -> bool:
        """Whether the job has reached a final state."""
        return self.state not in LIVE


@dataclass(frozen=True)
class JobEvent:
    """An event of a job, with the job as it was afterwards."""

    seq: int
    at: datetime
    job: Job


def job_of(job_id: str, record: Mapping[str, str]) -> Job:
    """Reads a job from its stored fields. Raises NewerFormat, naming the job."""
    check_format(record, FORMAT_VERSION, f"job {job_id}")
    config = json.loads(record["config"])
    check_format(config, FORMAT_VERSION, f"the configuration of job {job_id}")
    return Job(
        id=job_id,
        config=JobConfig.from_record(config),
        generation=record["generation"],
        created_at=datetime.fromisoformat(record["created_at"]),
        fingerprint=record["fingerprint"],
        event_seq=int(record.get("event_seq", 0)),
        traceparent=record.get("traceparent", ""),
        **_changing(record),
    )


def job_then(job: Job, values: Mapping[str, str]) -> Job:
    """Returns a job as it was when its changing fields had these values."""
    return replace(job, **_changing(values))


def _changing(record: Mapping[str, str]) -> dict[str, Any]:
    """Reads the fields that an event has. All but the state may be missing."""
    ended_at = record.get("ended_at")
    return {
        "state": record["state"],
        "error": record.get("error", ""),
        "version": record.get("version", ""),
        "progress": JobProgress.from_record(json.loads(record.get("progress") or "{}")),
        "ended_at": datetime.fromisoformat(ended_at) if ended_at else None,
    }

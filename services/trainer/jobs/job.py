"""Values of a training job: its configuration with each loss's defaults, its progress and events, and their JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Literal, Self

from services.store.formats import check_format, known_fields
from services.store.life_cycles import LIVE, State
from services.trainer.data.training_set import OwnText
from services.trainer.registry.comparison import Comparison

FORMAT_VERSION = 1

Loss = Literal[
    "FULL_CORPUS_SOFTMAX",
    "TRIPLET_MARGIN",
    "PAIRWISE_CONTRASTIVE",
    "SUPERVISED_CONTRASTIVE",
    "MULTIPLE_NEGATIVES_RANKING",
    "GIST",
    "NLI_CLASSIFICATION",
    "REGRESSION",
    "ANALOGY",
]
Batching = Literal["QUERIES", "ITEMS"]
Mode = Literal["SINGLE", "SIAMESE", "DUAL", "CROSS_ENCODER"]
Targets = Literal["BINARY", "GRADES", "GRADE_DISTRIBUTION"]
Negatives = Literal["RETRIEVED", "RANDOM", "NONE"]
Candidates = Literal["", "DENSE", "LEXICAL", "HYBRID", "ITERATIVE_LEXICAL"]


@dataclass(frozen=True)
class LossDefaults:
    """A loss's values for what the configuration leaves out."""

    learning_rate: float = 1e-4
    temperature: float = 0.05
    margin: float = 0.1
    regularization: float = 0.0


_DEFAULTS: dict[Loss, LossDefaults] = {
    "FULL_CORPUS_SOFTMAX": LossDefaults(temperature=0.03),
    "TRIPLET_MARGIN": LossDefaults(regularization=0.1),
    "PAIRWISE_CONTRASTIVE": LossDefaults(margin=0.5, regularization=0.1),
    "SUPERVISED_CONTRASTIVE": LossDefaults(),
    "MULTIPLE_NEGATIVES_RANKING": LossDefaults(),
    "GIST": LossDefaults(),
    "NLI_CLASSIFICATION": LossDefaults(learning_rate=2e-5),
    "REGRESSION": LossDefaults(),
    "ANALOGY": LossDefaults(),
}
_BY_QUERY: tuple[Loss, ...] = ("FULL_CORPUS_SOFTMAX", "SUPERVISED_CONTRASTIVE")  # with either batching
PROTOTYPES = 30  # of each class of questions
ITEMS_LEARNING_RATE = 2e-5  # lower: an epoch has many times as many steps


def defaults_of(loss: Loss, batching: Batching) -> LossDefaults:
    """Returns the defaults of a loss."""
    defaults = _DEFAULTS[loss]
    if batching == "ITEMS" and loss not in _BY_QUERY:
        return replace(defaults, learning_rate=ITEMS_LEARNING_RATE)
    return defaults


@dataclass(frozen=True)
class JobConfig:
    """A job's configuration. Fields and units are those of the JobConfig message, with all defaults filled in."""

    corpus: str
    run_ids: tuple[str, ...]
    idempotency_key: str = ""
    base_version: str = ""
    loss: Loss = "FULL_CORPUS_SOFTMAX"
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
    candidates: Candidates = ""
    negatives: Negatives = "RETRIEVED"
    own_text: OwnText = "EXCLUDED"
    prototypes: int = PROTOTYPES

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Reads a configuration from JSON."""
        names = {name: tuple(record[name]) for name in ("run_ids", "data_sets")}
        return cls(**{**known_fields(cls, record), **names})

    def fingerprint(self, validation: Sequence[tuple[str, Sequence[str]]]) -> str:
        """Hashes the request, so that two StartJob calls under one idempotency key can be compared."""
        content = [asdict(self), [[text, list(gold)] for text, gold in validation]]
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


def config_json(config: JobConfig) -> str:
    """Writes a configuration as JSON."""
    return json.dumps({"format_version": FORMAT_VERSION, **asdict(config)})


def config_of(text: str, what: str) -> JobConfig:
    """Reads what `config_json` wrote. Raises NewerFormat, naming `what`."""
    record = json.loads(text)
    check_format(record, FORMAT_VERSION, what)
    return JobConfig.from_record(record)


def job_of(job_id: str, record: Mapping[str, str]) -> Job:
    """Reads a job from its stored fields. Raises NewerFormat, naming the job."""
    check_format(record, FORMAT_VERSION, f"job {job_id}")
    ended_at = record.get("ended_at")
    return Job(
        id=job_id,
        config=config_of(record["config"], f"the configuration of job {job_id}"),
        generation=record["generation"],
        state=record["state"],  # type: ignore[arg-type]
        error=record.get("error", ""),
        progress=JobProgress.from_record(json.loads(record.get("progress") or "{}")),
        version=record.get("version", ""),
        created_at=datetime.fromisoformat(record["created_at"]),
        ended_at=datetime.fromisoformat(ended_at) if ended_at else None,
        fingerprint=record["fingerprint"],
        event_seq=int(record.get("event_seq", 0)),
        traceparent=record.get("traceparent", ""),
    )


def job_then(job: Job, values: Mapping[str, str]) -> Job:
    """Returns a job as it was when its changing fields had these values."""
    return replace(
        job,
        state=values["state"],  # type: ignore[arg-type]
        error=values["error"],
        version=values["version"],
        progress=JobProgress.from_record(json.loads(values["progress"] or "{}")),
        ended_at=datetime.fromisoformat(values["ended_at"]) if values["ended_at"] else None,
    )


_NEEDS_FROZEN_PREMISES: tuple[Loss, ...] = ("FULL_CORPUS_SOFTMAX",)


def why_not(mode: Mode, loss: Loss) -> str:
    """Says why a mode cannot train with a loss, and what to do instead; empty if it can."""
    if (mode == "CROSS_ENCODER") != (loss == "REGRESSION"):
        return (
            f"is {loss}, but mode {mode} does not train with it: mode CROSS_ENCODER takes only REGRESSION, other "
            "modes never do; leave the loss out, or change the mode"
        )
    if mode in {"SINGLE", "CROSS_ENCODER"} or loss not in _NEEDS_FROZEN_PREMISES:
        return ""
    return (
        f"is {loss}, which compares with every vector of the frozen corpus, but mode {mode} trains the premise encoder "
        "and would have to encode the whole corpus in every step; give MULTIPLE_NEGATIVES_RANKING or another loss over "
        "pairs, or mode SINGLE"
    )

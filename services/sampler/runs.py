"""The values of the sampler: a run, its configuration and progress, a pair, an event. No behaviour but JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Literal, cast

from services.sampler.acs import Rules
from services.sampler.negatives import NegativeFilter

FORMAT_VERSION = 1
MAX_NOTE = 1024  # characters; it stands in every pair of its node

State = Literal["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"]
Sign = Literal["POSITIVE", "NEGATIVE", "SKIPPED"]
LIVE: tuple[State, ...] = ("PENDING", "RUNNING")


@dataclass(frozen=True)
class Hypothesis:
    """The root of a tree to explain."""

    id: str
    text: str


@dataclass(frozen=True)
class RunConfig:
    """What a run does. `label` or `version` names the query encoder; neither means the label `stable`."""

    corpus: str
    oracle: str
    idempotency_key: str = ""
    rules: Rules = field(default_factory=Rules)
    label: str = ""
    version: str = ""
    split: str = ""

    def to_json(self) -> str:
        """The configuration as stored."""
        return json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        """Reads what `to_json` wrote."""
        stored = json.loads(text)
        stored.pop("format_version")
        rules = stored["rules"]
        rules["negatives"] = NegativeFilter(**rules.get("negatives", {}))
        return cls(**{**stored, "rules": Rules(**rules)})

    def fingerprint(self, hypotheses: Sequence[Hypothesis]) -> str:
        """Tells two StartRun calls under one idempotency key apart."""
        digest = hashlib.sha256(self.to_json().encode())
        for hypothesis in hypotheses:
            digest.update(json.dumps([hypothesis.id, hypothesis.text]).encode())
        return digest.hexdigest()

    def splits(self) -> tuple[str, ...]:
        """The splits whose premises may be put before the oracle; empty: all."""
        return ("facts", self.split) if self.split else ()


@dataclass(frozen=True)
class Progress:
    """How far a run is; counts as in the RunProgress message."""

    trees: int = 0
    trees_done: int = 0
    nodes_judged: int = 0
    nodes_pending: int = 0
    positives: int = 0
    negatives: int = 0
    skipped: int = 0
    judgements: int = 0
    nodes_failed: int = 0
    filtered: int = 0


COUNTERS = tuple(counter.name for counter in fields(Progress))


@dataclass(frozen=True)
class Run:
    """A sampling job as it is stored. `imported` runs hold pairs that were judged elsewhere."""

    id: str
    config: RunConfig
    state: State
    error: str
    model_version: str
    generation: str
    progress: Progress
    created_at: datetime
    ended_at: datetime | None
    fingerprint: str = ""
    imported: bool = False
    event_seq: int = 0

    @property
    def ended(self) -> bool:
        """Whether nobody works on it any more."""
        return self.state not in LIVE


@dataclass(frozen=True)
class Event:
    """One event of a run, and the run as it was after it."""

    seq: int
    at: datetime
    run: Run


@dataclass(frozen=True)
class Pair:
    """A query, a premise, a sign and where it came from. `seq` is 0 until the log has assigned one.

    An `amended` pair replaces the earlier ones of its query and premise in its run. `reason` says why a skipped one was
    skipped: undecided by the oracle, or the filter's reason. `note` is the remark that came with the answer.
    """

    query: str
    premise_id: str
    premise: str
    sign: Sign
    run_id: str = ""
    node_id: str = ""
    rank: int = 0
    score: float = 0.0
    model_version: str = ""
    generation: str = ""
    oracle: str = ""
    annotator: str = ""
    judged_at: str = ""
    grade: float = 0.0
    amended: bool = False
    reason: str = ""
    note: str = ""
    seq: int = 0

    def to_json(self) -> str:
        """The pair as stored; its position in the log is its seq."""
        stored = dict(vars(self))  # plain values: asdict would take most of the time that a run spends on its pairs
        stored.pop("seq")
        return json.dumps({"format_version": FORMAT_VERSION, **stored})

    @classmethod
    def from_json(cls, text: str, seq: int) -> Pair:
        """Reads what `to_json` wrote."""
        stored = json.loads(text)
        stored.pop("format_version")
        return cls(**stored, seq=seq)


def now() -> str:
    """The time as records hold it."""
    return datetime.now(UTC).isoformat()


def parse_time(text: str | None) -> datetime | None:
    """The time of a record; None for an empty one."""
    return datetime.fromisoformat(text) if text else None


def progress_of(values: Iterable[str | None]) -> Progress:
    """Progress from stored counters, in the order of COUNTERS."""
    return Progress(*(int(value or 0) for value in values))


def state_of(text: str) -> State:
    """The state of a record."""
    return cast("State", text)

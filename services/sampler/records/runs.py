"""The values of the sampler: a run, its configuration and progress, a pair, an event. No behaviour but JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from datetime import datetime
from typing import Literal, assert_never, cast

from aeenc.oracle import Candidate
from services.sampler.acs.algorithm import PairState, Rules
from services.sampler.acs.negatives import NegativeFilter
from services.store.formats import check_format, known_fields
from services.store.life_cycles import LIVE, State, now

FORMAT_VERSION = 1
MAX_NOTE = 1024  # characters; it stands in every pair of its node


PairSign = Literal["POSITIVE", "NEGATIVE", "SKIPPED"]
UNDECIDED = "undecided"  # the reason of a pair that the oracle left open
REFUSED = "refused"  # the reason of an amended pair that a run of positives only does not keep


@dataclass(frozen=True)
class Hypothesis:
    """The root of a tree to explain, and for people the question and answer behind it."""

    id: str
    text: str
    question: str = ""
    answer: str = ""


@dataclass(frozen=True)
class RunConfig:
    """The task of a run. `label` or `version` names the query encoder; without either it is the label `stable`.

    A `live` run follows its label: what is not judged yet is retrieved again by each version that the label moves to.
    """

    corpus: str
    oracle: str
    idempotency_key: str = ""
    rules: Rules = field(default_factory=Rules)
    label: str = ""
    version: str = ""
    split: str = ""
    live: bool = False

    def to_json(self) -> str:
        """The configuration as stored."""
        return json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        """Reads what `to_json` wrote here or in a later minor release. Raises NewerFormat."""
        stored = json.loads(text)
        check_format(stored, FORMAT_VERSION, "a run's configuration")
        rules = known_fields(Rules, stored["rules"])
        rules["negatives"] = NegativeFilter(**known_fields(NegativeFilter, rules["negatives"]))
        return cls(**{**known_fields(cls, stored), "rules": Rules(**rules)})

    def fingerprint(self, hypotheses: Sequence[Hypothesis]) -> str:
        """Tells two StartRun calls under one idempotency key apart."""
        digest = hashlib.sha256(self.to_json().encode())
        for hypothesis in hypotheses:
            digest.update(json.dumps(astuple(hypothesis)).encode())
        return digest.hexdigest()

    def splits(self) -> tuple[str, ...]:
        """The splits whose premises may be put before the oracle; empty: all."""
        return ("facts", self.split) if self.split else ()


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run, counted as in the RunProgress message."""

    trees: int = 0
    trees_done: int = 0
    nodes_judged: int = 0
    nodes_pending: int = 0
    positives: int = 0
    negatives: int = 0
    skipped: int = 0
    judgements: int = 0
    nodes_failed: int = 0


COUNTERS = tuple(counter.name for counter in fields(RunProgress))


@dataclass(frozen=True)
class Run:
    """A run as it is stored. `imported` runs hold pairs that were judged elsewhere.

    `model_version` is the version that it began with, `current_version` the one that it follows now (empty: the same).
    """

    id: str
    config: RunConfig
    state: State
    error: str
    model_version: str
    generation: str
    progress: RunProgress
    created_at: datetime
    ended_at: datetime | None
    fingerprint: str = ""
    imported: bool = False
    event_seq: int = 0
    traceparent: str = ""  # of the call that started it
    current_version: str = ""

    @property
    def version(self) -> str:
        """The encoder version that nodes are retrieved with from now on."""
        return self.current_version or self.model_version

    @property
    def ended(self) -> bool:
        """Whether nobody works on it any more."""
        return self.state not in LIVE

    def pair(
        self,
        query: str,
        premise: Candidate,
        state: PairState,
        *,
        node_id: str,
        annotator: str,
        grade: float = 0.0,
        note: str = "",
        amended: bool = False,
        version: str = "",
    ) -> Pair:
        """A pair that this run records now; `version` has retrieved it (default: the one the run began with)."""
        sign, reason = sign_of(state)
        if sign == "NEGATIVE" and self.config.rules.positives_only:
            sign, reason = "SKIPPED", REFUSED
        return Pair(
            query=query,
            premise_id=premise.id,
            premise=premise.text,
            sign=sign,
            run_id=self.id,
            node_id=node_id,
            rank=premise.rank,
            score=premise.score,
            model_version=version or self.model_version,
            generation=self.generation,
            oracle=self.config.oracle,
            annotator=annotator,
            judged_at=now(),
            grade=grade,
            amended=amended,
            leaf=amended and state is PairState.LEAF,
            reason=reason,
            note=note,
        )


def sign_of(state: PairState) -> tuple[PairSign, str]:
    """What the log says of a pair in this state, and the reason of a skipped one."""
    match state:
        case PairState.EXPLAINS | PairState.LEAF:
            return "POSITIVE", ""
        case PairState.REFUSED:
            return "NEGATIVE", ""
        case PairState.SKIPPED:
            return "SKIPPED", UNDECIDED
        case _:
            assert_never(state)


@dataclass(frozen=True)
class RunEvent:
    """One event of a run, and the run right after it."""

    seq: int
    at: datetime
    run: Run


@dataclass(frozen=True)
class Pair:
    """A query, a premise, a sign and where it came from. `seq` is 0 until the log has assigned one.

    An `amended` pair replaces the earlier ones of its query and premise in its run; of a `leaf`, its premise needs no
    explanation. `reason` says why a skipped one was skipped: undecided by the oracle, or the filter's reason. `note` is
    the remark that came with the answer.
    """

    query: str
    premise_id: str
    premise: str
    sign: PairSign
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
    leaf: bool = False
    reason: str = ""
    note: str = ""
    seq: int = 0

    def to_json(self) -> str:
        """The pair as stored; its position in the log is its seq."""
        stored = dict(vars(self))  # plain values: asdict would take most of the time that a run spends on its pairs
        stored.pop("seq")
        return json.dumps({"format_version": FORMAT_VERSION, **stored})

    @property
    def state(self) -> PairState:
        """What a run knows by it."""
        match self.sign:
            case "POSITIVE":
                return PairState.LEAF if self.leaf else PairState.EXPLAINS
            case "NEGATIVE":
                return PairState.REFUSED
            case "SKIPPED":
                return PairState.REFUSED if self.reason == REFUSED else PairState.SKIPPED
            case _:
                assert_never(self.sign)

    @classmethod
    def from_json(cls, text: str, seq: int) -> Pair:
        """Reads what `to_json` wrote here or in a later minor release. Raises NewerFormat."""
        stored = json.loads(text)
        check_format(stored, FORMAT_VERSION, "a pair")
        return cls(**{**known_fields(cls, stored), "seq": seq})


def parse_time(text: str | None) -> datetime | None:
    """The time of a record; None for an empty one."""
    return datetime.fromisoformat(text) if text else None


def progress_of(values: Iterable[str | None]) -> RunProgress:
    """Progress from stored counters, in the order of COUNTERS."""
    return RunProgress(*(int(value or 0) for value in values))


def state_of(text: str) -> State:
    """The state of a record."""
    return cast("State", text)

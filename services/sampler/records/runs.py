"""The values of the sampler: a run, its hypotheses, a pair, an event. No behaviour but JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from pydantic import TypeAdapter
from pydantic_core import to_json

from aeenc.oracle import Candidate
from aeenc.values import Collect, RunConfig, RunProgress, Verdict
from services.sampler.acs.algorithm import SIGNS, KnownPair, PairSign, explains
from services.store.formats import check_format, made_of
from services.store.life_cycles import LIVE, State, now

FORMAT_VERSION = 1
MAX_NOTE = 1024  # characters; it stands in every pair of its node
UNDECIDED = "undecided"  # the reason of a pair that the oracle left open
REFUSED = "refused"  # the reason of an amended pair that a run of positives only does not keep


@dataclass(frozen=True)
class Hypothesis:
    """The root of a tree to explain, for people the question and answer behind it, and what may explain it."""

    id: str
    text: str
    question: str = ""
    answer: str = ""
    before_id: str = ""
    only_ids: Sequence[str] = ()


NO_ROOT = Hypothesis("", "")  # of no node, or of a run that was deleted meanwhile
_CONFIG = TypeAdapter(RunConfig)


def config_json(config: RunConfig) -> str:
    """The configuration of a run as stored."""
    return json.dumps({"format_version": FORMAT_VERSION, **_CONFIG.dump_python(config, mode="json")}, sort_keys=True)


def config_from_json(text: str) -> RunConfig:
    """Reads what `config_json` wrote here or in a later minor release. Raises NewerFormat."""
    stored = json.loads(text)
    check_format(stored, FORMAT_VERSION, "a run's configuration")
    return made_of(RunConfig, stored)


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
        verdict: Verdict,
        *,
        node_id: str,
        annotator: str,
        note: str = "",
        amended: bool = False,
        version: str = "",
        judged_at: str = "",
    ) -> Pair:
        """A pair that this run records, by default now and of the version that the run began with."""
        does = explains(verdict)
        sign, reason = SIGNS[does], UNDECIDED if does is None else ""
        if sign == "NEGATIVE" and self.config.collect is Collect.POSITIVES_ONLY:
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
            judged_at=judged_at or now(),
            grade=verdict.grade or 0.0,
            amended=amended,
            leaf=bool(does and verdict.leaf),
            reason=reason,
            note=note,
        )


@dataclass  # not frozen: a run makes so many that this takes 5 % of its time
class Pair:
    """A query, a premise, a sign and where it came from. `seq` is 0 until the log has assigned one.

    An `amended` pair replaces the earlier ones of its query and premise in its run. `reason` says why a skipped one was
    skipped: undecided by the oracle, or the filter's reason. `note` is the remark that came with the answer.
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
        stored = {"format_version": FORMAT_VERSION, **vars(self)}  # plain values: `asdict` would copy each
        del stored["seq"]
        return to_json(stored).decode()  # a third of the time that `json.dumps` takes

    @property
    def known(self) -> KnownPair:
        """What a run knows by it, in a log of its own."""
        does = {"POSITIVE": True, "NEGATIVE": False}.get(self.sign)
        return KnownPair(does, self.leaf, Candidate(self.premise_id, self.premise, self.rank, self.score))

    @classmethod
    def from_json(cls, text: str, seq: int) -> Pair:
        """Reads what `to_json` wrote here or in a later minor release. Raises NewerFormat."""
        stored = json.loads(text)
        check_format(stored, FORMAT_VERSION, "a pair")
        return made_of(cls, {**stored, "seq": seq})


def parse_time(text: str | None) -> datetime | None:
    """The time of a record; None for an empty one."""
    return datetime.fromisoformat(text) if text else None

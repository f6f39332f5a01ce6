"""The iterative loop (Bogatu et al. 2022, section 3): sample, train, publish, and begin again with the new encoder.

Everything happens through the RPCs. What is done stands in a journal, a JSON file, after every step; runs and jobs have
idempotency keys of the journal's own, so a loop that was stopped anywhere goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aeenc import errors
from aeenc.client import Client
from aeenc.v1 import sampler_pb2, trainer_pb2, types_pb2

FORMAT_VERSION = 1
PUBLISH_S = 60.0
STABLE = "stable"

Gold = tuple[str, Sequence[str]]
Say = Callable[[str], None]


@dataclass(frozen=True)
class LoopPlan:
    """What a loop does. `run` and `job` are further fields of RunConfig and JobConfig.

    Each round learns from the pairs of all rounds so far. With `restart` it starts from the pre-trained encoder, else
    from the round before. It ends early after `patience` rounds in a row that do not lift the strict MAP on
    `validation` (0: never); the label then names the best version.
    """

    corpus: str
    hypotheses: Sequence[tuple[str, str]] = field(repr=False)
    validation: Sequence[Gold] = field(repr=False)
    oracle: str = "gold"
    rounds: int = 4
    restart: bool = True
    patience: int = 1
    label: str = STABLE
    run: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)

    def fingerprint(self) -> str:
        """A hash over everything but the number of rounds, which a loop that goes on may change."""
        values = {**vars(self), "rounds": 0, "run": dict(self.run), "job": dict(self.job)}
        return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


@dataclass
class Round:
    """What one round has done so far; empty: not yet. Round 0 is the encoder that the loop began with."""

    number: int
    run: str = ""
    positives: int = 0
    negatives: int = 0
    job: str = ""
    version: str = ""
    validation_map: float = 0.0
    published: bool = False
    report: dict[str, Any] = field(default_factory=dict)


class Journal:
    """What a loop has done, in a file that is replaced as a whole after every step."""

    def __init__(self, path: Path, identity: str, fingerprint: str, rounds: list[Round], ended: str = "") -> None:
        self.path, self.identity, self.fingerprint = path, identity, fingerprint
        self.rounds, self.ended = rounds, ended

    @classmethod
    def open(cls, path: Path, plan: LoopPlan) -> Journal:
        """The journal of a plan, begun if there is none. Raises AlreadyExists for another plan's."""
        if not path.exists():
            journal = cls(path, uuid.uuid4().hex[:12], plan.fingerprint(), [])
            journal.save()
            return journal
        try:
            record = json.loads(path.read_bytes())
            found = cls(path, record["id"], record["plan"], [Round(**one) for one in record["rounds"]], record["ended"])
            version = record["format_version"]
        except (ValueError, KeyError, TypeError) as error:
            raise errors.InvalidArgument(f"{path} is no journal of a loop ({error}); name another file") from None
        if version != FORMAT_VERSION or found.fingerprint != plan.fingerprint():
            raise errors.AlreadyExists(
                f"{path} is the journal of a loop with other settings or data; name another file, or remove it"
            )
        return found

    def save(self) -> None:
        """Writes the journal; on disk when it returns."""
        record = {
            "format_version": FORMAT_VERSION,
            "id": self.identity,
            "plan": self.fingerprint,
            "ended": self.ended,
            "rounds": [vars(one) for one in self.rounds],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)


class Loop:
    """One loop. `report_dict` turns an evaluation's report into what the journal keeps."""

    def __init__(
        self,
        client: Client,
        plan: LoopPlan,
        journal: Journal,
        report_dict: Callable[[types_pb2.EvaluationReport], dict[str, Any]],
        say: Say = lambda _: None,
    ) -> None:
        self._client, self._plan, self._journal = client, plan, journal
        self._report_dict, self._say = report_dict, say

    def go(self) -> list[Round]:
        """Does what is left of all rounds and returns them, round 0 first. Raises what the services raise.

        Raises Aborted when a run or a job has ended badly.
        """
        rounds = self._journal.rounds
        if not rounds:
            self._begin()
        while not self._stopped():
            self._journal.ended = ""
            if rounds[-1].report:
                rounds.append(Round(len(rounds)))
            self._round(rounds[-1])
        best = self.best
        if rounds[-1] is not best and not self._journal.ended:
            self._publish(best.version, force=True)
        self._journal.ended = self._journal.ended or self._stopped()
        self._journal.save()
        return rounds

    @property
    def rounds(self) -> list[Round]:
        """The rounds so far, round 0 first."""
        return self._journal.rounds

    @property
    def best(self) -> Round:
        """The round with the highest strict MAP on the validation queries; the earliest of equal ones."""
        return max((one for one in self._journal.rounds if one.version), key=lambda one: one.validation_map)

    def _stopped(self) -> str:
        """Why there is no further round; empty: there is one."""
        done = [one for one in self._journal.rounds if one.report]
        if len(done) - 1 >= self._plan.rounds:
            return f"all {self._plan.rounds} rounds are done"
        last = [one.validation_map for one in done[-self._plan.patience :]] if self._plan.patience else []
        before = [one.validation_map for one in done[: -self._plan.patience]]
        if last and before and len(done) == len(self._journal.rounds) and max(last) <= max(before):
            return f"{len(last)} round(s) in a row did not lift the validation MAP of {max(before):.4f}"
        return ""

    def _begin(self) -> None:
        plan = self._plan
        if plan.label != STABLE and plan.label not in {one.name for one in self._client.registry.labels()}:
            stable = next(one for one in self._client.registry.labels() if one.name == STABLE)
            self._client.registry.set_label(plan.label, stable.version)
        first = Round(0, published=True)
        self._measure(first)
        self._journal.rounds.append(first)
        self._journal.save()

    def _round(self, now: Round) -> None:
        if not now.positives:
            self._sample(now)
        if not now.version:
            self._train(now)
        if not now.published:
            before = [one.validation_map for one in self._journal.rounds[: now.number]]
            self._publish(now.version, force=now.validation_map <= max(before))
            now.published = True
            self._journal.save()
        self._measure(now)
        self._journal.save()

    def _sample(self, now: Round) -> None:
        plan, client = self._plan, self._client
        if not now.run:
            now.run = client.sampler.start_run(
                plan.hypotheses,
                corpus=plan.corpus,
                oracle=plan.oracle,
                model=types_pb2.ModelSelector(label=plan.label),
                idempotency_key=f"loop-{self._journal.identity}-{now.number}",
                **plan.run,
            ).id
            self._journal.save()
        self._say(f"round {now.number}: sampling, run {now.run}")
        run = _succeeded(
            client.sampler, now.run, sampler_pb2.RUN_STATE_SUCCEEDED, f"run {now.run} of round {now.number}"
        )
        if not run.progress.positives:
            raise errors.FailedPrecondition(
                f"run {run.id} of round {now.number} found nothing that explains; look at the oracle {plan.oracle!r}",
                reason="NO_POSITIVES",
            )
        now.positives, now.negatives = run.progress.positives, run.progress.negatives
        self._journal.save()

    def _train(self, now: Round) -> None:
        plan, client = self._plan, self._client
        if not now.job:
            rounds = self._journal.rounds
            now.job = client.trainer.start_job(
                validation=plan.validation,
                corpus=plan.corpus,
                run_ids=[one.run for one in rounds if one.run],
                base_version="" if plan.restart else rounds[now.number - 1].version,
                idempotency_key=f"loop-{self._journal.identity}-{now.number}",
                **plan.job,
            ).id
            self._journal.save()
        self._say(f"round {now.number}: training, job {now.job}")
        job = _succeeded(
            client.trainer, now.job, trainer_pb2.JOB_STATE_SUCCEEDED, f"job {now.job} of round {now.number}"
        )
        now.version, now.validation_map = job.version, job.progress.best_validation_map
        self._journal.save()

    def _publish(self, version: str, *, force: bool) -> None:
        published = self._client.registry.publish(version, label=self._plan.label, wait_s=PUBLISH_S, force=force)
        if not published.complete:
            reasons = "; ".join(rollout.reason for rollout in published.rollouts if not rollout.ok)
            raise errors.DeadlineExceeded(f"not every encoder serves {version}: {reasons or 'none has answered'}")

    def _measure(self, now: Round) -> None:
        model = {"version": now.version} if now.version else {"label": self._plan.label}
        report = self._client.trainer.evaluate(self._plan.corpus, self._plan.validation, **model)
        now.report = self._report_dict(report)
        now.version = report.model_version
        now.validation_map = report.strict.map
        self._say(f"round {now.number}: {now.version}, strict MAP {now.validation_map:.4f}")


def _succeeded(client: Any, work_id: str, state: int, name: str) -> Any:
    """Waits for a run or job, resumes it once if it failed, and returns it. Raises Aborted when it fails again."""
    work = client.wait(work_id)
    if work.state != state:
        client.resume(work_id)
        work = client.wait(work_id)
    if work.state != state:
        raise errors.Aborted(f"{name} has not succeeded: {work.error or 'cancelled'}")
    return work

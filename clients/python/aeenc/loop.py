"""The iterative loop (Bogatu et al. 2022, section 3): sample, train, publish, and begin again with the new encoder.

    round 0: measure ─► sample ─► train ─► try (publish under a trial label, measure) ─► serve (move the label) ─┐
                          ▲  after each step the journal, a JSON file, is written                               │
                          └──────────────── next round, unless rounds or patience are used up ◄─────────────────┘

Everything happens through RPCs. Runs and jobs have idempotency keys from the journal, so a loop that was stopped
anywhere goes on where it was.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from aeenc import errors, values
from aeenc.blocking import Client
from aeenc.files.lines import digest, json_file
from aeenc.files.whole import whole_file
from aeenc.trees import Accessible
from aeenc.values import WorkState

FORMAT_VERSION = 1
STABLE = "stable"
PUBLISH_S = 60.0

Gold = tuple[str, Sequence[str] | Mapping[str, float]]
Say = Callable[[str], None]


class RoundEndedBadly(errors.Aborted):
    """A run or a job failed again or was cancelled, or not every encoder serves what was published."""

    default_reason = "ENDED_BADLY"


@dataclass(frozen=True)
class LoopPlan:
    """The plan of a loop. `run` and `job` are further arguments of `start_run` and `start_job`; `later_run` those of
    `start_run` that differ from round 2 on.

    `accessible` maps texts of `validation` to the premises that may be found for them, by id, in the evaluations; those
    not there: all. What may explain a hypothesis is an argument in `run`. A job's own validation ignores both.

    Each round learns from the pairs of all rounds so far. With `restart` it starts from the pre-trained encoder, else
    from the round before. It ends early after `patience` rounds in a row that do not lift the strict MAP on
    `validation` (0: never); the label then names the best version.

    In `mode` "siamese" and "dual" each round trains premises, too, and publishes encoders and a generation in their
    space together, which only the label `stable` can do. Raises InvalidArgument for another label there.
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
    later_run: Mapping[str, Any] = field(default_factory=dict)
    mode: Literal["single", "siamese", "dual"] = "single"
    accessible: Mapping[str, Accessible] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.trains_premises and self.label != STABLE:
            raise errors.InvalidArgument(
                f"label is {self.label!r}; in mode {self.mode}, a round publishes a generation of the corpus, too, "
                f"which {STABLE!r} alone can do"
            )

    @property
    def trains_premises(self) -> bool:
        """Whether each round makes a space of its own."""
        return self.mode != "single"

    def fingerprint(self) -> str:
        """Hashes the plan without `rounds` and `patience`: a loop that goes on may change when it ends."""
        return digest(replace(self, rounds=LoopPlan.rounds, patience=LoopPlan.patience))


@dataclass
class Round:
    """The results of one round so far; empty: not yet. Round 0 is the encoder that the loop began with.

    `report` evaluates the trained encoder. `published`: the label has named it; a last round without a gain never is.
    """

    number: int
    run: str = ""
    positives: int = 0
    negatives: int = 0
    job: str = ""
    version: str = ""
    validation_map: float = 0.0
    published: bool = False
    report: dict[str, Any] = field(default_factory=dict)


@dataclass
class Journal:
    """The record of a loop's rounds, in a file that is replaced as a whole after every step."""

    path: Path
    identity: str
    fingerprint: str
    rounds: list[Round]
    ended: str = ""

    @classmethod
    @contextlib.contextmanager
    def open(cls, path: Path, plan: LoopPlan) -> Iterator[Journal]:
        """Opens the journal of a plan, or begins one. Within the block, no other loop can open it.

        Raises AlreadyExists for the journal of another plan, FailedPrecondition for one of a newer release or of
        a loop that runs.
        """
        if not path.exists():
            cls(path, uuid.uuid4().hex[:12], plan.fingerprint(), []).save()
        if not path.is_file():
            raise errors.InvalidArgument(f"{path} is not a regular file; name another path for the journal")
        with path.resolve().with_name(f".{path.resolve().name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise errors.FailedPrecondition(
                    f"{path} is the journal of a loop that runs now; wait for its end, or name another file"
                ) from None
            yield cls._read(path, plan)

    @classmethod
    def _read(cls, path: Path, plan: LoopPlan) -> Journal:
        try:
            record: Any = json_file(path)
            if (version := int(record["format_version"])) > FORMAT_VERSION:
                raise errors.FailedPrecondition(
                    f"{path} has format_version {version}, this release reads up to {FORMAT_VERSION}; update aeenc"
                )
            found = cls(path, record["id"], record["plan"], [Round(**one) for one in record["rounds"]], record["ended"])
        except (errors.InvalidArgument, ValueError, OverflowError, KeyError, TypeError) as error:
            raise errors.InvalidArgument(f"{path} is not the journal of a loop ({error}); name another file") from None
        if found.fingerprint != plan.fingerprint():
            raise errors.AlreadyExists(
                f"{path} is the journal of a loop with other settings or data; name another file, or remove it"
            )
        return found

    def save(self) -> None:
        """Writes the journal; it is on disk when this returns."""
        record = {
            "format_version": FORMAT_VERSION,
            "id": self.identity,
            "plan": self.fingerprint,
            "ended": self.ended,
            "rounds": [vars(one) for one in self.rounds],
        }
        with whole_file(self.path, durable=True) as file:  # a lost one would begin run and job a second time
            json.dump(record, file, indent=1)


class Loop:
    """One loop. `report_dict` converts an evaluation's report to the values that the journal keeps."""

    def __init__(
        self,
        client: Client,
        plan: LoopPlan,
        journal: Journal,
        report_dict: Callable[[values.EvaluationReport], dict[str, Any]],
        say: Say = lambda _: None,
    ) -> None:
        self._client, self._plan, self._journal = client, plan, journal
        self._report_dict, self._say = report_dict, say

    def go(self) -> list[Round]:
        """Finishes all rounds and returns them, round 0 first. Raises as the services do.

        Raises RoundEndedBadly for a run, a job or what was published. A loop that had ended before moves no label.
        """
        rounds = self._journal.rounds
        if not rounds:
            self._begin()
        if not (self._journal.ended and self._stopped()):
            self._journal.ended = ""
            self._journal.save()
            while not self._stopped():
                if rounds[-1].report:
                    self._serve(rounds[-1])  # the next one samples with it
                    rounds.append(Round(len(rounds)))
                self._round(rounds[-1])
            self._serve(self.best)
        self._journal.ended = self._stopped()
        self._journal.save()
        return rounds

    @property
    def rounds(self) -> list[Round]:
        """The rounds so far, round 0 first."""
        return self._journal.rounds

    @property
    def best(self) -> Round:
        """The round with the highest strict MAP on the validation queries; the earliest of equal ones."""
        return max((one for one in self._journal.rounds if one.report), key=lambda one: one.validation_map)

    def _stopped(self) -> str:
        """Returns why the loop ends; empty while another round follows."""
        done = [one for one in self._journal.rounds if one.report]
        if len(done) - 1 >= self._plan.rounds:
            return f"all {self._plan.rounds} rounds are done"
        last = [one.validation_map for one in done[-self._plan.patience :]] if self._plan.patience else []
        before = [one.validation_map for one in done[: -self._plan.patience]]
        if last and before and len(done) == len(self._journal.rounds) and max(last) <= max(before):
            return f"{len(last)} round(s) in a row did not lift the validation MAP of {max(before):.4f}"
        return ""

    def _begin(self) -> None:
        plan, first = self._plan, Round(0, published=True)
        known = plan.label in {one.name for one in self._client.registry.list_labels()}
        # the `stable` of the space that the corpus is served in
        self._measure(first, label=plan.label if known else STABLE)
        if not known:
            self._client.registry.set_label(plan.label, first.version)
        self._journal.rounds.append(first)
        self._journal.save()

    def _round(self, now: Round) -> None:
        if not now.positives:
            self._sample(now)
        if not now.version:
            self._train(now)
        self._try(now)
        self._journal.save()

    def _try(self, now: Round) -> None:
        """Measures the trained encoder under a trial label, then removes it: encoders serve labelled versions only."""
        trial = f"loop-{self._journal.identity}"
        try:
            self._publish(now.version, trial, force=True)
            self._measure(now, version=now.version)
        finally:
            for label in self._client.registry.list_labels():
                if label.name == trial:
                    with contextlib.suppress(errors.NotFound):
                        self._client.registry.delete_label(trial, space_id=label.space_id)

    def _serve(self, one: Round) -> None:
        """Has the services use a round's encoder unless they do already; forces one that lifts nothing."""
        if not self._serves(one):
            best_before = max((before.validation_map for before in self.rounds[: one.number]), default=0.0)
            self._publish(one.version, self._plan.label, force=one.published or one.validation_map <= best_before)
            if not self._serves(one):  # the encoder that the loop began with: it brings no generation
                corpus, index = self._plan.corpus, self._client.index
                index.activate(corpus, one.report["generation"], expected=self._generation())
        one.published = True
        self._journal.save()

    def _serves(self, one: Round) -> bool:
        """Whether the plan's label names a round's encoder, or the corpus serves the generation of its space."""
        if self._plan.trains_premises:
            return bool(self._generation() == one.report["generation"])
        labels = self._client.registry.list_labels()
        return (one.version,) in {known.versions for known in labels if known.name == self._plan.label}

    def _generation(self) -> str:
        """Returns the generation that the corpus serves."""
        corpora = self._client.index.list_corpora()
        return next((found.active.id for found in corpora if found.corpus == self._plan.corpus), "")

    def _sample(self, now: Round) -> None:
        plan, sampler = self._plan, self._client.sampler
        start = partial(
            sampler.start_run,
            plan.hypotheses,
            corpus=plan.corpus,
            oracle=plan.oracle,
            label=plan.label,
            **{**plan.run, **(plan.later_run if now.number > 1 else {})},
        )
        run = self._finish(now, "run", "sampling", sampler, start)
        if not run.progress.positives:
            raise errors.FailedPrecondition(
                f"run {run.id} of round {now.number} found nothing that explains; look at the oracle {plan.oracle!r}",
                reason="NO_POSITIVES",
            )
        now.positives, now.negatives = run.progress.positives, run.progress.negatives
        self._journal.save()

    def _train(self, now: Round) -> None:
        plan, trainer = self._plan, self._client.trainer
        base, job = self.rounds[now.number - 1].version, dict(plan.job)
        if plan.restart:  # by default a job starts from the encoder of the premises, which the last round has trained
            base = pretrained(self._client) if plan.trains_premises else ""
        if plan.trains_premises:
            job["mode"] = plan.mode
        start = partial(
            trainer.start_job,
            validation=plan.validation,
            corpus=plan.corpus,
            run_ids=[one.run for one in self.rounds if one.run],
            base_version=base,
            **job,
        )
        job = self._finish(now, "job", "training", trainer, start)
        now.version, now.validation_map = job.version, job.progress.best_validation_map
        self._journal.save()

    def _finish(self, now: Round, kind: str, phase: str, service: Any, start: Callable[..., Any]) -> Any:
        """Starts the run or job of a round unless an earlier start of the loop did; waits for it to succeed."""
        known = bool(getattr(now, kind))
        if not known:
            setattr(now, kind, start(idempotency_key=f"loop-{self._journal.identity}-{now.number}").id)
            self._journal.save()
        work_id = getattr(now, kind)
        self._say(f"round {now.number}: {phase}, {kind} {work_id}")
        look = getattr(service, f"get_{kind}")
        return _succeeded(service, look, work_id, f"{kind} {work_id} of round {now.number}", known=known)

    def _publish(self, version: str, label: str, *, force: bool) -> None:
        published = self._client.registry.publish(version, label=label, wait_s=PUBLISH_S, force=force)
        if not published.complete:
            reasons = "; ".join(rollout.reason for rollout in published.rollouts if not rollout.ok)
            raise RoundEndedBadly(f"not every encoder serves {version}: {reasons or 'none has answered'}")

    def _measure(self, now: Round, *, label: str | None = None, version: str | None = None) -> None:
        plan, trainer = self._plan, self._client.trainer
        tandem = trainer.get_checkpoint(version).tandem if plan.trains_premises and version else None
        generation = tandem.generation if tandem else ""
        report = trainer.evaluate(
            plan.corpus,
            plan.validation,
            label=label,
            version=version,
            generation=generation,
            accessible=plan.accessible,
        )
        now.report = self._report_dict(report)
        now.version = report.model_version
        now.validation_map = report.strict.map
        self._say(f"round {now.number}: {now.version}, strict MAP {now.validation_map:.4f}")


def pretrained(client: Client) -> str:
    """Returns the version of the pre-trained encoder of the trainer's own space."""
    space_id = client.trainer.info().default_space_id
    for one in client.trainer.list_checkpoints():
        if one.pretrained and one.space_id == space_id:
            return one.version
    raise errors.NotFound(f"the trainer has no pre-trained encoder of space {space_id}; look at `aeenc checkpoints`")


def _succeeded(client: Any, look: Callable[[str], Any], work_id: str, name: str, *, known: bool) -> Any:
    """Waits for a run or job and returns it; resumes once one that fails.

    `known`: an earlier start of the loop began it. If it was cancelled since, starting the loop again resumes it.
    Raises RoundEndedBadly when it fails again, or when somebody cancels it meanwhile.
    """
    if known and look(work_id).state == WorkState.CANCELLED:
        client.resume(work_id)
    work = client.wait(work_id)
    if work.state == WorkState.FAILED:
        client.resume(work_id)
        work = client.wait(work_id)
    if work.state == WorkState.CANCELLED:
        raise RoundEndedBadly(
            f"{name} was cancelled; start the loop again to resume it, with another journal to begin anew"
        )
    if work.state != WorkState.SUCCEEDED:
        raise RoundEndedBadly(f"{name} has not succeeded: {work.error}")
    return work

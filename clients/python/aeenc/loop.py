"""The iterative loop (Bogatu et al. 2022, section 3): sample, train, publish, and begin again with the new encoder.

Everything happens through the RPCs. What is done stands in a journal, a JSON file, after every step; runs and jobs have
idempotency keys of the journal's own, so a loop that was stopped anywhere goes on where it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aeenc import errors
from aeenc.client import Client
from aeenc.loop_journal import STABLE, Gold, Journal, LoopPlan, Round
from aeenc.v1 import sampler_pb2, trainer_pb2, types_pb2

__all__ = ["STABLE", "Gold", "Journal", "Loop", "LoopPlan", "Round"]

PUBLISH_S = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Ends:
    """The states in which a run or a job ends."""

    succeeded: int
    failed: int
    cancelled: int


_RUN = _Ends(sampler_pb2.RUN_STATE_SUCCEEDED, sampler_pb2.RUN_STATE_FAILED, sampler_pb2.RUN_STATE_CANCELLED)
_JOB = _Ends(trainer_pb2.JOB_STATE_SUCCEEDED, trainer_pb2.JOB_STATE_FAILED, trainer_pb2.JOB_STATE_CANCELLED)


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

        Raises Aborted when a run or a job has ended badly. A loop that has ended before moves no label.
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
        """The measured round with the highest strict MAP on the validation queries; the earliest of equal ones."""
        return max((one for one in self._journal.rounds if one.report), key=lambda one: one.validation_map)

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
        plan, first = self._plan, Round(0, published=True)
        known = plan.label in {one.name for one in self._client.registry.labels()}
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
        """Measures what was trained under a label of the loop's own, which goes again: encoders serve labels alone."""
        trial = f"loop-{self._journal.identity}"
        try:
            self._publish(now.version, trial, force=True)
            self._measure(now, version=now.version)
        finally:
            for label in self._client.registry.labels():
                if label.name == trial:
                    with contextlib.suppress(errors.NotFound):
                        self._client.registry.delete_label(trial, space_id=label.space_id)

    def _serve(self, one: Round) -> None:
        """Points the plan's label at a round's encoder unless it is there; by force where that lifts nothing."""
        label = self._plan.label
        if one.version not in {known.version for known in self._client.registry.labels() if known.name == label}:
            best_before = max((before.validation_map for before in self.rounds[: one.number]), default=0.0)
            self._publish(one.version, label, force=one.published or one.validation_map <= best_before)
        one.published = True
        self._journal.save()

    def _sample(self, now: Round) -> None:
        plan, client = self._plan, self._client
        known = bool(now.run)
        if not known:
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
        name = f"run {now.run} of round {now.number}"
        run = _succeeded(client.sampler, client.sampler.run, now.run, _RUN, name, known=known)
        if not run.progress.positives:
            raise errors.FailedPrecondition(
                f"run {run.id} of round {now.number} found nothing that explains; look at the oracle {plan.oracle!r}",
                reason="NO_POSITIVES",
            )
        now.positives, now.negatives = run.progress.positives, run.progress.negatives
        self._journal.save()

    def _train(self, now: Round) -> None:
        plan, client = self._plan, self._client
        known = bool(now.job)
        if not known:
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
        name = f"job {now.job} of round {now.number}"
        job = _succeeded(client.trainer, client.trainer.job, now.job, _JOB, name, known=known)
        now.version, now.validation_map = job.version, job.progress.best_validation_map
        self._journal.save()

    def _publish(self, version: str, label: str, *, force: bool) -> None:
        published = self._client.registry.publish(version, label=label, wait_s=PUBLISH_S, force=force)
        if not published.complete:
            reasons = "; ".join(rollout.reason for rollout in published.rollouts if not rollout.ok)
            raise errors.DeadlineExceeded(f"not every encoder serves {version}: {reasons or 'none has answered'}")

    def _measure(self, now: Round, **model: str) -> None:
        report = self._client.trainer.evaluate(self._plan.corpus, self._plan.validation, **model)
        now.report = self._report_dict(report)
        now.version = report.model_version
        now.validation_map = report.strict.map
        self._say(f"round {now.number}: {now.version}, strict MAP {now.validation_map:.4f}")


def _succeeded(client: Any, look: Callable[[str], Any], work_id: str, ends: _Ends, name: str, *, known: bool) -> Any:
    """Waits for a run or job and returns it; one that fails is resumed once.

    `known`: an earlier start of the loop began it. If it was cancelled since, whoever starts the loop again wants it
    resumed. Raises Aborted when it fails again, and when somebody cancels it while the loop waits.
    """
    if known and look(work_id).state == ends.cancelled:
        client.resume(work_id)
    work = client.wait(work_id)
    if work.state == ends.failed:
        client.resume(work_id)
        work = client.wait(work_id)
    if work.state == ends.cancelled:
        raise errors.Aborted(
            f"{name} was cancelled; start the loop again to resume it, with another journal to begin anew"
        )
    if work.state != ends.succeeded:
        raise errors.Aborted(f"{name} has not succeeded: {work.error}")
    return work

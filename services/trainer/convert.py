"""Messages of aeenc.v1 to the trainer's values and back. No decision is taken here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.duration_pb2 import Duration

from aeenc import errors
from aeenc.v1 import registry_pb2, trainer_pb2
from services.kit.registry import CheckpointRow, LabelRow, RolloutRow
from services.kit.wire import to_timestamp
from services.trainer.jobs import Job, JobConfig, Loss, Progress
from services.trainer.publishing import Publication

_LOSSES: dict[int, Loss] = {
    trainer_pb2.LOSS_UNSPECIFIED: "FULL_CORPUS_SOFTMAX",
    trainer_pb2.LOSS_FULL_CORPUS_SOFTMAX: "FULL_CORPUS_SOFTMAX",
    trainer_pb2.LOSS_TRIPLET_MARGIN: "TRIPLET_MARGIN",
}
_LEARNING_RATE: dict[Loss, float] = {"FULL_CORPUS_SOFTMAX": 1e-4, "TRIPLET_MARGIN": 2e-5}
_REGULARIZATION: dict[Loss, float] = {"FULL_CORPUS_SOFTMAX": 0.0, "TRIPLET_MARGIN": 0.1}


def from_config(message: trainer_pb2.JobConfig) -> tuple[JobConfig, list[tuple[str, list[str]]]]:
    """A job's configuration with the defaults that the contract states, and its validation queries."""
    loss = _LOSSES.get(message.loss)
    if loss is None:
        raise errors.InvalidArgument.field("config.loss", f"is {message.loss}; give one of the enum Loss")
    config = JobConfig(
        corpus=message.corpus,
        run_ids=tuple(message.run_ids),
        idempotency_key=message.idempotency_key,
        base_version=message.base_version,
        loss=loss,
        epochs=message.epochs or 3,
        batch_size=message.batch_size or 32,
        learning_rate=_short(message.learning_rate) or _LEARNING_RATE[loss],
        temperature=_short(message.temperature) or 0.03,
        margin=_short(message.margin) if message.HasField("margin") else 0.1,
        regularization=(
            _short(message.regularization) if message.HasField("regularization") else _REGULARIZATION[loss]
        ),
        refused_weight=_short(message.refused_weight) or 1.0,
        seed=message.seed,
        split=message.split,
        note=message.note,
    )
    return config, [(query.text, list(query.premises)) for query in message.validation]


def to_job(job: Job) -> trainer_pb2.Job:
    """A job, without its validation queries."""
    config = job.config
    return trainer_pb2.Job(
        id=job.id,
        config=trainer_pb2.JobConfig(
            corpus=config.corpus,
            run_ids=config.run_ids,
            idempotency_key=config.idempotency_key,
            base_version=config.base_version,
            loss=f"LOSS_{config.loss}",
            epochs=config.epochs,
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            temperature=config.temperature,
            margin=config.margin,
            regularization=config.regularization,
            refused_weight=config.refused_weight,
            seed=config.seed,
            split=config.split,
            note=config.note,
        ),
        state=f"JOB_STATE_{job.state}",
        error=job.error,
        progress=_progress(job.progress),
        version=job.version,
        created_at=to_timestamp(job.created_at),
        ended_at=to_timestamp(job.ended_at),
    )


def to_checkpoint(row: CheckpointRow, labels: Sequence[str]) -> trainer_pb2.Checkpoint:
    """A checkpoint and the labels that name it."""
    return trainer_pb2.Checkpoint(
        version=row.version,
        space_id=row.space_id,
        pretrained=row.pretrained,
        base_version=row.base_version,
        job_id=row.job_id,
        validation_map=row.validation_map,
        manifest_sha256=row.manifest_sha256,
        labels=labels,
        created_at=to_timestamp(row.created_at),
        size_bytes=row.size_bytes,
        dim=row.dim,
    )


def to_label(row: LabelRow) -> registry_pb2.Label:
    """A label."""
    return registry_pb2.Label(
        space_id=row.space_id,
        name=row.name,
        version=row.version,
        revision=row.revision,
        previous_version=row.previous,
        moved_at=to_timestamp(row.moved_at),
        share=row.share,
    )


def to_rollouts(rows: Sequence[RolloutRow]) -> list[registry_pb2.Rollout]:
    """Where encoders stand."""
    return [
        registry_pb2.Rollout(
            instance=row.instance,
            revision=row.revision,
            ok=row.ok,
            reason=row.reason,
            acknowledged_at=to_timestamp(row.at),
        )
        for row in rows
    ]


def to_publication(publication: Publication) -> dict[str, Any]:
    """The fields that Publish and Rollback answer with."""
    return {
        "label": to_label(publication.label),
        "rollouts": to_rollouts(publication.rollouts),
        "complete": publication.complete,
    }


def revision(message: Any) -> int | None:
    """The expected revision of a request; None when it is not checked."""
    return message.expected_revision if message.HasField("expected_revision") else None


def share(message: Any) -> float | None:
    """The share of the calls that a request asks for; None when it is to stay."""
    return message.share if message.HasField("share") else None


def seconds(duration: Duration) -> float:
    """A duration in seconds."""
    return float(duration.seconds + duration.nanos / 1e9)


def _short(value: float) -> float:
    """The number that was meant: 0.03 travels as 0.029999999329447746 in single precision."""
    return float(f"{value:.7g}")


def _progress(progress: Progress) -> trainer_pb2.JobProgress:
    remaining = Duration()
    remaining.FromNanoseconds(int(progress.remaining_s * 1e9))
    return trainer_pb2.JobProgress(
        phase=progress.phase,
        epochs_done=progress.epochs_done,
        steps_done=progress.steps_done,
        steps=progress.steps,
        loss=progress.loss,
        validation_map=progress.validation_map,
        best_validation_map=progress.best_validation_map,
        remaining=remaining,
        queries=progress.queries,
        positives=progress.positives,
        negatives=progress.negatives,
    )

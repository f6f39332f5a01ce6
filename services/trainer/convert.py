"""Messages of aeenc.v1 to the trainer's values and back. No decision is taken here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from google.protobuf.duration_pb2 import Duration

from aeenc import errors
from aeenc.v1 import registry_pb2, trainer_pb2
from services.kit.convert import to_timestamp
from services.store.registry import CheckpointRow, LabelRow, RolloutRow
from services.trainer.jobs import Batching, Job, JobConfig, Loss, Mode, Progress, defaults_of
from services.trainer.publishing import Publication
from services.trainer.tandems import Tandem

_LOSSES: dict[int, Loss] = {
    trainer_pb2.LOSS_UNSPECIFIED: "FULL_CORPUS_SOFTMAX",
    trainer_pb2.LOSS_FULL_CORPUS_SOFTMAX: "FULL_CORPUS_SOFTMAX",
    trainer_pb2.LOSS_TRIPLET_MARGIN: "TRIPLET_MARGIN",
    trainer_pb2.LOSS_PAIRWISE_CONTRASTIVE: "PAIRWISE_CONTRASTIVE",
    trainer_pb2.LOSS_SUPERVISED_CONTRASTIVE: "SUPERVISED_CONTRASTIVE",
    trainer_pb2.LOSS_MULTIPLE_NEGATIVES_RANKING: "MULTIPLE_NEGATIVES_RANKING",
    trainer_pb2.LOSS_GIST: "GIST",
    trainer_pb2.LOSS_NLI_CLASSIFICATION: "NLI_CLASSIFICATION",
    trainer_pb2.LOSS_REGRESSION: "REGRESSION",
}
_MODES: dict[int, Mode] = {
    trainer_pb2.MODE_UNSPECIFIED: "SINGLE",
    trainer_pb2.MODE_SINGLE: "SINGLE",
    trainer_pb2.MODE_SIAMESE: "SIAMESE",
    trainer_pb2.MODE_DUAL: "DUAL",
    trainer_pb2.MODE_CROSS_ENCODER: "CROSS_ENCODER",
}
_BATCHINGS: dict[int, Batching] = {
    trainer_pb2.BATCHING_QUERIES: "QUERIES",
    trainer_pb2.BATCHING_ITEMS: "ITEMS",
}


def from_config(message: trainer_pb2.JobConfig) -> tuple[JobConfig, list[tuple[str, list[str]]]]:
    """A job's configuration with the defaults that the contract states, and its validation queries."""
    loss, mode = _LOSSES.get(message.loss), _MODES.get(message.mode)
    if mode is None:
        raise errors.InvalidArgument.field("config.mode", f"is {message.mode}; give one of the enum Mode")
    crossed = mode == "CROSS_ENCODER"
    if crossed and not message.loss:
        loss = "REGRESSION"
    usual: Batching = "QUERIES" if mode == "SINGLE" or crossed else "ITEMS"
    batching = _BATCHINGS.get(message.batching) if message.batching else usual
    if loss is None:
        raise errors.InvalidArgument.field("config.loss", f"is {message.loss}; give one of the enum Loss")
    if batching is None:
        raise errors.InvalidArgument.field("config.batching", f"is {message.batching}; give one of the enum Batching")
    given = {name: _short(getattr(message, name)) for name in ("margin", "regularization") if message.HasField(name)}
    defaults = defaults_of(loss, batching)
    config = JobConfig(
        corpus=message.corpus,
        run_ids=tuple(message.run_ids),
        idempotency_key=message.idempotency_key,
        base_version=message.base_version,
        loss=loss,
        epochs=message.epochs or 3,
        batch_size=message.batch_size or (8 if crossed else 32),
        learning_rate=_short(message.learning_rate) or defaults.learning_rate,
        temperature=_short(message.temperature) or defaults.temperature,
        margin=given.get("margin", defaults.margin),
        regularization=given.get("regularization", defaults.regularization),
        refused_weight=_short(message.refused_weight) or 1.0,
        seed=message.seed,
        split=message.split,
        note=message.note,
        data_sets=tuple(message.data_sets),
        batching=batching,
        hard_negatives=message.hard_negatives if message.HasField("hard_negatives") else (6 if crossed else 1),
        guide_version=message.guide_version,
        guide_margin=_short(message.guide_margin),
        accumulation=message.accumulation or 1,
        initial_share=_short(message.initial_share),
        items_per_epoch=message.items_per_epoch,
        mode=mode,
    )
    return config, [(query.text, list(query.premises)) for query in message.validation]


def to_job(job: Job) -> trainer_pb2.Job:
    """A job, without its validation queries."""
    return trainer_pb2.Job(
        id=job.id,
        config=trainer_pb2.JobConfig(
            **{
                **asdict(job.config),
                "loss": f"LOSS_{job.config.loss}",
                "batching": f"BATCHING_{job.config.batching}",
                "mode": f"MODE_{job.config.mode}",
            }
        ),
        state=f"JOB_STATE_{job.state}",
        error=job.error,
        progress=_progress(job.progress),
        version=job.version,
        created_at=to_timestamp(job.created_at),
        ended_at=to_timestamp(job.ended_at),
    )


def to_checkpoint(row: CheckpointRow, labels: Sequence[str], tandem: Tandem | None) -> trainer_pb2.Checkpoint:
    """A checkpoint, the labels that name it, and what belongs to it."""
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
        tandem=trainer_pb2.Tandem(
            corpus=tandem.corpus,
            generation=tandem.generation,
            premise_version=tandem.premise_version,
            replaces=tandem.replaces,
        )
        if tandem
        else None,
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
        "generation": publication.generation,
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
    fields = asdict(progress)
    fields.pop("remaining_s")
    return trainer_pb2.JobProgress(**fields, remaining=remaining)

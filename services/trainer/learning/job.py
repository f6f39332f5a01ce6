"""One training job from its directory: load, train, evaluate, export. Everything it says goes into files."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from dataclasses import asdict
from typing import Any

from services.store.artifacts import Artifact
from services.trainer.evaluation.protocol import Report
from services.trainer.jobs.files import JobFiles
from services.trainer.learning.checkpoint.export import write_checkpoint
from services.trainer.learning.cross_encoders.cross_encoder import write_cross_encoder
from services.trainer.learning.cross_encoders.reranking import RerankingInputs
from services.trainer.learning.devices import prepare_torch
from services.trainer.learning.inputs import JobInputs
from services.trainer.learning.loop.curves import Curves
from services.trainer.learning.loop.epoch_state import TrainingState
from services.trainer.learning.loop.ranks import Rank, together
from services.trainer.learning.loop.training import Diverged, Step, Training
from services.trainer.learning.loss.objective import Objective
from services.trainer.learning.query_encoder import Encoders, QueryEncoder

# What a checkpoint's lineage leaves out of a job's configuration: it stands elsewhere in the manifest, or says nothing.
_ELSEWHERE = ("base_version", "idempotency_key")


def run_job(files: JobFiles) -> None:
    """Does a job and writes its result. Raises what makes it fail.

    Where the loss is no number any more, the best epoch before becomes a checkpoint and the result has both, the
    version and the error.
    """
    plan = files.plan()
    rank = Rank(0, plan.means.processes)
    prepare_torch(plan.means.threads // rank.processes, plan.means.device)
    files.write_progress({"phase": "loading"})
    materials = load_materials(files, rank)
    objective = materials.objective()
    failure = ""
    try:
        standing = train(files, materials, materials.encoders(), objective, rank)
    except Diverged as error:
        if not error.standing.best_epoch:
            raise
        failure, standing = str(error), error.standing
    if isinstance(materials, RerankingInputs):
        made = _export_cross_encoder(files, materials, objective, standing, failure)
    else:
        made = _export(files, materials, objective, standing, failure)
    kept = f"; version {made['version']} is epoch {standing.best_epoch}, the last good one"
    files.write_result({**made, **({"error": failure + kept} if failure else {})})


def load_materials(files: JobFiles, rank: Rank) -> JobInputs:
    """What the mode of a job works with. Raises as JobInputs.load does."""
    kind = RerankingInputs if files.plan().config.mode == "CROSS_ENCODER" else JobInputs
    return kind.load(files, rank)


def run_rank(files: JobFiles, number: int) -> None:
    """Takes part in a job that another process leads."""
    means = files.plan().means
    rank = Rank(number, means.processes)
    prepare_torch(means.threads // rank.processes, means.device)
    materials = load_materials(files, rank)
    train(files, materials, materials.encoders(), materials.objective(), rank)


def train(files: JobFiles, materials: JobInputs, encoders: Encoders, objective: Objective, rank: Rank) -> TrainingState:
    """Trains with what is loaded; the weights to keep then lie in the job's directory."""
    curves = Curves(materials.plan, validated=bool(materials.validation))
    training = Training(
        materials.plan,
        encoders,
        objective,
        (lambda: _map_of(materials, encoders)) if materials.validation else None,
        files.directory,
        lambda step: _tell(files, materials, objective, curves, step),
        rank,
    )
    with together(files.directory, rank, materials.device), closing(curves):
        return training.run()


def _export(
    files: JobFiles, materials: JobInputs, objective: Objective, standing: TrainingState, failure: str
) -> dict[str, str]:
    """Writes what was trained: the `version` of the query encoder and, in a new space, the `premise_version`."""
    before = materials.evaluate(Encoders(materials.encoder()))  # as it is served: on the vectors that there are
    best = materials.encoders(files.directory)
    corpus = materials.corpus(best) if materials.validation else materials.generation.float32()
    after = materials.evaluate(best, corpus)
    meta = _meta(materials, objective, standing, failure)
    of_query = {"metrics": _metrics(materials, before, after), "trial": materials.trial(corpus)}
    if best.premise is None:
        meta["space_id"] = materials.base.meta["space_id"]
        return {"version": _write(materials, best.query, meta, **of_query).id}
    if best.second is None:  # one artifact for both: it spans the space itself
        version = _write(materials, best.query, meta, **of_query).id
        return {"version": version, "premise_version": version}
    of_premises = {**meta, "lineage": {**meta["lineage"], "encodes": "premises"}}
    premise = _write(materials, best.second, of_premises)
    meta["space_id"] = premise.meta["space_id"]
    meta["lineage"]["premise_version"] = premise.id
    return {"version": _write(materials, best.query, meta, **of_query).id, "premise_version": premise.id}


def _export_cross_encoder(
    files: JobFiles, materials: RerankingInputs, objective: Objective, standing: TrainingState, failure: str
) -> dict[str, str]:
    scorer = materials.scorer(files.directory)
    after = materials.evaluate(materials.trained(scorer))
    meta = _meta(materials, objective, standing, failure)
    metrics = _metrics(materials, materials.before, after)
    if metrics is not None:
        metrics["reranks"] = materials.base.id
    config: Any = scorer.model.config
    config_json = json.dumps(config.to_dict(), indent=1)
    written = write_cross_encoder(materials.store, scorer, materials.pair_batches, config_json, meta, metrics)
    return {"version": written.id}


def _write(materials: JobInputs, encoder: QueryEncoder, meta: dict[str, Any], **of_query: Any) -> Artifact:
    fp16 = materials.plan.means.fp16
    return write_checkpoint(
        materials.store, encoder, materials.batches, materials.base.path, meta, fp16=fp16, **of_query
    )


def _map_of(materials: JobInputs, encoders: Encoders) -> float:
    report = materials.evaluate(encoders)
    return report.strict.map if report else 0.0


def _meta(materials: JobInputs, objective: Objective, standing: TrainingState, failure: str) -> dict[str, Any]:
    plan, base = materials.plan, materials.base
    recipe = {name: value for name, value in asdict(plan.config).items() if name not in _ELSEWHERE}
    return {
        "pretrained": False,
        "pad_id": base.meta["pad_id"],
        "base_version": base.id,
        "job_id": plan.job_id,
        "validation_map": standing.best_map,
        "lineage": {
            **recipe,
            "generation": plan.generation,
            "precision": materials.precision,
            "processes": plan.means.processes,
            "best_epoch": standing.best_epoch,
            **_counts(materials, objective),
            **({"failure": failure} if failure else {}),
        },
    }


def _counts(materials: JobInputs, objective: Objective) -> dict[str, int]:
    training_set = materials.training_set
    return {
        "queries": len(training_set.examples) - objective.skipped,
        "positives": training_set.positives,
        "negatives": training_set.negatives,
        "dropped": training_set.dropped,
        "skipped": objective.skipped,
        "outside": len(training_set.outside),
    }


def _metrics(materials: JobInputs, before: Report | None, after: Report | None) -> dict[str, Any] | None:
    """Quality on the validation queries, query by query, so that two checkpoints can be compared by a paired test."""
    if before is None or after is None:
        return None
    asked = [[query.text, sorted(query.gold)] for query in materials.validation]
    return {
        "format_version": 1,
        "generation": materials.generation.id,
        "queries_sha256": hashlib.sha256(json.dumps(asked).encode()).hexdigest(),
        "base_version": materials.base.id,
        "before": {**before.to_dict(), "average_precisions": before.average_precisions.tolist()},
        "after": {**after.to_dict(), "average_precisions": after.average_precisions.tolist()},
    }


def _tell(files: JobFiles, materials: JobInputs, objective: Objective, curves: Curves, step: Step) -> None:
    standing = step.standing
    curves.add(step)
    files.write_progress(
        {
            "phase": step.phase,
            "epochs_done": standing.epochs_done,
            "steps_done": step.steps_done,
            "steps": step.steps,
            "loss": step.loss,
            "validation_map": standing.validation_map,
            "best_validation_map": standing.best_map,
            "remaining_s": step.remaining_s,
            **_counts(materials, objective),
        }
    )

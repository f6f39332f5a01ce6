"""One training job from its directory: load, train, evaluate, export. Everything it says goes into files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from aeenc.errors import FailedPrecondition
from services.kit.artifacts import Artifact, ArtifactStore
from services.kit.generation import Generation, open_generation
from services.trainer.evaluation import EvaluationQuery, Report, evaluate
from services.trainer.evaluation.protocol import merge_queries
from services.trainer.job_files import JobFiles, TrainingPlan
from services.trainer.learning.epoch_state import BEST
from services.trainer.learning.export import FOLDER, write_checkpoint
from services.trainer.learning.objective import MarginObjective, Objective, Queries, SoftmaxObjective
from services.trainer.learning.quantization import Trial
from services.trainer.learning.query_encoder import QueryEncoder, TextBatches, encode, load_encoder
from services.trainer.learning.training import Step, Training
from services.trainer.space import SpaceSpec
from services.trainer.training_set import TrainingSet, build_training_set


@dataclass(frozen=True)
class Materials:
    """What a job works with, loaded."""

    plan: TrainingPlan
    base: Artifact
    generation: Generation
    training_set: TrainingSet
    validation: list[EvaluationQuery]
    spec: SpaceSpec
    batches: TextBatches
    device: torch.device


def run_job(files: JobFiles) -> None:
    """Does a job and writes its result. Raises what makes it fail."""
    plan = files.plan()
    torch.set_num_threads(plan.threads)
    store = ArtifactStore(Path(plan.artifacts_dir))
    _say(files, "loading")
    materials = _load(plan, store, files)
    encoder = load_encoder(materials.base.path, materials.spec).to(materials.device)
    before = _evaluate(materials, encoder)
    training = Training(
        plan,
        encoder,
        _objective(materials, store),
        (lambda: _map_of(materials, encoder)) if materials.validation else None,
        files.directory,
        lambda step: _tell(files, materials.training_set, step),
    )
    standing = training.run()
    best = load_encoder(materials.base.path, materials.spec, load_file(files.directory / BEST)).to(materials.device)
    artifact = write_checkpoint(
        store,
        best,
        materials.batches,
        materials.base.path,
        _meta(materials, standing.best_epoch, standing.best_map),
        _metrics(materials, before, _evaluate(materials, best)),
        _trial(materials),
        fp16=plan.fp16,
    )
    files.write_result({"version": artifact.id})


def _load(plan: TrainingPlan, store: ArtifactStore, files: JobFiles) -> Materials:
    base = store.open(FOLDER, plan.config.base_version)
    generation = open_generation(store, plan.config.corpus, plan.generation)
    training_set = build_training_set(files.pairs(), generation.premises, plan.config.split)
    if not training_set.examples:
        raise FailedPrecondition(
            f"no positive pair of runs {', '.join(plan.config.run_ids)} may be learned from with split "
            f"{plan.config.split!r} ({training_set.dropped} were dropped); sample hypotheses of that split",
            reason="NO_POSITIVES",
        )
    spec = SpaceSpec.of_meta(base.meta)
    batches = TextBatches(base.path, spec, base.meta["pad_id"])
    device = torch.device("cuda" if plan.device != "cpu" and torch.cuda.is_available() else "cpu")
    validation = merge_queries(files.validation())
    return Materials(plan, base, generation, training_set, validation, spec, batches, device)


def _objective(materials: Materials, store: ArtifactStore) -> Objective:
    plan, training_set, spec = materials.plan, materials.training_set, materials.spec
    vectors = [materials.generation.float32()]
    pretrained = None
    if training_set.outside or plan.config.regularization:
        artifact = store.open(FOLDER, materials.generation.premise_version)
        frozen = load_encoder(artifact.path, spec).to(materials.device)
        if training_set.outside:
            vectors.append(encode(frozen, materials.batches, training_set.outside, spec.premise_prefix))
        if plan.config.regularization:
            texts = [example.query for example in training_set.examples]
            held = encode(frozen, materials.batches, texts, spec.query_prefix)
            pretrained = torch.from_numpy(held).to(materials.device)
    premises = torch.from_numpy(np.concatenate(vectors)).to(materials.device)
    queries = Queries(training_set, materials.batches, spec.query_prefix, materials.device, pretrained)
    if plan.config.loss == "FULL_CORPUS_SOFTMAX":
        return SoftmaxObjective(training_set, queries, premises, plan)
    objective = MarginObjective(training_set, queries, premises, plan)
    if not objective.size:
        raise FailedPrecondition(
            "no query has both a premise that explains it and a refused one, which the triplet loss needs; "
            "sample with collect BOTH, or use the softmax loss"
        )
    return objective


def _evaluate(materials: Materials, encoder: QueryEncoder) -> Report | None:
    if not materials.validation:
        return None
    texts = [query.text for query in materials.validation]
    vectors = encode(encoder, materials.batches, texts, materials.spec.query_prefix)
    generation = materials.generation
    return evaluate(materials.validation, vectors, generation.float32(), generation.ordinal_by_text)


def _trial(materials: Materials) -> Trial | None:
    """What an int8 model is tried on; None where none is wanted or nothing is known about its quality."""
    if not (materials.plan.int8 and materials.validation):
        return None
    ids = materials.batches.ids([query.text for query in materials.validation], materials.spec.query_prefix)
    generation = materials.generation
    return Trial(materials.validation, ids, generation.float32(), generation.ordinal_by_text)


def _map_of(materials: Materials, encoder: QueryEncoder) -> float:
    report = _evaluate(materials, encoder)
    return report.strict.map if report else 0.0


def _meta(materials: Materials, best_epoch: int, best_map: float) -> dict[str, Any]:
    plan, base = materials.plan, materials.base
    recipe = {
        name: getattr(plan.config, name)
        for name in ("loss", "epochs", "batch_size", "learning_rate", "temperature", "margin", "regularization")
    }
    return {
        "space_id": base.meta["space_id"],
        "pretrained": False,
        "pad_id": base.meta["pad_id"],
        "base_version": base.id,
        "job_id": plan.job_id,
        "validation_map": best_map,
        "lineage": {
            **recipe,
            "refused_weight": plan.config.refused_weight,
            "seed": plan.config.seed,
            "corpus": plan.config.corpus,
            "generation": plan.generation,
            "run_ids": list(plan.config.run_ids),
            "split": plan.config.split,
            "best_epoch": best_epoch,
            "queries": len(materials.training_set.examples),
            "positives": materials.training_set.positives,
            "negatives": materials.training_set.negatives,
            "dropped": materials.training_set.dropped,
            "note": plan.config.note,
        },
    }


def _metrics(materials: Materials, before: Report | None, after: Report | None) -> dict[str, Any] | None:
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


def _say(files: JobFiles, phase: str) -> None:
    files.write_progress({"phase": phase})


def _tell(files: JobFiles, training_set: TrainingSet, step: Step) -> None:
    standing = step.standing
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
            "queries": len(training_set.examples),
            "positives": training_set.positives,
            "negatives": training_set.negatives,
        }
    )

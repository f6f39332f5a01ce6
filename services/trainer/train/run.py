"""Trains with a loss of one's own from a script: on a corpus of a deployment, by the loop of jobs, to a checkpoint.

formula ──► TrainingPlan, JobFiles ──► run_job ──► checkpoint in the store ──► row in the registry: publish it
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from aeenc.errors import FailedPrecondition, InvalidArgument
from services.corpus.generation import open_generation
from services.store.artifacts import ArtifactStore
from services.store.formats import made_of
from services.store.objects import open_store
from services.store.redis import connect
from services.store.registry import Registry
from services.trainer.evaluation.protocol import EvaluationQuery, GoldStandard, merge_queries
from services.trainer.jobs.files import ComputeOptions, JobFiles, TrainingPlan
from services.trainer.jobs.job import JobConfig
from services.trainer.jobs.losses import Over, loss_of_ones_own
from services.trainer.jobs.pair_sources import DataSets
from services.trainer.jobs.training_set import JudgedPair
from services.trainer.registry.checkpoints import Checkpoints, active_generation
from services.trainer.settings import TrainerSettings
from services.trainer.train.job import run_job
from services.trainer.train.losses import Formula


def run(
    formula: Formula,
    *,
    corpus: str,
    over: Over = "pairs",
    data_sets: Mapping[str, Path] | None = None,
    pairs: Iterable[JudgedPair] = (),
    validation: Sequence[tuple[str, Sequence[str]]] = (),
    directory: Path | None = None,
    settings: TrainerSettings | None = None,
    **options: Any,
) -> str:
    """Trains a query encoder with a function of one's own, registers its checkpoint and returns the version.

    What `formula` gets depends on `over`: see `train/objectives.py`. It learns from `data_sets`, by name as in the
    trainer's settings, and `pairs`; `validation` and further `options` are those of JobConfig. `settings` (default: the
    trainer's environment) name artifacts and Redis. Called again with the same `directory`, it goes on after the last
    epoch, with the pairs and queries of the first call. Raises NotFound for an unknown corpus, InvalidArgument for an
    option that a call of StartJob is refused, too, and for a gold premise outside the corpus, FailedPrecondition for a
    training that fails, or a `directory` in which another has begun.
    """
    dotted = f"{over}:{formula.__module__}.{formula.__qualname__}"
    named = {"corpus": corpus, "custom_loss": formula.__name__, "data_sets": tuple(data_sets or ())}
    spec = loss_of_ones_own(dotted)
    config = JobConfig.of(named | options, spec)
    if config.mode != "SINGLE":
        raise InvalidArgument(f"mode is {config.mode}, whose generation only a trainer builds; give SINGLE")
    if config.run_ids:
        raise InvalidArgument(f"run_ids is {list(config.run_ids)}, which only a trainer reads; give their `pairs`")
    config.check(spec)
    own = settings or TrainerSettings()
    store = open_store(own.artifacts_dir, own.artifacts_url, own.artifacts_cache_bytes)
    active = active_generation(store, corpus)
    opened = open_generation(store, corpus, active)
    queries = [EvaluationQuery(text, tuple(gold)) for text, gold in validation]
    if queries:  # now, not after the first epoch
        GoldStandard.of(merge_queries(queries, opened.stored), opened.premises.ordinal_by_text)
    base = config.base_version or opened.premise_version
    plan = TrainingPlan(
        "",
        replace(config, base_version=base),
        active,
        str(store.root.resolve()),
        replace(made_of(ComputeOptions, vars(own)), processes=1),
        artifacts_url=store.url,
        custom_loss=dotted,
    )
    with tempfile.TemporaryDirectory() if directory is None else nullcontext(directory) as folder:
        files = JobFiles(Path(folder))
        has_begun = files.has_inputs()
        if has_begun and replace(files.plan(), means=plan.means) != plan:
            raise FailedPrecondition(
                f"in {folder} a training of another loss, other options or another generation of {corpus!r} has begun; "
                "give another directory, or delete that one"
            )
        files.write_plan(plan)
        files.forget_result()
        if not has_begun:
            read, held_out = DataSets(data_sets or {}, own.text_bytes).read(config.data_sets, config.split)
            files.write_inputs([*read, *pairs], queries, held_out)
        run_job(files)
        result = files.result() or {}
    if "error" in result:
        raise FailedPrecondition(str(result["error"]))
    asyncio.run(_register(own, store, str(result["version"])))
    return str(result["version"])


async def _register(settings: TrainerSettings, store: ArtifactStore, version: str) -> None:
    redis = connect(settings.redis_url, **settings.redis())
    try:
        await Checkpoints(store, Registry(redis, settings.namespace)).register(version)
    finally:
        await redis.aclose()

"""One job from its directory: what it writes, that it resumes to the bit, and how it fails."""

from __future__ import annotations

import re
import resource
from dataclasses import asdict, replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save

from aeenc.errors import AeencError, DataLoss, FailedPrecondition, NotFound, Unavailable
from services.corpus.generation import PremiseRecord, folder_of
from services.kit.concurrency import EXIT_DISK_FULL
from services.store.formats import NewerFormat
from services.trainer.evaluation.protocol import EvaluationQuery
from services.trainer.jobs.files import ComputeOptions, JobFiles
from services.trainer.jobs.job import JobConfig
from services.trainer.jobs.training_set import JudgedPair
from services.trainer.models.batches import Batches
from services.trainer.models.space import SpaceSpec
from services.trainer.registry.child import describe_exit
from services.trainer.train import __main__ as child
from services.trainer.train import job, losses
from services.trainer.train import loop as training
from services.trainer.train.encoder import QueryEncoder, load_encoder, prepare_torch, tensors_of
from services.trainer.train.export import checkpoint as export
from services.trainer.train.export.writer import PROBES
from services.trainer.train.inputs import JobInputs
from services.trainer.train.job import run_job, train
from services.trainer.train.loop import BEST_PREMISES, EPOCH_STATE, Diverged, best_weights
from services.trainer.train.ranks import Rank
from support.models.base_model_vectors import served
from support.models.forks import Fork
from support.worlds.trainer_world import FACTS, PAIRS, QUERIES, MakeJob, Space, killed_after, maps_of, result_of


def weights_of(space: Space, version: str) -> dict[str, np.ndarray]:
    return load_file(space.store.open("checkpoints", version).file("model.safetensors"))


def run(files: JobFiles) -> str:
    return result_of(files)["version"]


def trained(files: JobFiles) -> dict[str, np.ndarray]:
    """The weights that a job keeps, without the export."""
    prepare_torch(files.plan().means.threads)
    task = job.load_task(files, Rank())
    train(files, task, task.encoders(), task.objective(), Rank())
    return best_of(files)


def best_of(files: JobFiles) -> dict[str, np.ndarray]:
    of_premises = {f"premises/{name}": one for name, one in best_weights(files.directory, BEST_PREMISES).items()}
    return {name: one.numpy() for name, one in {**best_weights(files.directory), **of_premises}.items()}


@pytest.mark.parametrize(("size", "items", "chosen"), [(50, 0, 12), (3_942, 0, 9), (10**6, 0, 3), (10**6, 4_000, 8)])
def test_epochs_that_nobody_names_are_fewer_the_more_there_is_to_learn(size: int, items: int, chosen: int):
    assert training.usual_epochs(JobConfig("c", ("r",), items_per_epoch=items), size) == chosen


def test_a_job_says_how_many_epochs_it_chose(space: Space, make_job: MakeJob):
    files = make_job(epochs=0, validation=[])
    lineage = space.store.open("checkpoints", run(files)).meta["lineage"]
    progress = files.progress() or {}
    assert (lineage["epochs"], progress["epochs"], progress["epochs_done"]) == (12, 12, 12)


def test_a_job_learns_and_leaves_a_checkpoint_that_the_encoder_accepts(space: Space, make_job: MakeJob):
    outside = JudgedPair(QUERIES[0], "", "a fact that no generation has", "POSITIVE", "train")
    result = result_of(make_job([*PAIRS, outside], epochs=4))
    assert set(result) == {"version"}, "premises are not trained"
    version = result["version"]
    artifact = space.store.open("checkpoints", version)
    assert served(artifact).version == version
    before, after = maps_of(artifact)
    assert after > before + 0.05
    assert artifact.meta["validation_map"] == pytest.approx(after, abs=1e-6)
    assert artifact.meta["space_id"] == space.space_id
    assert artifact.meta["base_version"] == space.version
    lineage = artifact.meta["lineage"]
    assert (lineage["positives"], lineage["outside"]) == (len(QUERIES) + 1, 1)


@pytest.mark.parametrize("loss", ["FULL_CORPUS_SOFTMAX", "TRIPLET_MARGIN"])
def test_a_job_learns_from_a_generation_in_float16(space: Space, corpus: str, make_job: MakeJob, loss: str):
    premises = [PremiseRecord(f"f{n}", text, splits=("facts", "train")) for n, text in enumerate(FACTS)]
    half = space.build(corpus, premises, "float16")
    assert space.store.open(f"generations/{corpus}", half).meta["storage"] == "float16"
    before, after = maps_of(space.store.open("checkpoints", run(make_job(loss=loss))))
    assert after > before


def test_a_second_model_of_an_architecture_is_exported_as_if_it_were_the_first(
    space: Space, monkeypatch: pytest.MonkeyPatch
):
    artifact = space.store.open("checkpoints", space.version)
    spec = SpaceSpec.of_meta(artifact.meta)
    first, second = (load_encoder(artifact.path, spec).eval() for _ in range(2))
    torch.nn.init.normal_(second.transformer.embeddings.word_embeddings.weight)
    example = tensors_of(Batches.of(artifact.path, spec, 0).inputs(PROBES[: export.EXAMPLES]))

    def exported(encoder: QueryEncoder) -> bytes:
        return export.onnx_bytes(encoder, "sentence_embedding", example)

    before, after = exported(first), exported(second)
    monkeypatch.setattr(export, "_traced", {})
    assert after == exported(second)
    assert after != before
    other = load_encoder(artifact.path, replace(spec, pooling="cls"))
    assert export._architecture(other) != export._architecture(first) == export._architecture(second)


@pytest.mark.parametrize(
    ("loss", "mode"),
    [
        *((loss, "SINGLE") for loss in ("FULL_CORPUS_SOFTMAX", "GIST", "MULTIPLE_NEGATIVES_RANKING")),
        ("NLI_CLASSIFICATION", "SINGLE"),
        *(("TRIPLET_MARGIN", mode) for mode in ("SINGLE", "SIAMESE", "DUAL")),
        ("ANALOGY", "SIAMESE"),
        ("REGRESSION", "CROSS_ENCODER"),
    ],
)
def test_a_job_that_was_killed_ends_with_the_same_weights_to_the_bit(make_job: MakeJob, loss: str, mode: str):
    options = {"epochs": 3, "loss": loss, "mode": mode, "regularization": 0.1, "validation": [], "hard_negatives": 2}
    options |= {"batching": "ITEMS", "items_per_epoch": 40, "accumulation": 2, "means": ComputeOptions(threads=2)}
    whole = trained(make_job(**options))
    files = make_job(**options)
    with killed_after(2):
        trained(files)
    before, resumed = best_of(files), trained(files)
    assert all(np.array_equal(whole[name], resumed[name]) for name in whole)
    assert any(not np.array_equal(before[name], resumed[name]) for name in whole), "the last epoch, which is kept"


def test_finished_epochs_stay_told_while_a_job_is_loaded_again(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch):
    files = make_job(epochs=3)
    with killed_after(2):
        run_job(files)
    before = files.progress()
    assert before is not None
    assert before["epochs_done"] >= 1
    monkeypatch.setattr(job, "load_task", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_job(files)
    assert files.progress() == {**before, "phase": "loading"}


@pytest.mark.parametrize("killed", [False, True])
def test_a_share_of_the_first_weights_is_in_those_kept_and_not_in_those_trained_on(
    space: Space, make_job: MakeJob, killed: bool
):
    first = weights_of(space, space.version)
    alone = trained(make_job(epochs=2, validation=[]))
    files = make_job(epochs=2, validation=[], initial_share=0.25)

    if killed:
        with killed_after(1):
            trained(files)
    kept = trained(files)
    for name, weight in alone.items():
        np.testing.assert_allclose(kept[name], 0.25 * first[name] + 0.75 * weight, atol=1e-6)
    assert any(np.abs(kept[name] - weight).max() > 1e-4 for name, weight in alone.items())


def test_what_is_measured_is_what_is_kept(space: Space, make_job: MakeJob):
    moved, back = make_job(epochs=1, learning_rate=1e-2), make_job(epochs=1, learning_rate=1e-2, initial_share=1.0)
    versions = [run(files) for files in (moved, back)]
    told = [space.store.open("checkpoints", version).meta["validation_map"] for version in versions]
    measured = [maps_of(space.store.open("checkpoints", version)) for version in versions]
    assert told[1] == pytest.approx(measured[1][0])
    assert told[0] == pytest.approx(measured[0][1])
    assert told[0] != pytest.approx(told[1])


def test_a_job_whose_every_epoch_is_worse_than_its_start_keeps_the_best_of_them_and_says_worse(make_job: MakeJob):
    asked = [EvaluationQuery(query, (FACTS[n],)) for n, query in enumerate(QUERIES)]
    begun = run(make_job(epochs=8, validation=asked))
    files = make_job(epochs=2, validation=asked, learning_rate=1.0, base_version=begun)
    run(files)
    gain = (files.progress() or {})["gain"]
    assert (gain["version"], gain["outcome"]) == (begun, "WORSE")
    assert gain["candidate_map"] < gain["version_map"]


def script_maps(monkeypatch: pytest.MonkeyPatch, maps: list[float]) -> None:
    """Has epochs measure these, one after the other."""
    original, left = training.Training.__init__, iter(maps)

    def scripted(self, plan, encoder, objective, validate, *rest) -> None:
        original(self, plan, encoder, objective, lambda: (found := next(left), found), *rest)

    monkeypatch.setattr(training.Training, "__init__", scripted)


def diverge_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    calls = iter(range(1, 1000))
    formula = losses.full_corpus_softmax

    def diverging(*given):
        return formula(*given) * (float("nan") if next(calls) == step else 1.0)

    monkeypatch.setattr(losses, "full_corpus_softmax", diverging)


def test_a_loss_that_is_not_finite_ends_the_job_and_says_where(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch):
    diverge_at(monkeypatch, step=1)
    with pytest.raises(Diverged, match=r"the loss became nan at step 1 of 9; lower the learning rate \(epoch 1 of 3\)"):
        run_job(make_job())


def test_the_best_epoch_before_the_loss_went_wrong_becomes_a_checkpoint(
    space: Space, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
):
    diverge_at(monkeypatch, step=8)
    files = make_job(epochs=3)
    result = result_of(files)
    assert "step 8 of 9" in result["error"]
    artifact = space.store.open("checkpoints", result["version"])
    assert artifact.meta["lineage"]["best_epoch"] in {1, 2}
    assert "step 8" in artifact.meta["lineage"]["failure"]
    kept, best = weights_of(space, result["version"]), best_of(files)
    assert all(np.isfinite(tensor).all() for tensor in kept.values())
    assert all(np.array_equal(kept[name], best[name]) for name in kept)


OWN_TEXT = [JudgedPair(FACTS[0], "", FACTS[0], "POSITIVE")]
BOTH_WAYS = [JudgedPair("q", "", FACTS[0], sign) for sign in ("POSITIVE", "NEGATIVE")]
APART = [replace(pair, query=f"{pair.sign} {pair.query}") for pair in PAIRS]
NOWHERE = [*PAIRS, JudgedPair(QUERIES[0], "f999", "", "POSITIVE")]
POSITIVES, NEGATIVES = ([pair for pair in PAIRS if pair.sign == sign] for sign in ("POSITIVE", "NEGATIVE"))
UNCLASSED = [replace(pair, question_class="") for pair in PAIRS]


@pytest.mark.parametrize(
    ("pairs", "options", "reason", "told"),
    [
        ([], {}, "NO_POSITIVES", "(none was dropped); add judgements that accept premises"),
        (OWN_TEXT, {}, "NO_POSITIVES", "(1 was dropped: 1 of a query's own text); judge other premises"),
        (BOTH_WAYS, {}, "NO_POSITIVES", "(1 was dropped: 1 judged both ways); keep one judgement of each"),
        (
            [*OWN_TEXT, *BOTH_WAYS],
            {},
            "NO_POSITIVES",
            "(2 were dropped: 1 of a query's own text, 1 judged both ways); judge other premises, keep one judgement",
        ),
        (
            PAIRS[:1],
            {"held_out": FACTS[:1]},
            "NO_POSITIVES",
            "1 of other splits than 'train', or held out); sample other hypotheses of that split",
        ),
        (PAIRS[:1], {"split": ""}, "NO_POSITIVES", "1 of validation queries, or held out); sample other hypotheses"),
        (NEGATIVES, {}, "NO_POSITIVES", "no positive pair of run r "),
        (NOWHERE, {}, "UNKNOWN_PREMISE", "premise 'f999' of query"),
        (POSITIVES, {"loss": "TRIPLET_MARGIN"}, "NO_NEGATIVES", "collect BOTH"),
        (APART, {"loss": "TRIPLET_MARGIN"}, "NO_NEGATIVES", "no query has both"),
        (POSITIVES, {"loss": "ANALOGY"}, "NO_NEGATIVES", "no refused pair"),
        (UNCLASSED, {"loss": "ANALOGY"}, "NO_POSITIVES", "add a data set of kind analogy"),
    ],
)
def test_data_that_a_loss_cannot_use_end_the_job_by_name(
    make_job: MakeJob, pairs: list[JudgedPair], options: dict[str, Any], reason: str, told: str
):
    with pytest.raises(FailedPrecondition, match=re.escape(told)) as caught:
        run_job(make_job(pairs, **options))
    assert caught.value.reason == reason


def test_the_space_is_another_one_when_anything_that_decides_it_changes(space: Space, tmp_path):
    from safetensors.numpy import save_file

    from services.trainer.models.space import SpaceSpec, space_id_of

    artifact = space.store.open("checkpoints", space.version)
    spec = SpaceSpec.of_meta(artifact.meta)
    (tmp_path / "tokenizer.json").write_bytes(artifact.file("tokenizer.json").read_bytes())
    tensors = load_file(artifact.file("model.safetensors"))
    save_file(dict(reversed(tensors.items())), tmp_path / "model.safetensors", metadata={"written": "by another"})
    assert space_id_of(tmp_path, spec) == space.space_id
    assert space_id_of(tmp_path, replace(spec, max_tokens=32)) != space.space_id
    assert space_id_of(tmp_path, replace(spec, query_prefix="query: ")) != space.space_id
    name = next(iter(tensors))
    tensors[name] = tensors[name] + 1
    save_file(tensors, tmp_path / "model.safetensors")
    assert space_id_of(tmp_path, spec) != space.space_id


@pytest.mark.usefixtures("forks")
def test_a_full_disk_ends_the_job_without_a_visible_checkpoint(space: Space, make_job: MakeJob):
    files = make_job(epochs=1)
    before = space.store.list("checkpoints")
    child = Fork(["job", str(files.directory)])
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (40_000, 40_000))
    assert child.wait(timeout=60) == EXIT_DISK_FULL
    assert "disk is full" in describe_exit(EXIT_DISK_FULL)
    assert (files.result(), space.store.list("checkpoints")) == (None, before)


def test_a_job_that_was_killed_keeps_the_best_epoch_before_it_was(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch):
    script_maps(monkeypatch, maps := [0.9, 0.5])
    files = make_job(epochs=3, learning_rate=1e-3)
    with killed_after(1):
        trained(files)
    first = best_of(files)
    with killed_after(2):
        trained(files)
    maps.append(0.3)
    kept = trained(files)
    assert all(np.array_equal(kept[name], weights) for name, weights in first.items())


def test_a_job_whose_kept_state_is_damaged_begins_again_and_says_so(
    make_job: MakeJob, capfd: pytest.CaptureFixture[str]
):
    plain = trained(make_job(epochs=2))
    files = make_job(epochs=2)
    with killed_after(1):
        trained(files)
    damaged = bytearray((files.directory / EPOCH_STATE).read_bytes())
    damaged[-5] ^= 1
    (files.directory / EPOCH_STATE).write_bytes(damaged)
    kept = trained(files)
    assert all(np.array_equal(kept[key], weights) for key, weights in plain.items())
    said = "".join(capfd.readouterr())
    assert "a job's state is damaged; it begins again from its first epoch" in said
    assert str(files.directory / EPOCH_STATE) in said


def test_a_state_of_the_next_minor_release_is_gone_on_from(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch):
    files = make_job(epochs=2)
    with monkeypatch.context() as patch:
        patch.setattr(training, "asdict", lambda state: {**asdict(state), "watts": 300})
        with killed_after(1):
            trained(files)
    trained(files)


def test_the_loss_that_is_told_last_is_the_mean_of_all_steps_since_the_report_before(make_job: MakeJob, monkeypatch):
    losses_of: list[float] = []
    step = training.Training._step

    def noted(self, learner, units, done) -> float:
        losses_of.append(step(self, learner, units, done))
        return losses_of[-1]

    monkeypatch.setattr(training.Training, "_step", noted)
    monkeypatch.setattr(training, "TELL_S", 1e9)
    files = make_job(epochs=1)
    trained(files)
    assert (files.progress() or {})["loss"] == pytest.approx(np.mean(losses_of))


def test_a_state_of_the_next_major_release_is_never_taken_for_damaged_though_its_hash_is_made_another_way(
    make_job: MakeJob,
):
    files = make_job(epochs=2)
    newer = save({"weights/all": torch.zeros(1)}, {"format_version": "99", "sha256": "made another way"})
    (files.directory / EPOCH_STATE).write_bytes(newer)
    with pytest.raises(NewerFormat, match=r"epoch.safetensors has format_version 99.*; update this service"):
        trained(files)
    assert (files.directory / EPOCH_STATE).read_bytes() == newer


@pytest.mark.parametrize("what", ["generation", "checkpoint"])
def test_a_job_names_what_it_began_with_and_has_been_deleted_since(space: Space, make_job: MakeJob, what: str):
    files = make_job()
    plan = files.plan()
    if what == "generation":
        space.store.delete(folder_of(plan.config.corpus), plan.generation)
        gone = f"generation {plan.generation} of corpus {plan.config.corpus!r}"
    else:
        gone = "checkpoint q0123"
        files.write_plan(replace(plan, config=replace(plan.config, base_version="q0123")))
    with pytest.raises(NotFound, match=f"^{gone}, which the job began with, has been deleted; start a new job$"):
        JobInputs.load(files, Rank())


def test_a_job_that_begins_while_the_volume_is_lost_is_tried_again(space: Space, make_job: MakeJob):
    files, lost = make_job(), space.store.root.with_name("lost")
    space.store.root.rename(lost)
    try:
        with pytest.raises(Unavailable, match="mount it again"):  # not that something was deleted, which ends a job
            JobInputs.load(files, Rank())
    finally:
        lost.rename(space.store.root)


def internal(kind: str) -> dict[str, object]:
    return {"error": f"internal error ({kind}); the trainer's log has it"}


AWAY = {"error": "the bucket is away", "transient": True}
OUT_OF_MEMORY = {"error": "out of memory; lower the batch size or raise `accumulation`, then start a new job"}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        pytest.param(Unavailable("the bucket is away"), AWAY, id="away"),
        pytest.param(lambda _: torch.empty(2**50), OUT_OF_MEMORY, id="memory"),
        pytest.param(lambda _: torch.empty(2) @ torch.empty(3), internal("RuntimeError"), id="bug"),
        pytest.param(PermissionError("config.json"), internal("PermissionError"), id="a file"),
        pytest.param(DataLoss("damaged; restore it"), {"error": "damaged; restore it"}, id="damage"),
    ],
)
def test_a_job_tells_what_it_failed_of_and_is_tried_again_where_that_may_pass(
    make_job: MakeJob,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Any,
    told: dict[str, object],
):
    files = make_job()
    monkeypatch.setattr(job, "run_job", Mock(side_effect=error))
    child._job(files)
    assert files.result() == told
    assert ("Traceback" in capsys.readouterr().err) is not isinstance(error, AeencError)  # the trainer's log has it

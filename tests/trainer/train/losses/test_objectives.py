"""Every loss on a job's data: it learns, encodes a query once a batch, and takes for negatives only what it may."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aeenc.errors import FailedPrecondition
from services.corpus.generation import Generation
from services.trainer.jobs.files import JobFiles
from services.trainer.jobs.losses import LOSSES
from services.trainer.jobs.training_set import JudgedPair
from services.trainer.train import loop, losses
from services.trainer.train.encoder import QueryEncoder, precision_of, tensors_of
from services.trainer.train.inputs import EncoderTask
from services.trainer.train.job import load_task
from services.trainer.train.loop import Learner, Training
from services.trainer.train.losses import CONTRADICTION, ENTAILMENT, NEUTRAL
from services.trainer.train.objectives import classified
from services.trainer.train.ranks import Rank
from support.worlds.trainer_world import FACTS, PAIRS, QUERIES, VALIDATION, MakeJob, load, pair_of

ENCODED = [("SINGLE", "QUERIES"), ("SINGLE", "ITEMS"), ("SIAMESE", "ITEMS"), ("DUAL", "ITEMS")]  # modes and batchings


@pytest.mark.parametrize(
    ("loss", "mode", "batching"),
    [(name, *how) for name, loss in LOSSES.items() for how in ENCODED if not loss.conflict(how[0], name)],
)
def test_training_lowers_the_loss_and_ranks_what_explains_higher(
    make_job: MakeJob, loss: str, mode: str, batching: str
):
    options = {"loss": loss, "mode": mode, "batching": batching, "temperature": 0.1, "margin": 0.5, "prototypes": 2}
    files = make_job(epochs=4, learning_rate=3e-3, **options)
    task = load(files)
    encoders, objective = task.encoders(), task.objective()

    def measured() -> tuple[float, float]:
        for encoder in filter(None, {encoders.query, encoders.premise}):
            encoder.eval()
        objective.batches(np.random.default_rng(1), objective.size)
        report, _ = task.judged(encoders)
        assert report is not None
        return float(objective.loss(encoders, np.arange(objective.size)).detach()), report.strict.map

    corpus_before = task.corpus(encoders)
    assert np.abs(corpus_before - task.inputs.generation.float32()).max() < 1e-5, "training starts from the space's own"
    loss_before, map_before = measured()
    Training(task.inputs.plan, encoders, objective, None, files.directory, lambda step: None).run()
    loss_after, map_after = measured()
    assert loss_after < 0.95 * loss_before
    if loss not in {"PAIRWISE_CONTRASTIVE", "NLI_CLASSIFICATION", "ANALOGY"}:  # they classify without ranking
        assert map_after > map_before + 0.05
    assert (np.abs(task.corpus(encoders) - corpus_before).max() > 1e-2) == (mode != "SINGLE"), "the premises have moved"


@pytest.mark.parametrize(
    ("loss", "mode"),
    [
        *((name, "SINGLE") for name, loss in LOSSES.items() if loss.over != "scores"),
        *((name, mode) for name in ("TRIPLET_MARGIN", "ANALOGY") for mode in ("SIAMESE", "DUAL")),
    ],
)
def test_a_batch_encodes_each_of_its_texts_once(make_job: MakeJob, passes, loss: str, mode: str):
    task = load(make_job(loss=loss, mode=mode, batching="ITEMS"))
    premises = [] if mode == "SINGLE" else [len({pair.premise for pair in PAIRS})]
    assert passes(task) == [len(QUERIES), *premises]


def calls_of(monkeypatch: pytest.MonkeyPatch, name: str) -> list[tuple[Any, ...]]:
    """What a formula is called with from now on."""
    calls: list[tuple[Any, ...]] = []
    formula = getattr(losses, name)
    monkeypatch.setattr(losses, name, lambda *given: (calls.append(given), formula(*given))[1])
    return calls


def test_ranking_takes_no_sibling_and_nothing_undecided_for_a_negative(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
):
    pairs = [
        JudgedPair("q", "", FACTS[0], "POSITIVE"),
        JudgedPair("q", "", FACTS[1], "POSITIVE"),
        JudgedPair("q", "", FACTS[2], "SKIPPED"),
        JudgedPair("q", "", FACTS[3], "NEGATIVE"),
        JudgedPair("r", "", FACTS[2], "POSITIVE"),
    ]
    task = load(make_job(pairs, loss="MULTIPLE_NEGATIVES_RANKING", hard_negatives=2))
    calls = calls_of(monkeypatch, "multiple_negatives_ranking")
    objective = task.objective()
    objective.batches(np.random.default_rng(1), 2)
    objective.loss(task.encoders(), np.arange(objective.size))
    ((scores, own, masked, *_),) = calls
    assert scores.shape == (3, 4)  # q has two pairs, r one; facts 0 to 3 stand once each
    assert own.tolist() == [0, 1, 2]
    # q: not its other positive and not what is undecided; r: nothing but its own
    assert masked.tolist() == [[True, True, True, False], [True, True, True, False], [False, False, True, False]]


def test_in_a_folded_corpus_a_text_is_the_premise_that_stands_for_it_and_not_one_beside_it(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Generation, "is_folded", True)
    again = {text: f"{text.capitalize()}!" for text in FACTS}
    pairs = [replace(pair, premise=again[pair.premise]) for pair in PAIRS]
    validation = [replace(query, gold=tuple(map(again.__getitem__, query.gold))) for query in VALIDATION]
    plain, folded = (load(files).inputs for files in (make_job(), make_job(pairs, validation)))
    assert (folded.validation, folded.training_set.outside) == (plain.validation, [])
    for kind in ("positives", "refused"):
        found, wanted = (one.training_set.pairs(attrgetter(kind)) for one in (folded, plain))
        assert found.tolist() == wanted.tolist()


def test_refused_premises_are_drawn_anew_each_epoch_from_those_of_the_query(make_job: MakeJob):
    pairs = [*PAIRS, *(JudgedPair(QUERIES[0], "", fact, "NEGATIVE", "train") for fact in FACTS[10:40])]
    task = load(make_job(pairs, loss="MULTIPLE_NEGATIVES_RANKING", hard_negatives=3))
    objective: Any = task.objective()
    drawn = []
    for epoch in (1, 2):
        objective.batches(np.random.default_rng(epoch), 8)
        drawn.append(objective._drawn)
    for row, (number, _) in enumerate(objective._items):
        assert set(drawn[0][row]) <= set(task.inputs.training_set.examples[number].refused.tolist())
    assert drawn[0].tolist() != drawn[1].tolist()


def test_a_query_without_refused_premises_ranks_among_those_of_the_batch(make_job: MakeJob):
    pairs = [pair for pair in PAIRS if pair.sign == "POSITIVE"]
    task = load(make_job(pairs, loss="MULTIPLE_NEGATIVES_RANKING", hard_negatives=2))
    objective: Any = task.objective()
    objective.batches(np.random.default_rng(1), 8)
    assert (objective._drawn == -1).all(), "no premise"
    assert float(objective.loss(task.encoders(), np.arange(4)).detach()) > 0


@pytest.mark.parametrize(
    ("pairs", "batch_size", "words"),
    [
        ([("q", 0)], 2, "tell nothing apart; add pairs of another query, add refused pairs"),
        ([("q", 0), ("q", 1)], 2, "pairs of one query"),
        ([("q", 0), ("r", 0)], 2, "or of one premise"),
        ([("q", 0), ("r", 1)], 1, "with batch_size 1 a batch is one pair; give a larger one"),
    ],
)
def test_batches_in_which_nothing_is_to_be_ranked_lower_are_refused(
    make_job: MakeJob, pairs: list[tuple[str, int]], batch_size: int, words: str
):
    judged = [JudgedPair(query, "", FACTS[n], "POSITIVE") for query, n in pairs]
    for loss in ("MULTIPLE_NEGATIVES_RANKING", "SUPERVISED_CONTRASTIVE", "GIST"):
        with pytest.raises(FailedPrecondition, match=f"{loss} ranks .*{words}") as caught:
            load(make_job(judged, loss=loss, batch_size=batch_size)).objective()
        assert caught.value.reason == "NO_NEGATIVES"
        refused = [JudgedPair(query, "", FACTS[30], "NEGATIVE") for query, _ in pairs]
        assert load(make_job([*judged, *refused], loss=loss, batch_size=batch_size)).objective().size


def test_the_guide_of_gist_is_the_version_that_is_named(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    task = load(make_job(loss="GIST"))
    asked: list[str] = []
    by = EncoderTask._queries_by
    monkeypatch.setattr(EncoderTask, "_queries_by", lambda self, version: (asked.append(version), by(self, version))[1])
    task.objective()
    load(make_job(loss="GIST", guide_version=task.inputs.base.id)).objective()
    assert asked == ["", task.inputs.base.id]


def test_each_pair_is_classified_as_it_was_judged(make_job: MakeJob):
    pairs = [
        JudgedPair("q", "", FACTS[0], "POSITIVE"),
        JudgedPair("q", "", FACTS[1], "CONTRADICTED"),
        JudgedPair("r", "", FACTS[2], "NEGATIVE"),
        JudgedPair("r", "", FACTS[3], "NEUTRAL"),
    ]
    training_set = load(make_job(pairs)).inputs.training_set
    items, classes = classified(training_set)
    assert items.tolist() == [[0, 0], [0, 1], [1, 2]]
    assert classes.tolist() == [ENTAILMENT, CONTRADICTION, NEUTRAL]
    assert classified(training_set, neutral=True)[0].tolist() == [*items.tolist(), [1, 3]]
    for loss, size in (("PAIRWISE_CONTRASTIVE", 3), ("NLI_CLASSIFICATION", 4)):
        assert load(make_job(pairs, loss=loss, batching="ITEMS")).objective().size == size


@pytest.mark.parametrize(("loss", "skipped"), [("TRIPLET_MARGIN", 2), ("FULL_CORPUS_SOFTMAX", 1), ("GIST", 1)])
def test_queries_with_one_side_are_counted_and_skipped(make_job: MakeJob, loss: str, skipped: int):
    pairs = [
        *PAIRS,
        JudgedPair("only refused", "", FACTS[0], "NEGATIVE"),
        JudgedPair("only accepted", "", FACTS[0], "POSITIVE"),
    ]
    assert load(make_job(pairs, loss=loss)).objective().skipped == skipped


@pytest.mark.parametrize("batching", ["QUERIES", "ITEMS"])
@pytest.mark.parametrize(
    "loss", ["FULL_CORPUS_SOFTMAX", "TRIPLET_MARGIN", "PAIRWISE_CONTRASTIVE", "NLI_CLASSIFICATION", "ANALOGY"]
)
def test_parts_of_a_batch_add_up_to_its_gradient(make_job: MakeJob, loss: str, batching: str):
    # The first query has one refused premise more than others, the second two, ...
    more = [pair_of(n, 20 + shift) for n in range(6) for shift in range(n + 1)]
    weight = 0.0 if batching == "ITEMS" or loss == "ANALOGY" else 0.5
    files = make_job([*PAIRS, *more], loss=loss, batching=batching, regularization=weight, margin=1.0)
    task, plan = load(files), files.plan()
    assert plan.loss.adds_up(plan.config.mode, plan.config.batching, plan.config.regularization)
    encoders, objective = task.encoders(), task.objective()
    encoders.query.eval()  # without dropout
    with torch.no_grad():
        for parameter in encoders.query.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))  # else there is no drift to be penalised
    learner, units = Learner(encoders, objective), np.arange(objective.size)
    gradients = []
    for parts in ([units], np.array_split(units, 3), [units[:2], units[2:]]):
        learner.zero_grad()
        for part in parts:
            learner(part, None if part is units else units).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in encoders.query.parameters() if p.grad is not None]))
    scale = float(gradients[0].abs().max())
    assert scale > 1e-4
    assert all(torch.allclose(gradients[0], other, atol=1e-4 * scale) for other in gradients[1:])


def test_each_side_is_regularised_as_equation_2_says(make_job: MakeJob):
    task = load(make_job(loss="TRIPLET_MARGIN", mode="DUAL", regularization=0.5, margin=0.0))
    encoders, objective = task.encoders(), task.objective()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in [*encoders.query.parameters(), *encoders.premise.parameters()]:
            parameter.add_(0.02 * torch.randn_like(parameter))
    for encoder in (encoders.query, encoders.premise):
        encoder.eval()
    triplets = task.inputs.training_set.triplets()
    units = np.arange(objective.size)

    def moved(encoder: QueryEncoder, texts: list[str]) -> float:
        base = task._encoder().eval()
        each = [tensors_of(task.inputs.batches.inputs([text])) for text in texts]
        now, then = (np.stack([e(**one).detach().double().numpy()[0] for one in each]) for e in (encoder, base))
        return float(((now - then) ** 2).sum(axis=1).mean())

    texts = [[example.query for example in task.inputs.training_set.examples]]
    texts += [[FACTS[n] for n in np.unique(triplets[:, column])] for column in (1, 2)]
    terms = [moved(encoders.query, texts[0]), moved(encoders.premise, texts[1]), moved(encoders.premise, texts[2])]
    free = load(make_job(loss="TRIPLET_MARGIN", mode="DUAL", regularization=0.0, margin=0.0)).objective()
    difference = float((objective.loss(encoders, units) - free.loss(encoders, units)).detach())
    assert min(terms) > 1e-3
    assert difference == pytest.approx(0.5 * sum(terms), rel=1e-3)


def failing_at(monkeypatch: pytest.MonkeyPatch, calls: set[int]) -> list[int]:
    """Has these computations of a part lack memory; returns the sizes of all parts."""
    sizes: list[int] = []
    forward = Learner.forward

    def run(self: Learner, units: np.ndarray, whole: np.ndarray) -> torch.Tensor:
        sizes.append(len(units))
        if len(sizes) in calls:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return forward(self, units, whole)

    monkeypatch.setattr(Learner, "forward", run)
    return sizes


def training_of(files: JobFiles, processes: int = 1) -> tuple[Training, int]:
    """A job's training, without dropout, and the number of its units."""
    torch.manual_seed(0)
    task = load_task(files, Rank())
    encoders, objective = task.encoders(), task.objective()
    for module in encoders.query.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    objective.batches(np.random.default_rng(1), objective.size)
    rank = Rank(0, processes)
    return Training(files.plan(), encoders, objective, None, files.directory, lambda step: None, rank), objective.size


@pytest.mark.parametrize(
    "options",
    [{}, {"loss": "TRIPLET_MARGIN", "regularization": 0.5}, {"loss": "REGRESSION", "mode": "CROSS_ENCODER"}],
    ids=["corpus", "triplets", "pairs of texts"],
)
def test_a_step_over_the_devices_memory_has_the_gradient_of_the_whole_batch(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
):
    gradients = []
    files = make_job(hard_negatives=2, **options)
    monkeypatch.setattr(loop, "MAX_GRADIENT_NORM", float("inf"))
    for calls in (set(), {1, 3}):
        sizes = failing_at(monkeypatch, calls)
        training, size = training_of(files)
        training._step(training._learner, np.arange(size), 0)
        gradients.append(torch.cat([p.grad.flatten() for p in training._learner.parameters() if p.grad is not None]))
    assert sizes[0] == size
    assert sum(sizes[1:3]) == size, "two halves, the second over the memory again"
    assert (len(sizes[3:]), sum(sizes[3:])) == (4, size)
    assert torch.allclose(*gradients, atol=1e-4 * float(gradients[0].abs().max()))
    training._step(training._learner, np.arange(size), 1)
    assert len(sizes) == 11, "the next batch is in four parts from the start"


@pytest.mark.parametrize(
    ("options", "processes", "parts"),
    [
        ({"loss": "MULTIPLE_NEGATIVES_RANKING", "accumulation": 2}, 1, 2),  # of a part, a query has fewer negatives
        ({"loss": "PAIRWISE_CONTRASTIVE", "batching": "ITEMS", "regularization": 0.5}, 1, 1),
        ({}, 2, 1),
        ({}, 1, len(QUERIES)),
    ],
    ids=["negatives of the batch", "a penalty of texts in two parts", "several processes", "alone"],
)
def test_a_step_that_may_not_be_divided_fails_with_the_batch_the_memory_and_the_remedy(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], processes: int, parts: int
):
    failing_at(monkeypatch, set(range(100)))
    training, size = training_of(make_job(**options), processes)
    words = (
        rf"a batch of {size} in {parts} parts .* step 1 of .* \(CUDA out of memory.*2.00 GiB.\); start a new job with"
    )
    with pytest.raises(FailedPrecondition, match=words):
        training._step(training._learner, np.arange(size), 0)


@pytest.mark.parametrize(
    ("wanted", "device", "capabilities", "expected"),
    [
        ("auto", "cpu", {"avx512_bf16": True}, "bfloat16"),
        ("auto", "cpu", {"avx512_bf16": False, "amx_bf16": True}, "bfloat16"),
        ("auto", "cpu", {"avx512_f": True, "avx512_bf16": False}, "float32"),
        ("auto", "cuda", {"avx512_bf16": True}, "float32"),  # where no card was faster in bfloat16
        ("float32", "cpu", {"avx512_bf16": True}, "float32"),
        ("bfloat16", "cuda", {}, "bfloat16"),
    ],
)
def test_products_are_in_bfloat16_where_it_is_known_to_be_faster_or_asked_for(
    monkeypatch: pytest.MonkeyPatch, wanted: Any, device: str, capabilities: dict[str, bool], expected: str
):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    assert precision_of(wanted, torch.device(device)) == expected

"""The loss over analogies of questions and answers: its formula, its quadruples, and that it learns."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from services.trainer.jobs.job import JobConfig
from services.trainer.jobs.training_set import JudgedPair, TrainingSet
from services.trainer.train.losses import analogy
from services.trainer.train.objectives import quadruples
from support.worlds.trainer_world import CLASSES, FACTS, PAIRS, QUERIES, MakeJob, load


def in_a_loop(margin: float, quadruple: list[list[float]], holds: bool) -> float:
    """The formula of one quadruple, coordinate by coordinate."""

    def distance(first: list[float], second: list[float]) -> float:
        product = sum(x * y for x, y in zip(first, second, strict=True))
        return 1 - product / (math.sqrt(sum(x * x for x in first)) * math.sqrt(sum(y * y for y in second)))

    def shift(first: list[float], second: list[float]) -> list[float]:
        return [x - y for x, y in zip(first, second, strict=True)]

    a, b, c, d = quadruple
    total = 0.0
    for apart in (distance(shift(a, b), shift(c, d)), distance(shift(a, c), shift(b, d))):
        total += apart**2 if holds else max(margin - apart, 0.0) ** 2
    return total


@pytest.mark.parametrize("margin", [0.1, 1.0])
def test_the_loss_is_the_plain_formula(margin: float):
    drawn = torch.randn(4, 50, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    # Some pairs of shifts nearly parallel, so that the margin counts.
    drawn[3, :25] = drawn[2, :25] - (drawn[0, :25] - drawn[1, :25]) * (1 + 0.1 * drawn[3, :25])
    holds = torch.arange(50) % 2 == 0
    columns = [vectors.tolist() for vectors in drawn]
    each = [in_a_loop(margin, [vectors[n] for vectors in columns], bool(holds[n])) for n in range(50)]
    assert any(each[n] for n in range(1, 50, 2)), "the margin counts"
    single = drawn.float()
    loss = analogy((single[0], single[1]), (single[2], single[3]), holds, JobConfig("c", (), margin=margin))
    assert float(loss) == pytest.approx(sum(each) / 50, abs=1e-6)
    double = analogy((drawn[0], drawn[1]), (drawn[2], drawn[3]), holds, JobConfig("c", (), margin=margin))
    assert float(double) == pytest.approx(sum(each) / 50, abs=1e-12)


@pytest.mark.parametrize("zero", ["answers", "questions", "first", "second"])
def test_a_shift_of_length_zero_has_cosine_zero_and_gives_nobody_a_gradient(zero: str):
    drawn = torch.nn.functional.normalize(torch.randn(4, 1, 8, generator=torch.Generator().manual_seed(2)), dim=2)
    made, copied = {"answers": (3, 1), "questions": (2, 0), "first": (1, 0), "second": (3, 2)}[zero]
    drawn[made] = drawn[copied]
    vectors = drawn.clone().requires_grad_()
    options = JobConfig("c", (), margin=0.1)
    loss = analogy((vectors[0], vectors[1]), (vectors[2], vectors[3]), torch.tensor([True]), options)
    loss.backward()
    alone = drawn.clone().requires_grad_()
    a, b, c, d = alone
    one, other = (a - b, c - d) if zero in {"answers", "questions"} else (a - c, b - d)  # the shift that has a length
    expected = (1 - torch.nn.functional.cosine_similarity(one, other)).square().sum() + 1
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(vectors.grad, alone.grad)


def listed(training_set: TrainingSet, prototypes: int, seed: int) -> list[tuple[Any, ...]]:
    """Quadruples as texts."""
    items, holds = quadruples(training_set, prototypes, seed)
    texts = [*FACTS, *training_set.outside]
    asked = [example.query for example in training_set.examples]
    return [
        (asked[c], texts[d], asked[a], texts[b], bool(told)) for (c, d, a, b), told in zip(items, holds, strict=True)
    ]


def test_quadruples_are_prototypes_times_the_answers_of_other_questions_of_the_class(make_job: MakeJob):
    training_set = load(make_job()).inputs.training_set
    expected = {
        (one.query, one.premise, other.query, other.premise, one.sign == "POSITIVE")
        for one in PAIRS
        for other in PAIRS
        if other.sign == "POSITIVE" and other.query != one.query and other.question_class == one.question_class
    }
    found = listed(training_set, 1000, 0)
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_so_many_prototypes_of_each_class_are_drawn_by_the_seed(make_job: MakeJob):
    training_set = load(make_job()).inputs.training_set
    classes = {pair.query: pair.question_class for pair in PAIRS}
    drawn = [{(classes[one[2]], *one[2:4]) for one in listed(training_set, 3, seed)} for seed in (0, 0, 1)]
    assert [sum(one[0] == name for one in drawn[0]) for name in CLASSES] == [3, 3]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_question_without_a_class_takes_no_part_and_is_counted(make_job: MakeJob):
    free = [JudgedPair("unclassed", "", FACTS[5], "POSITIVE", "train")]
    alone = [JudgedPair("only one of its class", "", FACTS[6], "POSITIVE", "train", question_class="where")]
    task = load(make_job([*PAIRS, *free, *alone], loss="ANALOGY"))
    asked = {one[0] for one in listed(task.inputs.training_set, 30, 0)}
    assert asked == set(QUERIES)
    assert task.objective().skipped == 2

"""Predicted trees against gold ones: the published scorer's figures, and what each file may hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from aeenc.errors import InvalidArgument
from aeenc.evaluation import Prediction, leaf_recall, mean_scores, normalised, read_predictions, score_trees
from aeenc.evaluation.proofs import UNMATCHED, proof_steps
from aeenc.trees import Tree, read_trees, tree_from_record, write_trees
from support.real_data import ENTAILMENTBANK, need

GOLD = tree_from_record(
    {
        "id": "t1",
        "hypothesis": "leo is made of stars",
        "context": "sent1: leo is a constellation sent2: a constellation has stars sent3: a part makes up a whole",
        "proof": "sent1 & sent2 -> int1: leo has stars; int1 & sent3 -> hypothesis; ",
    }
)
RIGHT = "$proof$ = sent2 & sent1 -> int7: leo has many stars; sent3 & int7 -> hypothesis;"


def of(proof: str, *, gold: Tree = GOLD) -> Prediction:
    return Prediction(proof_steps(proof.removeprefix("$proof$ = "), gold.hypothesis))


def same_words(gold: Sequence[str], predicted: Sequence[str]) -> list[float]:
    return [float(set(one.split()) <= set(other.split())) for one, other in zip(gold, predicted, strict=True)]


def test_order_and_names_do_not_count_and_texts_are_judged_by_the_function() -> None:
    [score] = score_trees([GOLD], [of(RIGHT)], similarity=same_words)
    assert (score.leaves.f1, score.steps.f1, dict(score.aligned)) == (
        1,
        1,
        {"int7": "int1", "hypothesis": "hypothesis"},
    )
    assert score.intermediates is not None
    assert (score.intermediates.f1, score.all_correct) == (1, True)
    [score] = score_trees([GOLD], [of(RIGHT)], similarity=lambda gold, _: [0.27] * len(gold))
    assert score.intermediates is not None
    assert (score.intermediates.f1, score.steps.f1, score.all_correct) == (0, 1, False)


@pytest.mark.parametrize(
    ("proof", "leaves", "steps", "intermediates"),
    [
        ("", 0, 0, 0),
        ("nonsense -> ; sent1 sent2", 0, 0, 0),
        ("sent1 & sent2 & sent3 -> hypothesis;", 1, 0, 2 / 3),
        # int1 and hypothesis both have the leaves of gold's int1, so that both are it
        ("sent1 & sent2 -> int1: leo has stars; int1 -> hypothesis;", 0.8, 0.5, 0.5),
        ("sent1 & sent2 -> int1: leo has stars; int9 & sent9 -> hypothesis;", 2 / 3, 0.5, 0.5),
        ("sent1, sent2 -> int1: leo has stars; sent3 & int1 -> hypothesis; and so on", 1, 1, 1),
    ],
)
def test_a_malformed_proof_is_scored_as_far_as_it_goes(
    proof: str, leaves: float, steps: float, intermediates: float
) -> None:
    [score] = score_trees([GOLD], [of(proof)], similarity=same_words)
    assert score.intermediates is not None
    found = (score.leaves.f1, score.steps.f1, score.intermediates.f1)
    assert found == pytest.approx((leaves, steps, intermediates)), score


def test_a_conclusion_without_a_leaf_of_gold_is_aligned_with_none() -> None:
    [score] = score_trees([GOLD], [of("sent8 & sent9 -> hypothesis;")])
    assert (dict(score.aligned), score.leaves.f1) == ({"hypothesis": UNMATCHED}, 0)


def test_without_a_similarity_what_needs_it_is_left_out_and_one_with_too_few_scores_refused() -> None:
    scores = score_trees([GOLD, GOLD], [of(RIGHT), Prediction()])
    assert mean_scores(scores) == {
        "leaves": {"P": 0.5, "R": 0.5, "F1": 0.5, "AllCorrect": 0.5},
        "steps": {"F1": 0.5, "AllCorrect": 0.5},
    }
    assert [score.all_correct for score in scores] == [None, None]
    with pytest.raises(InvalidArgument, match="gave 1 scores for 2 pairs"):
        score_trees([GOLD], [of(RIGHT)], similarity=lambda *_: [1.0])


def test_a_tree_with_a_context_of_its_own_is_compared_by_text(tmp_path: Path) -> None:
    other = {
        "id": "another",
        "hypothesis": GOLD.hypothesis,
        "context": "sent1: a part makes up a whole sent2: The constellation has stars sent3: leo is a constellation",
        "proof": "sent2 & sent3 -> int1: leo has stars; int1 & sent1 -> hypothesis; ",
    }
    write_trees(tmp_path / "built.jsonl", [tree_from_record(other)])  # as `aeenc export trees` does
    predicted = read_predictions(tmp_path / "built.jsonl", [GOLD])
    [exact] = score_trees([GOLD], predicted)
    [normal] = score_trees([GOLD], predicted, by_normalised_text=True)
    assert (exact.leaves.f1, exact.steps.f1) == pytest.approx((2 / 3, 0.5))
    assert (normal.leaves.f1, normal.steps.f1) == (1, 1)


@pytest.mark.parametrize(
    "content",
    [
        RIGHT,
        json.dumps({"id": "t1", "proof": RIGHT.removeprefix("$proof$ = ")}),
        json.dumps({"id": "t1", "prediction": f"{RIGHT} ; $hypothesis$ = x"}),
        json.dumps({"id": "t1", "proof": "sent1 -> hypothesis", "hypothesis": "another"})
        + "\n\n"
        + json.dumps({"id": "t1", "proof": RIGHT, "hypothesis": GOLD.hypothesis}),
    ],
)
def test_predictions_are_read_from_lines_of_proofs_or_of_json(tmp_path: Path, content: str) -> None:
    (tmp_path / "predicted").write_text(content + "\n")
    [score] = score_trees([GOLD], read_predictions(tmp_path / "predicted", [GOLD]))
    assert (score.leaves.f1, score.steps.f1) == (1, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"{RIGHT}\n{RIGHT}\n", "2 lines for 1 gold trees"),
        ("", "0 lines for 1 gold trees"),
        ('{"id": "t1"}\n', ":1: `proof` (or `prediction`) must be a string"),
        ('{"proof": ""}\n', ":1: the line must be a JSON object with a string `id`"),
        ('{"id": "t1", "proof": "", "context": "sent"}\n', ":1: the context must read"),
        ('{"id": "t1", "proof": ""}\n{"id": "t1", "proof": ""}\n', ":2: the tree 't1' was predicted before"),
        ('{"id": "t2", "proof": ""}\n', "has no proof of any gold tree"),
    ],
)
def test_a_file_that_cannot_be_read_names_its_place(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "predicted").write_text(content)
    with pytest.raises(InvalidArgument) as raised:
        read_predictions(tmp_path / "predicted", [GOLD])
    assert message in raised.value.message


def test_leaves_are_found_by_their_words_and_by_their_exact_text() -> None:
    lists = [["Leo is a constellation.", "constellation has stars"]]
    found, exact = leaf_recall([GOLD], lists), leaf_recall([GOLD], lists, str)
    assert (found.recall, found.all_correct, exact.recall) == (pytest.approx(2 / 3), 0, 0)
    assert leaf_recall([GOLD], [[*lists[0], "a part makes up a whole"]]).all_correct == 1
    assert normalised("The sun rising; setting / a Day") == normalised("sun rising / setting; day")


@pytest.mark.reference
@pytest.mark.parametrize("task", ["task_1", "task_2"])
@pytest.mark.parametrize("model", ["T5-11B", "T5-large"])
def test_each_published_prediction_gets_the_published_scorers_figures(task: str, model: str) -> None:
    folder = need(ENTAILMENTBANK / "predictions")
    gold = read_trees(ENTAILMENTBANK / "dataset" / task / "dev.jsonl")
    scores = score_trees(gold, read_predictions(folder / f"{task}-{model}.dev.tsv", gold))
    published = json.loads((folder / "scores.dev.json").read_text())[f"{task} {model}"]
    assert len(scores) == len(published) == 187
    for score, expected in zip(scores, published, strict=True):
        found = score.to_dict()
        assert (score.id, dict(score.aligned)) == (expected["id"], expected["aligned"])
        for part in ("leaves", "steps"):
            named = {{"acc": "AllCorrect"}.get(name, name): value for name, value in expected[part].items()}
            assert found[part] == pytest.approx(named, abs=1e-6), score.id

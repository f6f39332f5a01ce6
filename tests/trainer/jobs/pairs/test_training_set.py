"""What may be learned from: signs, splits, a premise's own text, premises that the generation does not have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aeenc.errors import FailedPrecondition
from services.corpus.generation import PremiseRecord
from services.trainer.jobs.files import JobFiles
from services.trainer.jobs.training_set import JudgedPair, build_training_set

PREMISES = [
    PremiseRecord("a", "text a", ("alias-a",), ("facts", "train")),
    PremiseRecord("b", "text b", (), ("train", "dev")),
    PremiseRecord("c", "text c", (), ("dev",)),
    PremiseRecord("d", "text d", (), ()),
    PremiseRecord("q", "a query that is a fact", (), ("facts",)),
]


def pair(query: str, text: str, sign: str = "POSITIVE") -> JudgedPair:
    return JudgedPair(query, "", text, sign)  # type: ignore[arg-type]


def test_positives_refused_and_skipped_are_kept_apart():
    pairs = [pair("q", "text a"), pair("q", "text b", "NEGATIVE"), pair("q", "text d", "SKIPPED")]
    training_set = build_training_set(pairs, PREMISES, "train")
    (example,) = training_set.examples
    assert (example.positives.tolist(), example.refused.tolist(), example.excluded.tolist()) == ([0], [1], [3])
    assert (training_set.positives, training_set.negatives, training_set.dropped) == (1, 1, 0)


def test_a_positive_pair_keeps_its_highest_grade_and_has_1_without_any(tmp_path: Path):
    graded = [JudgedPair("q", "", "text a", "POSITIVE", grade=grade) for grade in (2.0, 6.0, 0.0)]
    files = JobFiles(tmp_path)
    files.write_inputs([*graded, pair("q", "text d"), pair("q", "text b", "NEGATIVE")], [])
    (example,) = build_training_set(files.pairs(), PREMISES, "train").examples
    assert dict(zip(example.positives.tolist(), example.grades.tolist(), strict=True)) == {0: 6.0, 3: 1.0}


def test_a_text_that_stands_only_in_other_splits_is_never_learned_from():
    pairs = [pair("q", "text a"), pair("q", "text c"), pair("q", "text c", "NEGATIVE"), pair("text c", "text a")]
    training_set = build_training_set(pairs, PREMISES, "train")
    assert [(e.query, e.positives.tolist(), e.refused.tolist()) for e in training_set.examples] == [("q", [0], [])]
    assert training_set.excluded.tolist() == [False, False, True, False, False]
    assert training_set.dropped == 3


def test_without_a_split_everything_may_be_learned_from():
    training_set = build_training_set([pair("q", "text c")], PREMISES, "")
    assert training_set.examples[0].positives.tolist() == [2]
    assert not training_set.excluded.any()


def test_a_premise_that_is_accepted_and_refused_is_neither():
    pairs = [pair("q", "text a"), pair("q", "text b"), pair("q", "text b", "NEGATIVE")]
    training_set = build_training_set(pairs, PREMISES, "train")
    (example,) = training_set.examples
    assert (example.positives.tolist(), example.refused.tolist(), example.excluded.tolist()) == ([0], [], [1])
    assert training_set.dropped == 1


def test_a_text_neither_explains_itself_nor_is_its_own_negative():
    own = "a query that is a fact"
    training_set = build_training_set([pair(own, own), pair(own, "text a")], PREMISES, "train")
    (example,) = training_set.examples
    assert (example.positives.tolist(), example.excluded.tolist()) == ([0], [4])
    stranger = [pair("q", "an inner node"), pair("an inner node", "text a")]  # a premise outside the generation
    first, second = build_training_set(stranger, PREMISES, "train").examples
    assert (first.positives.tolist(), second.excluded.tolist()) == ([5], [5])


def test_its_own_text_is_refused_where_the_job_takes_it_as_a_negative_whatever_was_judged():
    own = "a query that is a fact"
    pairs = [pair(own, own), pair(own, "text a"), pair(own, "text d", "NEGATIVE"), pair("q", "text a")]
    first, second = build_training_set(pairs, PREMISES, "train", own_text="NEGATIVE").examples
    assert (first.positives.tolist(), first.refused.tolist(), first.excluded.tolist()) == ([0], [3, 4], [])
    assert (second.positives.tolist(), second.refused.tolist()) == ([0], []), "its own text is no premise"


def test_own_text_of_another_split_is_no_negative():
    training_set = build_training_set([pair("text c", "text a")], PREMISES, "train", own_text="NEGATIVE")
    assert (training_set.examples, training_set.dropped) == ([], 1)


def test_a_query_without_positives_stays_for_losses_over_single_pairs():
    (example,) = build_training_set([pair("q", "text a", "NEGATIVE")], PREMISES, "train").examples
    assert (example.positives.tolist(), example.refused.tolist()) == ([], [0])
    assert build_training_set([pair("q", "text a", "SKIPPED")], PREMISES, "train").examples == []


def test_what_contradicts_is_refused_and_remembered_as_such():
    pairs = [pair("q", "text a"), pair("q", "text b", "CONTRADICTED"), pair("q", "text d", "NEGATIVE")]
    (example,) = build_training_set(pairs, PREMISES, "train").examples
    assert (example.refused.tolist(), example.contradicted.tolist()) == ([1, 3], [1])
    pairs += [pair("q", "text b", "NEGATIVE")]
    (example,) = build_training_set(pairs, PREMISES, "train").examples
    assert (example.refused.tolist(), example.contradicted.tolist()) == ([1, 3], [])


def test_held_out_texts_are_learned_from_only_where_trees_of_the_split_have_them():
    held_out = {"a dev hypothesis", "text d"}
    stranger = [pair("a dev hypothesis", "text a"), pair("q", "text d"), pair("q", "text b")]
    training_set = build_training_set(stranger, PREMISES, "train", held_out)
    assert [(e.query, e.positives.tolist()) for e in training_set.examples] == [("q", [1])]
    assert training_set.dropped == 2
    of_train = [JudgedPair("a dev hypothesis", "", "text a", "POSITIVE", "train")]
    assert build_training_set(of_train, PREMISES, "train", held_out).dropped == 0
    of_dev = [JudgedPair("a dev hypothesis", "", "text a", "POSITIVE", "dev")]
    assert build_training_set(of_dev, PREMISES, "train", held_out).dropped == 1
    assert build_training_set(stranger, PREMISES, "", held_out).dropped == 0


def test_validation_queries_are_not_learned_from_without_a_split():
    pairs = [pair("q", "text a"), pair("r", "text a"), pair("r", "text b", "NEGATIVE"), pair("q", "r")]
    training_set = build_training_set(pairs, PREMISES, "", validation={"r"})
    assert ([one.query for one in training_set.examples], training_set.dropped) == (["q"], 2)
    of_train = [JudgedPair("r", "", "text a", "POSITIVE", "train")]
    assert build_training_set(of_train, PREMISES, "train", validation={"r"}).dropped == 0, "as the split says"


def test_an_id_that_the_generation_does_not_know_is_named():
    with pytest.raises(FailedPrecondition, match="premise 'zz' of query 'q'"):
        build_training_set([JudgedPair("q", "zz", "", "POSITIVE")], PREMISES, "train")


def test_premises_outside_the_generation_follow_its_ordinals():
    training_set = build_training_set([pair("q", "text a"), pair("q", "elsewhere", "NEGATIVE")], PREMISES, "train")
    assert training_set.outside == ["elsewhere"]
    assert training_set.examples[0].refused.tolist() == [len(PREMISES)]


def test_a_pair_without_a_text_is_found_by_id_or_alias():
    pairs = [JudgedPair("q", "alias-a", "", "POSITIVE")]
    assert build_training_set(pairs, PREMISES, "train").examples[0].positives.tolist() == [0]


def test_triplets_are_every_positive_with_every_refused_premise_of_its_query():
    pairs = [pair("q", "text a"), pair("q", "text b"), pair("q", "text d", "NEGATIVE"), pair("r", "text a")]
    triplets = build_training_set(pairs, PREMISES, "train").triplets()
    assert np.array_equal(triplets, [[0, 0, 3], [0, 1, 3]])


def test_a_premise_of_other_splits_is_not_learned_from_in_a_run_over_a_corpus_without_splits():
    premises = [PremiseRecord("a", "text a"), PremiseRecord("x", "a dev leaf")]
    run = [JudgedPair("q", "a", "text a", "POSITIVE", "train"), JudgedPair("q", "x", "a dev leaf", "POSITIVE", "train")]
    training_set = build_training_set(run, premises, "train", {"a dev leaf"})
    assert [example.positives.tolist() for example in training_set.examples] == [[0]]
    assert training_set.dropped == 1
    assert training_set.excluded.tolist() == [False, True], "nor is it a negative"
    deeper = [JudgedPair("a dev leaf", "a", "text a", "POSITIVE", "train")]  # the run has asked what explains it
    assert build_training_set(deeper, premises, "train", {"a dev leaf"}).dropped == 1
    of_train = [PremiseRecord("a", "text a"), PremiseRecord("x", "a dev leaf", (), ("train", "dev"))]
    both = build_training_set(deeper, of_train, "train", {"a dev leaf"})
    assert (both.dropped, both.excluded.any()) == (0, False), "trees of the split have it"
    of_its_tree = [JudgedPair("q", "", "a dev leaf", "POSITIVE", "train", "train")]
    assert build_training_set(of_its_tree, premises, "train", {"a dev leaf"}).dropped == 0

"""Folds of a split: what stays together, what is held back, and that nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aeenc.errors import InvalidArgument
from aeenc.trees import HELD_OUT, Dataset, Tree, folds_of, tree_from_record, unseen_folds, write_folds
from support.small_trees import of_one_step

RECORDS = [
    of_one_step("a", "ice melts", "ice is a solid", "heat melts solids"),
    of_one_step("b", "snow melts", "snow is a solid", "heat melts solids"),  # shares a fact with a
    of_one_step("a", "ice melts", "ice is cold", "warmth ends cold"),  # a's hypothesis again
    of_one_step("c", "rivers rise", "ice melts", "melted ice flows"),  # a's hypothesis is its premise
    of_one_step("d", "birds fly", "birds have wings", "wings lift"),
    of_one_step("e", "fish swim", "fish have fins", "fins push"),
]


def _trees() -> list[Tree]:
    return [tree_from_record(record) for record in RECORDS]


def _directory(path: Path) -> Dataset:
    for task in ("task_1", "task_2"):
        folder = path / "dataset" / task
        folder.mkdir(parents=True)
        (folder / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
        (folder / "dev.jsonl").write_text(json.dumps(of_one_step("f", "salt dissolves", "salt is a solid")) + "\n")
    return Dataset.load(path)


def test_trees_that_share_a_query_are_in_one_fold_and_those_that_share_a_fact_need_not_be() -> None:
    folds = folds_of(_trees(), 4)
    assert sorted(at for fold in folds for at in fold) == list(range(len(RECORDS)))
    (with_ice,) = [fold for fold in folds if 0 in fold]
    assert with_ice == [0, 2, 3]
    assert folds_of(_trees(), 2, seed=3) == folds_of(_trees(), 2, seed=3)


@pytest.mark.parametrize("number", [1, 5])
def test_a_number_of_folds_that_cannot_be_made_is_refused_with_the_groups_there_are(number: int) -> None:
    with pytest.raises(InvalidArgument, match=f"between 2 and 4.*got {number}"):
        folds_of(_trees(), number)


def test_a_text_with_line_ends_of_unicode_alone_stays_one_line_of_its_fold(tmp_path: Path) -> None:
    data = _directory(tmp_path / "data")
    odd = of_one_step("odd", "ice\u2028melts", "ice is\u0085a solid", "heat\u2029melts")
    for task in ("task_1", "task_2"):
        with (data.directory / "dataset" / task / "train.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(odd, ensure_ascii=False) + "\n")
    data = Dataset.load(data.directory)
    (tmp_path / "folds").mkdir()
    for path in write_folds(data, tmp_path / "folds", number=2):
        fold = Dataset.load(path)
        written = [*fold.trees("train"), *fold.trees(HELD_OUT)]
        assert sorted(map(repr, written)) == sorted(map(repr, data.trees("train")))


def test_each_tree_is_held_out_once_and_never_trained_on_beside_it(tmp_path: Path) -> None:
    data = _directory(tmp_path / "data")
    (tmp_path / "folds").mkdir()
    held_out = []
    for path in write_folds(data, tmp_path / "folds", number=2):
        fold = Dataset.load(path)
        queries = {split: {query.text for query in fold.queries(split)} for split in fold.splits}
        assert not queries["train"] & queries[HELD_OUT]
        assert fold.trees("dev") == data.trees("dev")
        assert {one.text for one in fold.candidates()} == {one.text for one in data.candidates()}
        task_2 = (path / "dataset" / "task_2" / f"{HELD_OUT}.jsonl").read_text()
        assert task_2 == (path / "dataset" / "task_1" / f"{HELD_OUT}.jsonl").read_text()
        held_out += [tree.record["context"] for tree in fold.trees(HELD_OUT)]
        trained = [tree.record["context"] for tree in fold.trees("train")]
        assert len(trained) + len(fold.trees(HELD_OUT)) == len(RECORDS)
    assert sorted(held_out) == sorted(record["context"] for record in RECORDS)


@pytest.mark.parametrize("split", ["dev", HELD_OUT])
def test_a_fold_is_not_folded_again_which_would_lose_what_it_holds_back(split: str, tmp_path: Path) -> None:
    (tmp_path / "folds").mkdir()
    [fold, _] = write_folds(_directory(tmp_path / "data"), tmp_path / "folds", number=2)
    with pytest.raises(InvalidArgument, match=f"has a split '{HELD_OUT}' already"):
        write_folds(Dataset.load(fold), tmp_path, split=split, number=2)


@pytest.mark.parametrize("seed", range(5))
def test_unseen_folds_hold_back_leaves_that_no_other_tree_has(seed: int, tmp_path: Path) -> None:
    trees = _trees()
    leaves = [{tree.texts[label] for label in tree.leaves} for tree in trees]
    for fold in unseen_folds(trees, 2, seed):
        rest = set[str]().union(*(leaves[at] for at in range(len(trees)) if at not in fold))
        assert 0 < len(fold) <= 3
        assert all(leaves[at] - rest for at in fold if at not in (0, 2, 3))
        assert {0, 2, 3} & set(fold) in (set(), {0, 2, 3}), "trees that share a query stay together"
    (tmp_path / "out").mkdir()
    [first, _] = write_folds(_directory(tmp_path / "data"), tmp_path / "out", number=2, seed=seed, unseen=True)
    data = Dataset.load(first)
    seen = {premise for query in data.queries("train") for premise in query.gold}
    assert any(premise not in seen for query in data.queries(HELD_OUT) for premise in query.gold)


def test_unseen_folds_that_leave_no_room_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="only in 0 of 6 trees"):
        unseen_folds(_trees(), 7)
    with pytest.raises(InvalidArgument, match="2 or more"):
        unseen_folds(_trees(), 1)

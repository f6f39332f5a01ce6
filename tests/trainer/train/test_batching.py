"""Which items a step takes."""

from __future__ import annotations

import numpy as np
import pytest

from services.trainer.jobs.losses import Batching
from services.trainer.train.data import Units

OWNERS = np.array([0, 0, 2, 3, 3, 3], dtype=np.int64)  # query 1 has no item
LENGTHS = np.array([9, 1, 2, 5], dtype=np.int64)


@pytest.mark.parametrize(
    ("batching", "count", "units", "items"),
    [("QUERIES", 3, [2, 0], [3, 4, 5, 0, 1]), ("QUERIES", 3, [1], [2]), ("ITEMS", 6, [4, 0], [4, 0])],
)
def test_a_unit_is_a_query_with_all_its_items_or_as_in_the_paper_an_item(
    batching: Batching, count: int, units: list[int], items: list[int]
):
    found = Units(OWNERS, LENGTHS, batching)
    assert (len(found), found.items(np.array(units)).tolist()) == (count, items)


def test_an_epoch_takes_every_unit_once_and_each_epoch_in_another_order():
    units = Units(np.arange(100), np.full(100, 3), "QUERIES")
    epochs = [units.batches(np.random.default_rng(seed), 8, 0) for seed in (1, 2)]
    for batches in epochs:
        assert sorted(np.concatenate(batches)) == list(range(100))
        assert max(map(len, batches)) == 8
    assert np.concatenate(epochs[0]).tolist() != np.concatenate(epochs[1]).tolist()


def test_a_part_of_the_units_is_another_part_each_epoch():
    units = Units(np.arange(100), np.full(100, 3), "QUERIES")
    parts = [set(np.concatenate(units.batches(np.random.default_rng(seed), 8, 20)).tolist()) for seed in (1, 2)]
    assert [len(part) for part in parts] == [20, 20]
    assert parts[0] != parts[1]


def test_batches_hold_texts_of_like_length():
    lengths = np.random.default_rng(5).integers(3, 60, 400)
    batches = Units(np.arange(400), lengths, "QUERIES").batches(np.random.default_rng(1), 10, 0)
    padded = sum(lengths[batch].max() * len(batch) for batch in batches)
    assert padded < 1.2 * lengths.sum()  # in random batches it is about 1.8

"""The gold triplets of EntailmentBank: their number."""

from __future__ import annotations

import pytest

from aeenc.trees import Dataset
from services.corpus.generation import PremiseRecord
from services.trainer.jobs.pair_sources import DataSets
from services.trainer.jobs.training_set import build_training_set
from support.real_data import ENTAILMENTBANK, need


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return Dataset.load(need(ENTAILMENTBANK))


@pytest.fixture(scope="module")
def premises(dataset: Dataset) -> list[PremiseRecord]:
    return [PremiseRecord(c.id, c.text, c.aliases, c.splits) for c in dataset.candidates()]


def test_train_has_166486_gold_triplets_of_which_28384_have_a_distractor_outside_the_corpus(
    dataset: Dataset, premises: list[PremiseRecord]
):
    texts = {premise.text for premise in premises}
    triplets = list(dataset.distractor_triplets("train"))
    assert len(triplets) == 166_486
    assert sum(distractor not in texts for _, _, distractor in triplets) == 28_384


def test_merged_by_query_each_pair_counts_once(premises: list[PremiseRecord]):
    pairs, held_out = DataSets({"gold": ENTAILMENTBANK}, 16_384).read(["gold"], "train")
    training_set = build_training_set(pairs, premises, "train", held_out)
    assert training_set.positives == 8_347
    assert len(training_set.examples) == 3_942
    assert len(training_set.outside) == 820
    by_hand = sum(len(e.positives) * len(e.refused) for e in training_set.examples)
    assert len(training_set.triplets()) == by_hand > 160_000

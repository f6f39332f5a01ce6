"""The gold triplets of EntailmentBank: their number, and that nothing of dev is among them."""

from __future__ import annotations

import pytest

from aeenc.trees import Dataset
from services.corpus.generation import PremiseRecord
from services.trainer.jobs.pair_sources import DataSets
from services.trainer.jobs.training_set import TrainingSet, build_training_set
from support.real_data import ENTAILMENTBANK, need


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return Dataset.load(need(ENTAILMENTBANK))


@pytest.fixture(scope="module")
def premises(dataset: Dataset) -> list[PremiseRecord]:
    return [PremiseRecord(c.id, c.text, c.aliases, c.splits) for c in dataset.candidates()]


@pytest.fixture(scope="module")
def training_set(dataset: Dataset, premises: list[PremiseRecord]) -> TrainingSet:
    sets = DataSets({"gold": ENTAILMENTBANK}, 16_384)
    pairs, held_out = sets.read(["gold"], "train")
    return build_training_set(pairs, premises, "train", held_out)


def test_train_has_166486_gold_triplets_of_which_28384_have_a_distractor_outside_the_corpus(
    dataset: Dataset, premises: list[PremiseRecord]
):
    texts = {premise.text for premise in premises}
    triplets = list(dataset.distractor_triplets("train"))
    assert len(triplets) == 166_486
    assert sum(distractor not in texts for _, _, distractor in triplets) == 28_384


def test_merged_by_query_each_pair_counts_once(training_set: TrainingSet):
    assert training_set.positives == 8_347
    assert len(training_set.examples) == 3_942
    assert len(training_set.outside) == 820
    by_hand = sum(len(e.positives) * len(e.refused) for e in training_set.examples)
    assert len(training_set.triplets()) == by_hand > 160_000


def test_no_text_that_stands_in_dev_trees_alone_is_learned_from(
    dataset: Dataset, premises: list[PremiseRecord], training_set: TrainingSet
):
    dev = {text for tree in dataset.trees("dev") for text in tree.texts.values()}
    own = {text for tree in dataset.trees("train") for text in tree.texts.values()} | set(dataset.facts.values())
    numbers = {n for e in training_set.examples for n in (*e.positives.tolist(), *e.refused.tolist())}
    used = {premises[n].text for n in numbers if n < len(premises)} | {e.query for e in training_set.examples}
    assert not used & (dev - own)
    assert all(training_set.excluded[n] for n, premise in enumerate(premises) if premise.text in dev - own)

"""`make bench NAME=targets`: whole trees and facts alone, out of fold and by the weights that the page publishes."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from aeenc.evaluation import gold_of, strict_gold
from aeenc.trees import HELD_OUT, Dataset
from benchmarks.harness import rows
from benchmarks.tables.quality import ORDERED, VECTORS
from benchmarks.trainer import targets
from benchmarks.trainer.targets import FACTS_ALONE, WHOLE_TREES, explain_by_facts, of_facts, of_hypotheses
from services.index.ranking.fusion import Prior
from services.tuning.out_of_fold import HeldOut

FACT_TEXTS = [f"fact {n}" for n in range(30)]


def _tree(n: int) -> str:
    """A tree of two steps over two facts and a text that is none."""
    record = {
        "id": f"tree-{n}",
        "hypothesis": f"top {n}",
        "context": f"sent1: fact {2 * n} sent2: fact {2 * n + 1} sent3: assumption {n}",
        "proof": "sent1 & sent3 -> int1: node; int1 & sent2 -> hypothesis; ".replace("node", f"node {n}"),
    }
    return json.dumps(record)


@pytest.fixture
def folds(tmp_path: Path) -> list[Dataset]:
    """Two folds of the same six trees: each holds three back and has the others in train."""
    found = []
    for n, held in enumerate((range(3), range(3, 6))):
        root = tmp_path / f"fold-{n}"
        (root / "dataset" / "task_1").mkdir(parents=True)
        (root / "supporting_data").mkdir()
        facts = json.dumps({f"f{n}": text for n, text in enumerate(FACT_TEXTS)})
        (root / "supporting_data" / "worldtree_corpus_sentences_extended.json").write_text(facts)
        for split, trees in ((HELD_OUT, held), ("train", [n for n in range(6) if n not in held])):
            (root / "dataset" / "task_1" / f"{split}.jsonl").write_text("".join(f"{_tree(n)}\n" for n in trees))
        found.append(Dataset.load(root))
    return found


def _held(fold: Dataset, texts: list[str]) -> HeldOut:
    """The held-out queries of a fold with vectors that are their own premises' mean."""
    asked = list(strict_gold(gold_of(fold, HELD_OUT)))
    gold = [[texts.index(one) for one in premises] for _, premises in asked]
    vectors = np.stack([np.eye(len(texts), dtype=np.float32)[own].mean(axis=0) for own in gold])
    return HeldOut([text for text, _ in asked], gold, vectors, Prior.over([], {}))


def test_a_target_changes_what_is_gold_and_what_is_asked(folds: list[Dataset]) -> None:
    texts = [one.text for one in folds[0].candidates()]
    ordinal = {text: n for n, text in enumerate(texts)}
    held = _held(folds[0], texts)
    whole = of_hypotheses(folds[0], held, ordinal)
    assert list(whole.texts) == ["top 0", "top 1", "top 2"]
    assert [texts[n] for n in sorted(whole.gold[1])] == [
        one for one in texts if one in {"fact 2", "fact 3", "assumption 1"}
    ]
    np.testing.assert_array_equal(whole.vectors, held.vectors[[held.texts.index(text) for text in whole.texts]])
    alone = of_facts(folds[0], held, ordinal)
    at = alone.texts.index("node 1")
    assert [texts[n] for n in alone.gold[at]] == ["fact 2"]
    assert [texts[n] for n in alone.unjudged[at]] == ["assumption 1"]
    assert alone.prior is not held.prior


def test_both_targets_are_measured_out_of_fold_beside_single_steps(
    folds: list[Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [one.text for one in folds[0].candidates()]
    monkeypatch.setattr(targets, "premises_of", lambda _: (texts, np.eye(len(texts), dtype=np.float32)))
    monkeypatch.setattr(targets, "held_out_queries", lambda *_: [_held(fold, texts) for fold in folds])
    directories = {f"fold-{n}": fold.directory for n, fold in enumerate(folds)}
    running: Any = SimpleNamespace(directories=directories, version_without=lambda name: name)
    told = Mock()
    targets.train(told, running)
    found = {call.args[0]: (call.args[1], call.args[-1]) for call in told.at_least.call_args_list}
    assert found["whole trees: AllCorrect@25 of train, out of fold"] == (1.0, 0.0), "a step finds no leaf below a node"
    assert found["facts alone: MAP of train, out of fold"] == (1.0, 1.0), "each finds its own premises first"
    chances = [call.args[1] for call in told.at_most.call_args_list]
    assert chances == [pytest.approx(2 / 2**6, abs=0.01)] * 2 + [1.0], "six trees, each a group of its own"


def test_a_prior_of_facts_knows_no_conclusion_and_no_query_without_a_fact(folds: list[Dataset]) -> None:
    dataset, client = folds[1], Mock()
    explain_by_facts(client, "corpus", dataset)
    ids = {one.text: one.id for one in dataset.candidates()}
    told = [(f"{name} {n}", [ids[f"fact {2 * n + at}"]]) for n in range(3) for name, at in (("node", 0), ("top", 1))]
    [call] = client.index.put_explanations.call_args_list
    assert (call.args[0], sorted(call.args[1]), call.kwargs) == ("corpus", sorted(told), {"replace": True})


def test_the_weights_of_the_page_are_those_that_are_measured() -> None:
    page = (rows.ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    shown = [ast.literal_eval(found) for found in re.findall(r'{\s*"first"[^}]*}', page)]
    measured = [one.fusion.features for one in (ORDERED, VECTORS, WHOLE_TREES, FACTS_ALONE) if one.fusion]
    assert [one for one in measured if one not in shown] == []

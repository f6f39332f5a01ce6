"""Control items from gold trees: what they hold is known, and a sampler reads them."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aeenc.cli.main import app
from aeenc.errors import InvalidArgument, NotFound
from aeenc.files.whole import write_json_lines
from aeenc.oracles.controls import ControlItem, control_items
from aeenc.trees import Dataset, tree_from_record
from services.sampler.people.controls import read_controls
from support.small_trees import of_one_step, record

SAMPLE = Path(__file__).parents[2] / "data" / "sample"


def words(*texts: str) -> set[str]:
    return {word for text in texts for word in re.findall("[a-z]{4,}", text.lower())}


def test_what_explains_is_gold_and_what_does_not_shares_no_word_with_any_tree_of_the_query():
    dataset = Dataset.load(SAMPLE)
    gold = {query.text: set(query.gold) for query in dataset.queries("train")}
    items = control_items(dataset, "train", count=30, candidates=6)
    assert len(items) == len({item.query for item in items}) == 30
    others = [control_items(dataset, "train", count=30, candidates=6, seed=seed) for seed in (1, 1, 2)]
    assert others[0] == others[1] != others[2]
    for item in items:
        assert set(item.explains) == gold[item.query]
        assert len({*item.explains, *item.refuses}) == 6
        for tree in dataset.trees("train"):
            if item.query in {tree.texts[label] for label in tree.children}:
                used = [tree.texts[label] for label in (*tree.children, *tree.leaves)]
                assert not words(*item.refuses) & words(*used)
    paths = {item.path for item in items}
    assert () in paths
    for path in paths - {()}:
        assert path[0] in {tree.hypothesis for tree in dataset.trees("train")}


def test_a_sampler_reads_what_is_written(tmp_path: Path):
    odd = ControlItem("what melts\u2028at 0\x85°C", ("ice\u2029does",), ("salt",))
    items = [*control_items(Dataset.load(SAMPLE), "dev", count=5), odd]
    write_json_lines(tmp_path / "controls.jsonl", map(asdict, items))
    read = read_controls(tmp_path / "controls.jsonl")
    assert [(c.query, c.explains, c.refuses, c.path) for c in read] == [
        (i.query, i.explains, i.refuses, i.path) for i in items
    ]


def test_what_cannot_be_made_is_refused_by_name():
    dataset = Dataset.load(SAMPLE)
    with pytest.raises(NotFound, match="'tset'"):
        control_items(dataset, "tset", count=5)
    with pytest.raises(InvalidArgument, match="candidates"):
        control_items(dataset, "train", count=5, candidates=1)
    with pytest.raises(InvalidArgument, match="fewer candidates"):
        control_items(dataset, "train", count=5, candidates=100_000)


def test_the_command_writes_a_file_of_items(tmp_path: Path):
    words = ["--json", "oracle", "controls", "--trees", str(SAMPLE), "--count", "3", "--to", str(tmp_path / "c.jsonl")]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, json.loads(done.stdout)["items"]) == (0, 3)
    assert len(read_controls(tmp_path / "c.jsonl")) == 3


@pytest.mark.timeout(10)
def test_trees_that_share_intermediates_give_items_at_once():
    proof = "sent1 -> int0: a0; "
    for n in range(40):
        proof += f"int{3 * n} -> int{3 * n + 1}: l{n}; int{3 * n} -> int{3 * n + 2}: r{n}; "
        proof += f"int{3 * n + 1} & int{3 * n + 2} -> int{3 * n + 3}: a{n + 1}; "
    shared = record("t", "h", "sent1: leaf", f"{proof}int120 -> hypothesis; ")
    other = of_one_step("o", "heat changes things", "iron melts", "butter melts", "snow melts", "wax melts")
    dataset = Dataset(SAMPLE, {}, {"train": [tree_from_record(one) for one in (shared, other)]})
    assert len(control_items(dataset, "train", count=3, candidates=4)) == 3

"""A directory in EntailmentBank's layout that is small enough to be written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def tree(name: str, hypothesis: str, leaf: str) -> str:
    """A tree of one step as a line of the data."""
    record = {"id": name, "hypothesis": hypothesis, "context": f"sent1: {leaf}", "proof": "sent1 -> hypothesis; "}
    return json.dumps({**record, "question": "", "answer": ""}) + "\n"


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    """One tree of train and one of dev."""
    folder = tmp_path / "trees"
    (folder / "dataset" / "task_1").mkdir(parents=True)
    (folder / "dataset" / "task_1" / "train.jsonl").write_text(tree("one", "the nail moves", "a magnet pulls a nail"))
    (folder / "dataset" / "task_1" / "dev.jsonl").write_text(tree("two", "ice floats", "ice is light"))
    return folder


@pytest.fixture
def trees_with_test(trees: Path) -> Path:
    """The same directory once a test split was put into it, whose premise is one candidate more."""
    (trees / "dataset" / "task_1" / "test.jsonl").write_text(tree("three", "steam rises", "steam is hot"))
    return trees

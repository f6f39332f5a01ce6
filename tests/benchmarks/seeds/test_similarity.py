"""Files of similarity: read in both layouts, refused by file and line; Spearman's rho by its definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aeenc.errors import InvalidArgument
from benchmarks.seeds.nli import ScoredPair, read_pairs, spearman

TABS = """split\tsentence1\tsentence2\tscore
dev\tA wren sings.\tA bird sings.\t4.2
dev\tIce melts.\tA "man" eats.\t0
"""
LINES = """{"sentence1": "A wren sings.", "sentence2": "A bird sings.", "score": 4.2}

{"sentence1": "Ice melts.", "sentence2": "A \\"man\\" eats.", "score": 0}
"""
PAIRS = [ScoredPair("A wren sings.", "A bird sings.", 4.2), ScoredPair("Ice melts.", 'A "man" eats.', 0.0)]


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "text"), [("sts.tsv", TABS), ("sts.jsonl", LINES)])
def test_both_layouts_give_the_same_pairs(tmp_path: Path, name: str, text: str):
    assert read_pairs(written(tmp_path, name, text)) == PAIRS


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("sts.tsv", TABS.replace("score\n", "gold\n"), ":2: 'dev"),
        ("sts.tsv", TABS.replace("\t0\n", "\n"), ":3: 'dev"),
        ("sts.tsv", TABS.replace("\t0\n", "\thigh\n"), ":3: 'dev"),
        ("sts.tsv", TABS.replace("\t0\n", "\tnan\n"), ":3: 'dev"),
        ("sts.tsv", TABS.replace("Ice melts.", " "), ":3: 'dev"),
        ("sts.tsv", TABS.replace("\t0\n", "\t4.2\n"), ": has no two different scores"),
        ("sts.tsv", "", ": has no two different scores"),
        ("sts.jsonl", LINES.replace('"Ice melts."', "7"), ":3: '{"),
        ("sts.jsonl", LINES.replace(': 0}', ": true}"), ":3: '{"),
        ("sts.jsonl", LINES.replace(', "score": 0}', "}"), ":3: '{"),
        ("sts.jsonl", LINES + "[1]\n", ":4: '[1]' is not a pair"),
        ("sts.jsonl", LINES + "{\n", ":4: '{' is not a pair"),
        ("sts.jsonl", LINES + "[" * 100_000, ":4: '["),
    ],
)  # fmt: skip
def test_damage_is_named_with_file_and_line(tmp_path: Path, name: str, text: str, said: str):
    path = written(tmp_path, name, text)
    with pytest.raises(InvalidArgument) as caught:
        read_pairs(path)
    assert caught.value.message.startswith(f"{path}{said}")


def test_spearman_is_pearsons_correlation_of_mean_ranks():
    rng = np.random.default_rng(0)
    words = [f"w{n}" for n in range(600)]
    vectors = rng.standard_normal((600, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = rng.integers(0, 6, 300)
    pairs = [ScoredPair(words[n], words[300 + n], float(score)) for n, score in enumerate(scores)]

    def mean_ranks(values: np.ndarray) -> np.ndarray:
        return np.array([(values < one).sum() + ((values == one).sum() + 1) / 2 for one in values])

    cosines = np.einsum("nd,nd->n", vectors[:300], vectors[300:])
    expected = np.corrcoef(mean_ranks(cosines), mean_ranks(scores))[0, 1]
    found = spearman(pairs, lambda texts: np.stack([vectors[int(text[1:])] for text in texts]))
    assert found == pytest.approx(expected, abs=1e-12)

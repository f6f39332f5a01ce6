"""BEIR's own loader reads back what the exports write, in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from aeenc.exports import write_pairs_as_beir
from support.worlds.odd_judgements import draw, graded
from tools.pinned_venv import PinnedVenv

FOLDERS = 1000
READ = """
import json, sys
from beir.datasets.data_loader import GenericDataLoader
found = []
for number in range(int(sys.argv[2])):
    corpus, queries, qrels = GenericDataLoader(f"{sys.argv[1]}/{number}").load(split="dev")
    found.append({queries[q]: {corpus[p]["text"]: grade for p, grade in told.items()} for q, told in qrels.items()})
json.dump(found, open(sys.argv[3], "w"))
"""


@pytest.mark.integrations
def test_beirs_loader_reads_the_texts_and_grades_of_odd_judgements(tmp_path: Path):
    expected = []
    for number in range(FOLDERS):
        corpus, pairs = draw(number)
        write_pairs_as_beir(tmp_path / "folders" / str(number), corpus, pairs, split="dev", grades=True)
        expected.append(graded(pairs))
    venv = PinnedVenv(tmp_path / "venv")
    venv.create()
    venv.install("--no-deps", "beir==2.2.0", "tqdm")
    command = [str(venv.python), "-c", READ, str(tmp_path / "folders"), str(FOLDERS), str(tmp_path / "found.json")]
    subprocess.run(command, check=True, timeout=600)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found == expected

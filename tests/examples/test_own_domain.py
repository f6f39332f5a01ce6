"""The example of a domain of one's own: its facts and its oracle fit together."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.command import run_script

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "own-domain"
SCRIPT = """
import sys; sys.path.insert(0, {folder!r})
import facts, aeenc
from oracle import EXPLAINED, Cook
facts.main()
[hypothesis] = open({folder!r} + "/test.txt").read().splitlines()[:1]
texts = open({folder!r} + "/facts.txt").read().splitlines()
candidates = tuple(aeenc.Candidate(str(n), text, n + 1, 0.0) for n, text in enumerate(texts))
judged = Cook().judge(aeenc.Task("t", "r", hypothesis, (), (), candidates))
assert sorted(texts[int(one)] for one in judged) == sorted(EXPLAINED[hypothesis]), judged
assert len(judged) == 3 and len(texts) > 200
assert len(open({folder!r} + "/train.txt").read().splitlines()) == 50
"""


def test_the_oracle_accepts_the_three_facts_from_which_a_hypothesis_follows(tmp_path: Path):
    folder = tmp_path / "own-domain"
    shutil.copytree(FOLDER, folder)
    ended = run_script(SCRIPT.format(folder=str(folder)))
    assert ended.returncode == 0, ended.stderr

"""The first screen of the README: its ten lines run, and print what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import aeenc
from aeenc import Hit
from services.trainer.models.base_model import DEFAULT_NAME, find_base_model
from support.models.base_model_vectors import ours

README = Path(__file__).resolve().parents[2] / "README.md"


class Client:
    """Stands in for a client of a fleet without any training: `build` keeps the facts, `retrieve` ranks by MiniLM."""

    def __init__(self) -> None:
        self.index, self.facts = self, dict[str, list[str]]()

    def build(self, corpus: str, facts: list[str]) -> None:
        self.facts[corpus] = facts

    def retrieve(self, corpus: str, texts: list[str], k: int) -> list[list[Hit]]:
        facts = self.facts[corpus]
        vectors: Any = ours(find_base_model(DEFAULT_NAME), [*texts, *facts], max_tokens=256)
        scores = vectors[: len(texts)] @ vectors[len(texts) :].T
        ranked = [(-row).argsort(kind="stable")[:k] for row in scores]
        return [[Hit(facts[n], facts[n], row[n]) for n in best] for row, best in zip(scores, ranked, strict=True)]


@pytest.mark.slow
def test_the_first_lines_of_the_readme_print_what_it_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [first, *_] = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    told = [line.removeprefix("# ") for line in first.splitlines() if line.startswith("# ")]
    monkeypatch.setattr(aeenc, "connect", Client)
    exec(first, {})
    assert capsys.readouterr().out.splitlines() == told
    assert len(told) == 3

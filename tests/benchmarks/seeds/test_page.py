"""docs/results/seeds.md: one table a command and its data, each of one run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.harness.rows import ROOT
from benchmarks.seeds import page


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    return tmp_path


def test_a_run_replaces_its_own_table_alone_and_says_its_command(results: Path, monkeypatch, capsys, tmp_path: Path):
    data = tmp_path / "snli"
    for base, found in (("mini", 0.5), ("other", 0.25), ("mini", 0.75)):
        monkeypatch.setattr(sys, "argv", ["nli", str(data), "--only", "gist", "--sts", "a b"])
        page.keep_table("nli", data, "All.", ["system", "MAP"], [["gist", found]], base)
    told = (results / "seeds.md").read_text()
    assert [line for line in told.splitlines() if line.startswith("## ")] == ["## nli snli mini", "## nli snli other"]
    rows = [line for line in told.splitlines() if line.startswith("| gist")]
    assert rows == ["| gist   | 0.7500 |", "| gist   | 0.2500 |"]
    assert """    make nli DATA=DIR/snli ARGS='--only gist --sts '"'"'a b'"'"''\n""" in told
    assert str(tmp_path) not in told
    for narrower in ("nli", str(data), "--only", "gist"), ("nli", str(tmp_path / "elsewhere" / "snli")):
        monkeypatch.setattr(sys, "argv", list(narrower))
        page.keep_table("nli", Path(narrower[1]), "Some.", ["system", "MAP"], [["gist", 1.0]], "mini")
        assert (results / "seeds.md").read_text() == told
        assert "not kept: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "command"),
    [([], "/wikiqa"), (["data/sample/answers", "--epochs", "1"], " ARGS='--epochs 1'")],
)
def test_a_sample_is_marked_and_gives_way_to_real_data(
    results: Path, monkeypatch, tmp_path: Path, given: list[str], command: str
):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["analogy", *given])
    page.keep_table("analogy", page.SAMPLE / "answers" / "wikiqa", "", ["system"], [["words"]])
    told = (results / "seeds.md").read_text()
    assert "## analogy wikiqa (sample)\n" in told
    assert f"make analogy DATA=data/sample/answers{command}\n" in told
    monkeypatch.setattr(sys, "argv", ["analogy", str(tmp_path / "wikiqa")])
    page.keep_table("analogy", tmp_path / "wikiqa", "", ["system"], [["words"]])
    assert "\n    make analogy DATA=DIR/wikiqa\n" in (results / "seeds.md").read_text()
    assert "(sample)" not in (results / "seeds.md").read_text()

"""`make figure3`: a split that is not there, and encoders that cannot be measured."""

import sys
from contextlib import nullcontext

import numpy as np
import pytest

from benchmarks.harness import entailmentbank
from benchmarks.tables import drawing, figure3
from benchmarks.tables.research import Unfinished


@pytest.fixture
def results(monkeypatch, trees, tmp_path):
    monkeypatch.setattr(figure3, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(entailmentbank, "DATA", trees)
    monkeypatch.setattr(figure3, "research", lambda: nullcontext("running"))
    return tmp_path / "results"


def fails(_):
    raise Unfinished("job j1 has failed")


def test_a_split_that_is_not_there_ends_the_run_before_anything_is_trained(results, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["figure3", "--split", "test"])
    monkeypatch.setattr(figure3, "research", lambda: pytest.fail("it starts services"))
    with pytest.raises(SystemExit) as end:
        figure3.main()
    assert end.value.code == 2
    assert "no split 'test'; it has train, dev" in capsys.readouterr().err


def test_where_no_encoder_can_be_measured_each_reason_is_told_and_nothing_is_written(results, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["figure3"])
    monkeypatch.setattr(figure3, "SYSTEMS", {"untrained": fails, "tuned on gold": fails})
    with pytest.raises(SystemExit, match=r"nothing was measured; .* stay as they were"):
        figure3.main()
    said = capsys.readouterr().out
    assert "untrained is not measured: job j1 has failed" in said
    assert "tuned on gold is not measured: job j1 has failed" in said
    assert not results.exists()


def test_an_encoder_that_cannot_be_measured_is_told_beside_the_others(results, monkeypatch, capsys):
    kinds = {kind: np.array([0.25, 0.5]) for kind in figure3.KINDS}
    summary = {"mean": 0.375, "sd": 0.125}
    told = {
        "pairs": dict.fromkeys(figure3.KINDS, 2),
        **{name: dict.fromkeys(kinds, summary) for name in figure3.MEASURES},
    }
    monkeypatch.setattr(sys, "argv", ["figure3"])
    monkeypatch.setattr(figure3, "SYSTEMS", {"untrained": lambda _: "q0", "tuned on gold": fails})
    monkeypatch.setattr(figure3, "measure", lambda *_: (dict.fromkeys(figure3.MEASURES, kinds), told))
    figure3.main()
    assert "tuned on gold is not measured" in capsys.readouterr().out
    page = (results / "figure3-dev.md").read_text()
    assert "| untrained | 2 | 2 | 2 |" in page
    assert "- tuned on gold: not measured (job j1 has failed)" in page


def test_a_table_without_rows_is_drawn_empty(tmp_path):
    drawing.draw_table1([], "dev", "nobody", tmp_path / "table.png")
    assert (tmp_path / "table.png").stat().st_size

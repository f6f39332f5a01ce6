"""`make bench NAME=annotators`: searching is reading, repairs no slip, and is compared with the same runs."""

from __future__ import annotations

import json

import pytest

from benchmarks.harness import rows
from benchmarks.sampler.annotators import STAGES, Judged, Node, judge, report

NODE = Node("ice floats", frozenset({"ice is light", "light things float"}), frozenset())
SHOWN = [("p1", "ice is light"), ("p2", "cats purr")]


class Chance:
    """Draws the same number each time."""

    def __init__(self, drawn: float) -> None:
        self._drawn = drawn

    def random(self) -> float:
        return self._drawn


class World:
    """Finds these premises, and notes what was searched for."""

    def __init__(self, *found: str) -> None:
        self.found, self.searched = [(text, text) for text in found], []

    def search(self, premise: str) -> list[tuple[str, str]]:
        self.searched.append(premise)
        return self.found


@pytest.mark.parametrize(
    ("found", "read", "gold"),
    [
        (("balls float", "light things float", "cats purr"), 2, 2),
        (("balls float", "cats purr", "dogs bark"), 3, 1),
    ],
)
def test_a_search_costs_the_hits_up_to_the_premise_or_all_of_them(found, read, gold):
    judged = Judged()
    judge(NODE, SHOWN, Chance(0.5), judged, World(*found))
    assert (judged.read, judged.found) == (len(SHOWN) + read, gold)


def test_a_premise_that_was_shown_and_wrongly_refused_is_not_searched_for():
    judged, world = Judged(), World("ice is light", "light things float")
    judge(NODE, SHOWN, Chance(0.0), judged, world)  # every slip that there is
    assert world.searched == ["light things float"]
    assert judged.found == 1


def test_searching_is_compared_with_the_live_runs_of_its_own_orders(monkeypatch, tmp_path):
    monkeypatch.setattr(rows, "RESULTS", tmp_path)

    def runs(*figures: float) -> list[dict[str, float]]:
        names = ("read_per_completed", "completed", "MAP", "Hit@50", "found")
        return [dict.fromkeys(names, figure) for figure in figures]

    # two runs of order 0, then two of order 1, in which nobody searches
    curves = {
        "untrained": {0: runs(1.0, 1.0, 2.0, 2.0)},
        "static": {STAGES: runs(1.0, 2.0, 3.0, 4.0)},
        "live": {STAGES: runs(2.0, 3.0, 4.0, 5.0)},
        "searching": {STAGES: runs(2.5, 3.5)},
    }
    report(curves, rows.Rows("annotators"))
    told = {one["row"]: one for one in json.loads((tmp_path / "annotators.json").read_text())}
    searching = told["searching less live: MAP, mean (standard deviation) of 2 runs"]
    assert (searching["value"], searching["baseline"]) == ("+0.5 (0)", 2.5)
    assert told["searching: MAP after 12,000 read (2 runs)"]["baseline"] == 1.0
    live = told["live less static: MAP, mean (standard deviation) of 4 runs"]
    assert (live["value"], live["baseline"]) == ("+1 (0)", 2.5)

"""`make figure3`: pairs and their kinds, a split that is not there, and encoders that cannot be measured."""

import json
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from aeenc.loop import Round
from aeenc.trees import Tree
from aeenc.trees.tree import ROOT, Step
from benchmarks.harness import entailmentbank
from benchmarks.tables import drawing, figure3
from benchmarks.tables.by_tree import group_of
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


PAIRS = {"TP": [("ice floats", "ice floats")], "FN": [("ice floats", "ice is light")], "FP": [("ice floats", "a fact")]}


def test_where_no_encoder_can_be_measured_each_reason_is_told_and_nothing_is_written(results, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["figure3"])
    monkeypatch.setattr(figure3, "pairs_of", lambda *_: PAIRS)
    monkeypatch.setattr(figure3, "SYSTEMS", {"untrained": fails, "tuned on gold": fails})
    with pytest.raises(SystemExit, match=r"nothing was measured; .* stay as they were"):
        figure3.main()
    said = capsys.readouterr().out
    assert "untrained is not measured: job j1 has failed" in said
    assert "tuned on gold is not measured: job j1 has failed" in said
    assert not results.exists()


def test_an_encoder_that_cannot_be_measured_is_told_beside_the_others(results, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["figure3"])
    monkeypatch.setattr(figure3, "pairs_of", lambda *_: PAIRS)
    monkeypatch.setattr(figure3, "SYSTEMS", {"untrained": lambda _: figure3.Encoder("q0"), "tuned on gold": fails})
    by_kind = {"TP": np.array([0.5]), "FN": np.array([0.25]), "FP": np.array([0.75])}
    monkeypatch.setattr(figure3, "cosines", lambda *_: by_kind)
    figure3.main()
    assert "tuned on gold is not measured" in capsys.readouterr().out
    page = (results / "figure3-dev.md").read_text()
    assert "1 TP, 1 FN, 1 FP" in page
    assert "| token overlap | 1.000 | 0.250 | 0.000 | -0.250 | -0.250 |  |" in page
    assert "| cosine, untrained | 0.500 | 0.250 | 0.750 | 0.500 | 0.500 |  |" in page
    assert "- tuned on gold: not measured (job j1 has failed)" in page
    record = json.loads((results / "figure3-dev.json").read_bytes())
    assert record["systems"]["untrained"]["cosine"]["FP"] == {"pairs": 1, "mean": 0.75, "sd": 0.0}


def test_an_encoder_that_is_measured_alone_keeps_the_others_and_their_picture(results, monkeypatch):
    monkeypatch.setattr(figure3, "pairs_of", lambda *_: PAIRS)
    systems = {"untrained": lambda _: figure3.Encoder("q0"), "tuned on gold": lambda _: figure3.Encoder("q1", 2)}
    monkeypatch.setattr(figure3, "SYSTEMS", systems)
    by_version = {"q0": 0.5, "q1": 0.25}
    monkeypatch.setattr(
        figure3, "cosines", lambda _, version, pairs: {kind: np.array([by_version[version]]) for kind in pairs}
    )
    monkeypatch.setattr(sys, "argv", ["figure3"])
    figure3.main()
    picture = (results / "figure3-dev.png").read_bytes()
    by_version["q0"] = 0.75
    monkeypatch.setattr(sys, "argv", ["figure3", "--only", "untrained"])
    figure3.main()
    page = (results / "figure3-dev.md").read_text()
    assert "| cosine, untrained | 0.750 |" in page
    assert "| cosine, tuned on gold, best round on dev (round 2) | 0.250 |" in page
    assert (results / "figure3-dev.png").read_bytes() == picture


def test_a_pair_is_found_missed_or_found_in_no_tree_of_its_query():
    gold = {"ice floats": ["ice is light", "light things float"], "snow melts": ["snow is ice"]}
    found = {"ice floats": ["ice is light", "snow is ice", "its own tree says it"], "snow melts": ["ice is light"]}
    kinds = figure3.pairs_by_kind(gold, found, {"ice floats": {"its own tree says it"}, "snow melts": set()})
    assert kinds == {
        "TP": [("ice floats", "ice is light")],
        "FN": [("ice floats", "light things float"), ("snow melts", "snow is ice")],
        "FP": [("ice floats", "snow is ice"), ("snow melts", "ice is light")],
    }


def test_the_texts_of_all_trees_of_a_query_are_related_to_it_but_no_distractor():
    sentences = {"sent1": "ice is light", "sent2": "light things float", "sent3": "cats purr"}
    steps = (Step(("sent1",), "int1", "ice weighs little"), Step(("int1", "sent2"), "hypothesis", "ice floats"))
    other = Tree(
        "two", "ice weighs little", {"sent1": "water is heavy"}, (Step(("sent1",), ROOT, "ice weighs little"),)
    )
    related = figure3.related_of([Tree("one", "ice floats", sentences, steps), other])
    whole = {"ice is light", "light things float", "ice weighs little", "ice floats"}
    assert related == {"ice floats": whole, "ice weighs little": whole | {"water is heavy"}}


def test_unseen_queries_and_the_interval_by_tree_stand_beside_the_whole():
    def tree(name, *sentences):
        of_all = {f"sent{n}": text for n, text in enumerate(sentences, 1)}
        return Tree(name, name, of_all, (Step(tuple(of_all), ROOT, name),))

    trees = [tree("a", "1", "2"), tree("b", "3", "4"), tree("c", "5", "6")]
    pairs = {"TP": [], "FN": [("a", "1"), ("b", "3"), ("c", "5")], "FP": [("a", "7"), ("b", "7"), ("c", "7")]}
    before = {"TP": np.array([]), "FN": np.array([0.1, 0.2, 0.3]), "FP": np.array([0.9, 0.8, 0.8])}
    after = {"TP": np.array([]), "FN": np.array([0.2, 0.4, 0.5]), "FP": np.array([0.8, 0.8, 0.8])}
    systems = {"untrained": before, "tuned": after}
    measured = {name: (figure3.Encoder(name), cosines) for name, cosines in systems.items()}
    seen, groups = {"a"}, group_of(trees)
    told = figure3.told_of(measured, pairs, seen, groups)
    assert told["untrained"]["unseen"]["FN"] == {"pairs": 2, "mean": pytest.approx(0.25), "sd": pytest.approx(0.05)}
    assert "nearer" not in told["untrained"]
    assert told["tuned"]["nearer"] == {name: pytest.approx(0.2) for name in ("mean", "low", "high")}, (
        "each query moved so"
    )
    after["FN"][0] = 0.1
    found = figure3.told_of(measured, pairs, seen, groups)["tuned"]["nearer"]
    assert found == {"mean": pytest.approx(0.5 / 3), "low": pytest.approx(0.1), "high": pytest.approx(0.2)}


def test_cosines_are_of_the_same_pairs_query_by_query(monkeypatch):
    vectors = {"a": np.array([1.0, 0.0]), "b": np.array([0.6, 0.8]), "c": np.array([0.0, 1.0])}
    monkeypatch.setattr(figure3, "vectors_of", lambda _, texts, *__: {text: vectors[text] for text in texts})
    served = []
    running = SimpleNamespace(serve=served.append)
    found = figure3.cosines(running, "q7", {"TP": [("a", "b")], "FN": [("b", "c"), ("a", "c")], "FP": []})
    assert {kind: values.tolist() for kind, values in found.items()} == {"TP": [0.6], "FN": [0.8, 0.0], "FP": []}
    assert served == ["q7"]


def test_the_best_trained_round_is_measured_even_where_the_loop_began_better_and_it_is_told(results, monkeypatch):
    maps = [0.5, 0.3, 0.4, 0.2, 0.1, 0.6]
    rounds = [Round(n, version=f"q{n}", validation_map=found, report={"strict": {}}) for n, found in enumerate(maps)]
    loop = SimpleNamespace(rounds=rounds, best=rounds[0])
    running = SimpleNamespace(loop=lambda *_, **__: loop, pretrained=lambda: "q0")
    monkeypatch.setattr(sys, "argv", ["figure3", "--only", "iterative AE-Enc"])
    monkeypatch.setattr(figure3, "research", lambda: nullcontext(running))
    monkeypatch.setattr(figure3, "pairs_of", lambda *_: PAIRS)
    monkeypatch.setattr(figure3, "cosines", lambda *_: {kind: np.array([0.5]) for kind in PAIRS})
    figure3.main()
    record = json.loads((results / "figure3-dev.json").read_bytes())["systems"]["iterative AE-Enc"]
    assert (record["version"], record["round"]) == ("q2", 2), "the sixth belongs to another row"
    assert (
        "| cosine, iterative AE-Enc, best round on dev (round 2) | 0.500 |" in (results / "figure3-dev.md").read_text()
    )


def test_the_overlap_that_all_encoders_share_is_drawn_once(results, monkeypatch):
    drawn = {}
    monkeypatch.setattr(sys, "argv", ["figure3"])
    monkeypatch.setattr(figure3, "pairs_of", lambda *_: PAIRS)
    monkeypatch.setattr(figure3, "version_of", lambda _, name, fields, seed: name)
    monkeypatch.setattr(figure3, "SYSTEMS", {name: figure3.SYSTEMS[name] for name in ("tuned on gold", "ours")})
    monkeypatch.setitem(figure3.SYSTEMS, "untrained", lambda _: figure3.Encoder("q0"))
    monkeypatch.setattr(figure3, "cosines", lambda *_: {kind: np.array([0.5]) for kind in PAIRS})
    monkeypatch.setattr(figure3, "draw_distributions", lambda panels, _: drawn.update(panels))
    figure3.main()
    assert list(drawn) == ["token overlap", "cosine, untrained", "cosine, tuned on gold", "cosine, ours"]
    systems = json.loads((results / "figure3-dev.json").read_bytes())["systems"]
    assert [one["version"] for one in systems.values()] == ["q0", "tml-single", "ours"]


def test_a_table_without_rows_is_drawn_empty(tmp_path):
    drawing.draw_table1([], "dev", "nobody", tmp_path / "table.png")
    assert (tmp_path / "table.png").stat().st_size

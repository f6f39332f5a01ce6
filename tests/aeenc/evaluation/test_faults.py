"""`aeenc data check`: each damage of a folder is found and named, and a sound folder has none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from aeenc.evaluation.faults import Fault, faults_of
from aeenc.trees.dataset import FACTS_FILE
from support.real_data import ENTAILMENTBANK, without_test
from support.small_trees import of_one_step

FACTS = {"f1": "ice is a solid", "f2": "heat melts solids", "f3": "birds have wings", "f4": "wings lift"}
TRAIN, DEV = Path("dataset/task_1/train.jsonl"), Path("dataset/task_1/dev.jsonl")


def _record(*texts: str) -> str:
    return json.dumps(of_one_step(*texts)) + "\n"


ICE = _record("a", "ice melts", "ice is a solid", "heat melts solids")
BIRDS = _record("b", "birds fly", "birds have wings", "wings lift")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in {TRAIN: ICE, DEV: BIRDS, Path(FACTS_FILE): json.dumps(FACTS)}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def _append(name: Path, line: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text((folder / name).read_text() + line)


def _facts(content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / FACTS_FILE).write_text(content)


DAMAGES: dict[str, tuple[Callable[[Path], object], str, str, str]] = {  # name -> damage, kind, split, in the text
    "a query of dev in train": (_append(TRAIN, BIRDS.replace('"b"', '"c"')), "query-in-train", "dev", "birds fly"),
    "a query of dev in train, but for case and an article": (
        _append(TRAIN, _record("c", "The birds fly!", "birds have wings")),
        *("query-nearly-in-train", "dev", "birds fly"),
    ),
    "no train": (lambda folder: (folder / TRAIN).unlink(), "train-missing", "dev", "no split 'train'"),
    "one id twice": (_append(DEV, _record("b", "wings beat", "wings lift")), "repeated-id", "dev", "b"),
    "a query as its own gold": (
        _append(DEV, _record("c", "wings lift", "wings lift")),
        *("query-is-its-gold", "dev", "wings lift"),
    ),
    "a leaf that is no fact": (
        _append(DEV, _record("c", "fish swim", "fish have fins")),
        *("gold-not-a-fact", "dev", "fish have fins"),
    ),
    "two facts of the same words": (
        _facts(json.dumps({**FACTS, "f5": "The wings lift."})),
        *("near-duplicate", "facts", "The wings lift."),
    ),
    "no fact file": (lambda folder: (folder / FACTS_FILE).unlink(), "facts-missing", "facts", FACTS_FILE),
    "a fact file cut off": (_facts('{"f1": "ice'), "unreadable", "facts", "not JSON"),
    "a line cut off": (_append(DEV, BIRDS[:40] + "\n"), "unreadable", "dev", "dev.jsonl:2: not JSON"),
    "an empty file": (lambda folder: (folder / DEV).write_text(""), "unreadable", "dev", "holds no trees"),
}


def test_a_sound_folder_has_no_faults(folder: Path):
    assert faults_of(folder) == []


@pytest.mark.parametrize(("damage", "kind", "split", "text"), DAMAGES.values(), ids=DAMAGES)
def test_each_damage_is_named(folder: Path, damage: Callable[[Path], object], kind: str, split: str, text: str):
    damage(folder)
    assert [fault for fault in faults_of(folder) if (fault.kind, fault.split) == (kind, split) and text in fault.text]


def test_every_line_that_cannot_be_read_is_named_and_the_others_are_checked(folder: Path):
    _append(DEV, "{\n" + ICE + "[]\n")(folder)
    found = faults_of(folder)
    assert [fault.text.partition(": ")[0][-12:] for fault in found if fault.kind == "unreadable"] == [
        *("/dev.jsonl:2", "/dev.jsonl:4")
    ]
    assert Fault("query-in-train", "dev", "ice melts") in found


CORPUS = [("d1", "ice is a solid"), ("d2", "heat melts solids"), ("d3", "birds have wings")]
QUERIES = [("q1", "ice melts"), ("q2", "birds fly")]
QRELS = {"train": [("q1", "d1"), ("q1", "d2")], "dev": [("q2", "d3")]}


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    for name, texts in {"corpus": CORPUS, "queries": QUERIES}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(_line(*one) for one in texts))
    (tmp_path / "qrels").mkdir()
    for split, judged in QRELS.items():
        lines = "".join(f"{query}\t{document}\t1\n" for query, document in judged)
        (tmp_path / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}")
    return tmp_path


def _line(name: str, text: str) -> str:
    return json.dumps({"_id": name, "text": text}) + "\n"


BEIR_DAMAGES: dict[str, tuple[dict[str, str], tuple[str, str, str]]] = {  # name -> lines added, fault
    "a query of dev in train": (
        {"queries.jsonl": _line("q3", "ice melts"), "qrels/dev.tsv": "q3\td1\t1\n"},
        ("query-in-train", "dev", "ice melts"),
    ),
    "a query as its own gold": (
        {"corpus.jsonl": _line("d4", "birds fly"), "qrels/dev.tsv": "q2\td4\t1\n"},
        ("query-is-its-gold", "dev", "birds fly"),
    ),
    "a document cut off": ({"corpus.jsonl": '{"_id": "d\n'}, ("unreadable", "facts", "corpus.jsonl:4: not JSON")),
    "a query that is not an object": ({"queries.jsonl": "[]\n"}, ("unreadable", "queries", "queries.jsonl:3: must be")),
    "gold that the corpus lacks": ({"qrels/dev.tsv": "q2\td9\t1\n"}, ("unreadable", "dev", "no text of 'd9'")),
    "a score that is not a number": ({"qrels/dev.tsv": "q2\td1\thigh\n"}, ("unreadable", "dev", "must be a number")),
    "a list that is empty": (
        {"queries.jsonl": '{"_id": "q3", "text": "fish swim", "only": []}\n'},
        ("unreadable", "queries", "query 'q3'"),
    ),
    "a document twice": ({"corpus.jsonl": _line("d4", "ice is a solid")}, ("near-duplicate", "facts", "ice is a")),
}


def _damage(folder: Path, added: dict[str, str]) -> None:
    for name, lines in added.items():
        (folder / name).write_text((folder / name).read_text() + lines)


@pytest.mark.parametrize(("added", "fault"), BEIR_DAMAGES.values(), ids=BEIR_DAMAGES)
def test_each_damage_of_a_folder_of_beir_is_named(beir: Path, added: dict[str, str], fault: tuple[str, str, str]):
    assert faults_of(beir) == []
    _damage(beir, added)
    assert [(one.kind, one.split) for one in faults_of(beir)] == [fault[:2]]
    assert fault[2] in faults_of(beir)[0].text


def test_a_train_that_cannot_be_read_is_not_taken_for_one_without_queries(beir: Path):
    _damage(beir, {"qrels/train.tsv": "q1\td1\thigh\n"})
    assert {(one.kind, one.split) for one in faults_of(beir)} == {("unreadable", "train"), ("train-missing", "dev")}


def test_all_faults_of_a_folder_of_beir_are_named_at_once(beir: Path):
    chosen = ("a document cut off", "a query that is not an object", "gold that the corpus lacks", "a document twice")
    for name in chosen:
        _damage(beir, BEIR_DAMAGES[name][0])
    found = [(one.kind, one.split) for one in faults_of(beir)]
    assert found == [BEIR_DAMAGES[name][1][:2] for name in chosen]


def test_a_folder_of_beir_without_train_leaves_leaks_unknown(beir: Path):
    (beir / "qrels" / "train.tsv").unlink()
    assert [(one.kind, one.split) for one in faults_of(beir)] == [("train-missing", "dev")]


def test_entailmentbank_has_57_dev_queries_in_train(tmp_path: Path):
    without_test(ENTAILMENTBANK, tmp_path)
    found = faults_of(tmp_path)
    assert sum(fault.kind == "query-in-train" and fault.split == "dev" for fault in found) == 57
    assert not [fault for fault in found if fault.kind == "unreadable"]
    leaves = [fault for fault in found if fault.kind == "gold-not-a-fact" and fault.split == "dev"]
    assert len(leaves) > sum(bool(fault.other) for fault in leaves) > len(leaves) / 2

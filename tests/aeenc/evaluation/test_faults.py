"""`aeenc data check`: each damage of a folder is found and named, and a sound folder has none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from aeenc.errors import NotFound
from aeenc.evaluation.faults import Fault, faults_of
from aeenc.trees.dataset import FACTS_FILE
from support.real_data import ENTAILMENTBANK, without_test

FACTS = {"f1": "ice is a solid", "f2": "heat melts solids", "f3": "birds have wings", "f4": "wings lift"}
TRAIN, DEV = Path("dataset/task_1/train.jsonl"), Path("dataset/task_1/dev.jsonl")


def _record(name: str, hypothesis: str, *leaves: str) -> str:
    context = " ".join(f"sent{n}: {leaf}" for n, leaf in enumerate(leaves, start=1))
    proof = " & ".join(f"sent{n}" for n in range(1, len(leaves) + 1)) + " -> hypothesis; "
    return json.dumps({"id": name, "hypothesis": hypothesis, "context": context, "proof": proof}) + "\n"


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
    "an empty fact": (_facts(json.dumps({**FACTS, "f5": " "})), "unreadable", "facts", "'f5'"),
    "a fact id twice": (_facts('{"f1": "ice is a solid", "f1": "snow"}'), "unreadable", "facts", "twice"),
    "a line cut off": (_append(DEV, BIRDS[:40] + "\n"), "unreadable", "dev", "dev.jsonl:2: not JSON"),
    "a label that is not defined": (
        _append(DEV, BIRDS.replace("& sent2 ->", "& sent9 ->")),
        *("unreadable", "dev", "dev.jsonl:2: the proof uses 'sent9'"),
    ),
    "a file that is not UTF-8": (
        lambda folder: (folder / DEV).write_bytes(b'{"id": "\xff"}\n'),
        *("unreadable", "dev", "not UTF-8"),
    ),
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


def test_another_layout_is_refused(tmp_path: Path):
    with pytest.raises(NotFound, match="dataset/task_1"):
        faults_of(tmp_path)


def test_entailmentbank_has_57_dev_queries_in_train(tmp_path: Path):
    without_test(ENTAILMENTBANK, tmp_path)
    found = faults_of(tmp_path)
    assert sum(fault.kind == "query-in-train" and fault.split == "dev" for fault in found) == 57
    assert not [fault for fault in found if fault.kind == "unreadable"]
    leaves = [fault for fault in found if fault.kind == "gold-not-a-fact" and fault.split == "dev"]
    assert len(leaves) > sum(bool(fault.other) for fault in leaves) > len(leaves) / 2

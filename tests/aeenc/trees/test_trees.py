"""Tree files: what is read, what is written back, and what is said of a file that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeenc.errors import InvalidArgument, InvalidTree, NotFound
from aeenc.trees import (
    Accessible,
    Dataset,
    Step,
    Tree,
    draw,
    read_trees,
    record_from_tree,
    to_svg,
    tree_from_record,
    write_trees,
)
from support.real_data import ENTAILMENTBANK, need

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "data" / "sample"

RECORD = {
    "id": "t1",
    "question": "q",
    "answer": "a",
    "hypothesis": "leo is made of stars",
    "context": "sent1: leo is a constellation sent2: a constellation: it contains stars, many",
    "proof": "sent1 & sent2 -> int1: leo: a thing; that contains stars; int1 -> hypothesis; ",
    "meta": {"kept": [1, 2]},
}


def files_of(directory: Path) -> list[Path]:
    return sorted(need(directory).glob("dataset/task_[12]/*.jsonl"))


@pytest.mark.parametrize("directory", [SAMPLE, ENTAILMENTBANK], ids=["sample", "entailmentbank"])
def test_every_tree_parses_and_writing_and_reading_it_is_the_identity(directory: Path, tmp_path: Path) -> None:
    files = files_of(directory)
    assert len(files) >= 4
    for path in files:
        trees = read_trees(path)
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert [record_from_tree(tree) for tree in trees] == records
        write_trees(tmp_path / "copy.jsonl", trees)
        written = (tmp_path / "copy.jsonl").read_text(encoding="utf-8").splitlines()
        assert list(map(json.loads, written)) == records, "which were read as these trees"


def test_a_tree_knows_its_children_leaves_and_depth() -> None:
    tree = tree_from_record(RECORD)
    assert tree.children == {"hypothesis": ("int1",), "int1": ("sent1", "sent2")}
    assert tree.texts["int1"] == "leo: a thing; that contains stars"
    assert tree.leaves == ("sent1", "sent2")
    assert tree.depths["hypothesis"] == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"proof": "sent1 & sent9 -> hypothesis; "}, "'sent9'"),
        ({"proof": "sent1 -> int1: x; "}, "root"),
        ({"proof": "nonsense"}, "proof must read"),
        ({"proof": "int2 -> int1: a; int1 -> int2: b; int1 & sent1 -> hypothesis; "}, "circular"),
        ({"proof": "sent1 -> int1; int1 -> hypothesis; "}, "has no text"),
        ({"context": "leo is a constellation"}, "context must read"),
        ({"context": "sent1: a sent1: b"}, "'sent1' twice"),
        ({"hypothesis": None}, "'hypothesis' must be a string"),
        ({"hypothesis": " "}, "hypothesis is empty"),
        ({"context": "sent1:  sent2: a constellation"}, "'sent1' is empty"),
        ({"context": "sent1: a \ud83d sent2: b"}, "half a character"),
    ],
)
def test_a_malformed_tree_is_named_by_file_and_line(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(RECORD) + "\n" + json.dumps({**RECORD, **change}) + "\n")
    with pytest.raises(InvalidTree, match=message) as caught:
        read_trees(path)
    assert caught.value.message.startswith(f"{path}:2: ")


@pytest.mark.parametrize(
    "line", [b"{", b"[1]", b"\xff\xfe", b'"text"', b'{"id": "a", "id": "b"}', b"[" * 100_000, b"{}\r{}", b"7" * 5000]
)
def test_a_line_that_is_no_json_object_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_bytes(b"\n" + line + b"\n")
    with pytest.raises(InvalidTree, match=f"{path}:2: "):
        read_trees(path)


WORD = st.text(alphabet="abc:,.;() '", min_size=1, max_size=12).map(str.strip).filter(bool)


@given(st.lists(WORD, min_size=1, max_size=5), WORD, WORD)
def test_any_texts_survive_the_notation(leaves: list[str], intermediate: str, hypothesis: str) -> None:
    labels = tuple(f"sent{n}" for n in range(1, len(leaves) + 1))
    tree = Tree(
        id="x",
        hypothesis=hypothesis,
        sentences=dict(zip(labels, leaves, strict=True)),
        steps=(Step(labels, "int1", intermediate), Step(("int1",), "hypothesis", hypothesis)),
    )
    again = tree_from_record(record_from_tree(tree))
    assert (again.sentences, again.steps) == (tree.sentences, tree.steps)


def diamonds(number: int) -> Tree:
    """Each intermediate is a premise of two others, which both are premises of the next: 2**number ways to the leaf."""
    steps = [Step(("sent1",), "int0", "a0")]
    for n in range(number):
        sides = [f"int{3 * n + k}" for k in (1, 2)]
        steps += [Step((f"int{3 * n}",), side, f"side {side}") for side in sides]
        steps.append(Step(tuple(sides), f"int{3 * n + 3}", f"a{n + 1}"))
    return Tree("d", "h", {"sent1": "leaf"}, (*steps, Step((steps[-1].conclusion,), "hypothesis", "h")))


def chain(number: int) -> Tree:
    """Each step has one premise: the conclusion of the step before."""
    steps = [Step((f"int{n - 1}" if n else "sent1",), f"int{n}", f"a{n}") for n in range(number)]
    return Tree("c", "h", {"sent1": "leaf"}, (*steps, Step((steps[-1].conclusion,), "hypothesis", "h")))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("tree", "depth"), [(diamonds(500), 1002), (chain(2000), 2001)], ids=["diamonds", "chain"])
def test_proofs_that_share_intermediates_or_are_deep_are_read_and_drawn(tree: Tree, depth: int) -> None:
    read = tree_from_record(record_from_tree(tree))
    assert (read.depths["hypothesis"], len(read.upward)) == (depth, len(tree.steps) + 1)
    assert to_svg(read).count("<rect") == len(tree.steps) + 1
    assert len(draw(diamonds(3)).splitlines()) == 15
    assert "a2 (as above)" in draw(diamonds(3))


def directory(root: Path, **files: bytes) -> Path:
    """Writes tree files, by split, and the fact file `facts`, into EntailmentBank's layout."""
    facts = root / "supporting_data" / "worldtree_corpus_sentences_extended.json"
    (root / "dataset" / "task_1").mkdir(parents=True)
    facts.parent.mkdir()
    for name, content in files.items():
        (facts if name == "facts" else root / "dataset" / "task_1" / f"{name}.jsonl").write_bytes(content)
    return root


def test_files_with_a_byte_order_mark_and_notes_of_an_operating_system_are_read(tmp_path: Path) -> None:
    line = b"\xef\xbb\xbf" + json.dumps(RECORD).encode()
    root = directory(tmp_path, train=line, facts=b'\xef\xbb\xbf{"f1": "a fact"}', **{"._train": b"\x00\x05"})
    dataset = Dataset.load(root)
    assert (dataset.splits, dataset.facts) == (("train",), {"f1": "a fact"})
    assert [tree.id for tree in dataset.trees("train")] == [RECORD["id"]]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"train copy": b"{}"}, "train copy.jsonl: a split is named by"),
        ({"train": b"\n"}, "train.jsonl:1: holds no trees"),
        ({"facts": b'{"a": "x is y", "a": "z is w"}'}, "'a' is there twice"),
        ({"facts": b'{"a": "\\ud83d"}'}, "half a character"),
        ({"facts": b'{"a": " "}'}, "the fact 'a' needs"),
        ({"facts": b'{"a": 1}'}, "must hold one JSON object"),
        ({"facts": b"{\n,"}, ".json:2: not JSON"),
    ],
)
def test_a_directory_that_cannot_be_read_is_refused_by_file(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Dataset.load(directory(tmp_path, **{"dev": json.dumps(RECORD).encode(), **files}))
    assert said in caught.value.message
    assert str(tmp_path) in caught.value.message


@pytest.mark.parametrize(
    ("leaf", "intermediate"),
    [("see sent2: it melts", "i"), ("l", "ice; sent1 -> int7: melts"), ("l", "i; sent1 -> hypothesis")],
)
def test_a_text_that_would_be_read_back_otherwise_is_not_written(leaf: str, intermediate: str, tmp_path: Path) -> None:
    steps = (Step(("sent1",), "int1", intermediate), Step(("int1",), "hypothesis", "h"))
    with pytest.raises(InvalidTree, match="tree 'x': a text of it reads like labels"):
        write_trees(tmp_path / "x.jsonl", [Tree("x", "h", {"sent1": leaf}, steps)])
    assert not (tmp_path / "x.jsonl").exists()


def test_gold_is_the_union_over_the_trees_of_the_split(tmp_path: Path) -> None:
    second = {**RECORD, "id": "t2", "context": "sent1: another fact", "proof": "sent1 -> hypothesis; "}
    files = {
        "train": f"{json.dumps(RECORD)}\n{json.dumps(second)}",
        "dev": json.dumps({**second, "hypothesis": "leo is a constellation"}),
        "facts": json.dumps({"f1": "a fact", "f2": "another fact", "f3": "a fact"}),
    }
    dataset = Dataset.load(directory(tmp_path, **{name: content.encode() for name, content in files.items()}))
    gold = {query.text: query.gold for query in dataset.queries("train")}
    assert gold[RECORD["hypothesis"]] == ("leo: a thing; that contains stars", "another fact")
    assert dataset.hypotheses("train") == [("t1", RECORD["hypothesis"])]
    by_text = {candidate.text: candidate for candidate in dataset.candidates()}
    assert [c.text for c in dataset.candidates()][:2] == ["a fact", "another fact"]
    assert (by_text["a fact"].id, by_text["a fact"].aliases, by_text["a fact"].splits) == ("f1", ("f3",), ("facts",))
    assert by_text["another fact"].splits == ("facts", "train", "dev")
    assert set(by_text["leo is a constellation"].splits) == {"train", "dev"}


def test_a_missing_split_names_those_that_are_there_and_another_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="train, dev, test"):
        Dataset.load(SAMPLE).trees("validation")
    with pytest.raises(NotFound, match="task_1"):
        Dataset.load(tmp_path)


def test_a_drawing_shows_every_text_once_under_its_parent() -> None:
    lines = draw(tree_from_record(RECORD), marked={"leo is a constellation"}).splitlines()
    assert lines[0] == "leo is made of stars"
    assert lines[1] == "└─ leo: a thing; that contains stars"
    assert lines[2] == "   ├─ ✓ leo is a constellation"


@pytest.mark.parametrize("only_ids", [(), [], iter(()), "f12", 5])
def test_what_is_accessible_is_a_list_with_an_entry_or_none(only_ids: object):
    with pytest.raises(InvalidArgument, match=r"^only_ids: "):
        Accessible(only_ids=only_ids)  # type: ignore[arg-type]
    assert Accessible(only_ids=iter(["f1", "f2"])).only_ids == ("f1", "f2")  # type: ignore[arg-type]
    assert Accessible().only_ids is None

"""Data sets as judged pairs: gold trees, triplets, pairs, natural language inference; and what they keep out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aeenc.errors import FailedPrecondition, InvalidArgument, NotFound
from aeenc.evaluation import load_data
from aeenc.trees import Dataset
from services.corpus.generation import PremiseRecord
from services.trainer.jobs.pair_sources import DataSets
from services.trainer.jobs.training_set import build_training_set
from services.trainer.train.losses import CONTRADICTION, ENTAILMENT, NEUTRAL
from services.trainer.train.objectives import classified

SAMPLE = Path(__file__).resolve().parents[4] / "data" / "sample"


def lines(path: Path, *records: object) -> DataSets:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return DataSets({"set": path}, text_bytes=64)


def test_gold_trees_are_read_once_as_pairs_and_keep_the_texts_of_other_splits_alone_out(
    monkeypatch: pytest.MonkeyPatch,
):
    dataset, loaded, load = Dataset.load(SAMPLE), list[Path](), Dataset.load
    monkeypatch.setattr(Dataset, "load", lambda path: loaded.append(path) or load(path))
    pairs, held_out = DataSets({"gold": SAMPLE}, 1024).read(["gold"], "train")
    assert loaded == [SAMPLE]
    positives = {(pair.query, pair.premise) for pair in pairs if pair.sign == "POSITIVE"}
    assert positives == {(query.text, premise) for query in dataset.queries("train") for premise in query.gold}
    refused = {(pair.query, pair.premise) for pair in pairs if pair.sign == "NEGATIVE"}
    assert refused == {(query, other) for query, _, other in dataset.distractor_triplets("train")} - positives
    assert {pair.split for pair in pairs} == {"train"}
    texts = {split: {text for tree in dataset.trees(split) for text in tree.texts.values()} for split in dataset.splits}
    assert held_out == (texts["dev"] | texts["test"]) - texts["train"] - set(dataset.facts.values())
    assert held_out


def test_the_sample_leaks_nothing_of_dev_or_test_into_training():
    sets, dataset = DataSets({"gold": SAMPLE}, 1024), Dataset.load(SAMPLE)
    premises = [PremiseRecord(c.id, c.text, c.aliases, c.splits) for c in dataset.candidates()]
    foreign = [pair for split in ("dev", "test") for pair in sets.read(["gold"], split)[0]]
    smuggled = [type(pair)(pair.query, "", pair.premise, pair.sign) for pair in foreign]  # as an import would be
    own, held_out = sets.read(["gold"], "train")
    training_set = build_training_set([*own, *smuggled], premises, "train", held_out)
    used = {example.query for example in training_set.examples}
    numbers = {n for e in training_set.examples for n in (*e.positives, *e.refused)}
    used |= {premises[n].text for n in numbers if n < len(premises)} | set(training_set.outside)
    assert not used & held_out
    queries = {query.text for query in dataset.queries("dev")} - {query.text for query in dataset.queries("train")}
    assert not used & queries
    assert training_set.dropped > 0


def test_a_line_is_a_triplet_a_pair_or_an_inference(tmp_path: Path):
    sets = lines(
        tmp_path / "set.jsonl",
        {"query": "q", "positive": "p", "negative": "n"},
        {"query": "q", "premise": "s", "sign": "skipped"},
        {"query": "q", "premise_id": "f1", "sign": "POSITIVE"},
        {"premise": "a man sleeps", "hypothesis": "a person sleeps", "label": "entailment"},
        {"premise": "a man sleeps", "hypothesis": "a man runs", "label": "contradiction"},
        {"premise": "a man sleeps", "hypothesis": "he is tired", "label": "neutral"},
        {"premise": "a man sleeps", "hypothesis": "nobody agreed", "label": "-"},
    )
    sets.check(["set"], "")
    found = [(pair.query, pair.premise_id or pair.premise, pair.sign) for pair in sets.read(["set"], "")[0]]
    assert found == [
        ("q", "p", "POSITIVE"),
        ("q", "n", "NEGATIVE"),
        ("q", "s", "SKIPPED"),
        ("q", "f1", "POSITIVE"),
        ("a person sleeps", "a man sleeps", "POSITIVE"),
        ("a man runs", "a man sleeps", "CONTRADICTED"),
        ("he is tired", "a man sleeps", "NEGATIVE"),
    ]


def test_inferences_have_their_premise_as_anchor(tmp_path: Path):
    path = tmp_path / "nli.jsonl"
    rows = [
        {"gold_label": "entailment", "sentence1": "a man sleeps", "sentence2": "a person sleeps", "pairID": "1"},
        {"gold_label": "-", "sentence1": "a man sleeps", "sentence2": "nobody agreed"},
        {"premise": "a man sleeps", "hypothesis": "a man runs", "label": 2},
        {"premise": "a man sleeps", "hypothesis": "he is tired", "label": "neutral"},
        {"premise": "a man sleeps", "hypothesis": "unlabelled", "label": -1},
        {"anchor": "a dog barks", "positive": "a dog is loud", "negative": "a dog is silent"},
        {"anchor": "a dog barks", "positive": "an animal barks"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sets = DataSets({"nli": Path(f"nli:{path}"), "folder": Path(f"nli:{tmp_path}")}, 1024)
    sets.check(["nli"], "train")
    with pytest.raises(FailedPrecondition, match="kind nli is a file"):
        sets.check(["folder"], "train")
    pairs, _ = sets.read(["nli"], "")
    assert [(pair.query, pair.premise, pair.sign) for pair in pairs] == [
        ("a man sleeps", "a person sleeps", "POSITIVE"),
        ("a man sleeps", "a man runs", "CONTRADICTED"),
        ("a man sleeps", "he is tired", "NEUTRAL"),
        ("a dog barks", "a dog is loud", "POSITIVE"),
        ("a dog barks", "a dog is silent", "CONTRADICTED"),
        ("a dog barks", "an animal barks", "POSITIVE"),
    ]
    man, _dog = build_training_set(pairs, [], "").examples
    assert (man.positives.tolist(), man.refused.tolist(), man.contradicted.tolist()) == ([0], [1], [1])
    assert (man.neutral.tolist(), man.excluded.tolist()) == ([2], [2])
    for neutral, classes in ((True, [ENTAILMENT, NEUTRAL, CONTRADICTION]), (False, [ENTAILMENT, CONTRADICTION])):
        items, found = classified(build_training_set(pairs[:3], [], ""), neutral=neutral)
        assert sorted(zip(found.tolist(), items[:, 1].tolist(), strict=True)) == sorted(
            zip(classes, [0, 2, 1] if neutral else [0, 1], strict=True)
        )


INFERENCES = [
    '{"gold_label": "perhaps", "sentence1": "a", "sentence2": "b"}',
    '{"gold_label": "entailment", "sentence1": "a"}',
    '{"premise": "a", "hypothesis": "b", "label": 3}',
    '{"premise": "a", "hypothesis": "b", "label": true}',
    '{"premise": "a", "hypothesis": "b", "label": [1]}',
    '{"premise": "a", "hypothesis": "", "label": 0}',
    '{"anchor": "a", "positive": "b", "negative": 1}',
    '{"anchor": "a", "negative": "b"}',
    '{"query": "a", "premise": "b", "sign": "positive"}',
    "[]",
    "7",
    "null",
    "nonsense",
    '{"gold_label": "entailment", "sentence1": "a", "sent',
    '{"gold_label": "entailment", "sentence1": "a", "sentence2": "b"}{}',
    '{"gold_label": null, "sentence1": "a", "sentence2": "b"}',
    '{"gold_label": "entailment", "sentence1": null, "sentence2": "b"}',
    '{"premise": "a", "hypothesis": "b"}',
    '{"premise": "a", "hypothesis": "b", "label": 0.5}',
    '{"premise": "a", "hypothesis": "b", "label": NaN}',
    '{"anchor": "", "positive": "b"}',
    '{"anchor": "half a character: \\ud800", "positive": "b"}',
    "[" * 100_000,
]
PAIRS = [
    "nonsense",
    "[1]",
    '{"query": "q"}',
    '{"query": "q", "premise": "p", "sign": "perhaps"}',
    '{"query": "", "positive": "p", "negative": "n"}',
    '{"query": "q", "positive": 1, "negative": "n"}',
    '{"premise": "p", "hypothesis": "h", "label": "maybe"}',
    '{"query": "q", "premise": "p", "grade": -1}',
    '{"query": "q", "premise": "p", "grade": 101}',
    '{"query": "q", "premise": "p", "grade": NaN}',
    f'{{"query": "q", "premise": "p", "grade": 1{"0" * 400}}}',
    '{"query": "q", "premise": "p", "grade": true}',
    '{"query": "q", "premise": "p", "sign": "positive", "grade": "6"}',
    '{"query": "half a character: \\ud800", "positive": "p", "negative": "n"}',
]


@pytest.mark.parametrize(("kind", "line"), [*(("nli:", one) for one in INFERENCES), *(("", one) for one in PAIRS)])
def test_a_line_that_is_no_inference_or_no_pair_is_named(tmp_path: Path, kind: str, line: str):
    path = tmp_path / "set.jsonl"
    path.write_text(f'{{"query": "q", "anchor": "q", "positive": "p", "negative": "n"}}\n\n{line}\n')
    give = "; give gold_label" if kind else ""
    with pytest.raises(InvalidArgument, match=rf"set\.jsonl:3( has no pair{give}|: not JSON|: nested too deeply)"):
        DataSets({"set": Path(f"{kind}{path}")}, 64).read(["set"], "")


def test_a_line_may_have_a_grade_in_place_of_a_sign_or_beside_it(tmp_path: Path):
    sets = lines(
        tmp_path / "set.jsonl",
        {"query": "q", "premise": "best", "grade": 6},
        {"query": "q", "premise": "irrelevant", "grade": 0},
        {"query": "q", "premise": "accepted", "sign": "positive", "grade": 2.5},
        {"query": "q", "premise": "on another scale", "sign": "positive", "grade": -1},
        {"query": "q", "premise": "refused", "sign": "negative", "grade": 3},
    )
    assert [(pair.premise, pair.sign, pair.grade) for pair in sets.read(["set"], "")[0]] == [
        ("best", "POSITIVE", 6),
        ("irrelevant", "NEGATIVE", 0),
        ("accepted", "POSITIVE", 2.5),
        ("on another scale", "POSITIVE", 0),
        ("refused", "NEGATIVE", 0),
    ]


def test_rated_facts_are_a_data_set_of_the_jobs_split():
    sets = DataSets({"rated": SAMPLE / "textgraphs"}, 1024)
    with pytest.raises(InvalidArgument, match="data set 'rated' has dev, train"):
        sets.check(["rated"], "test")
    sets.check(["rated"], "train")
    pairs, held_out = sets.read(["rated"], "train")
    own, other = (dict(load_data(SAMPLE / "textgraphs").queries(split)) for split in ("train", "dev"))
    assert {(p.query, p.premise): p.grade for p in pairs} == {
        (q, f): g for q, told in own.items() for f, g in told.items()
    }
    assert {pair.sign for pair in pairs if pair.grade} == {"POSITIVE"}
    assert {pair.sign for pair in pairs if not pair.grade} == {"NEGATIVE"}
    assert held_out == set(other)


GOOD = '{"query": "q", "positive": "Ångström", "negative": "n"}\n'
LONG = json.dumps({"query": "q", "positive": "p" * 65, "negative": "n"}).encode()
ANSWER = json.dumps({"question": "who", "answer": "x" * 65, "label": 1}).encode() + b"\n"


@pytest.mark.parametrize(
    ("kind", "content", "told"),
    [
        ("", GOOD.encode() + GOOD.encode("latin-1"), r":2: byte 29 is not UTF-8; save the file as UTF-8"),
        ("", LONG, r":1 has a text over 64 bytes"),
        ("analogy:", ANSWER, r": question 'who' has a text over 64 bytes"),
    ],
)
def test_a_text_that_is_not_utf8_or_too_long_is_named(tmp_path: Path, kind: str, content: bytes, told: str):
    path = tmp_path / "set.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=rf"set\.jsonl{told}"):
        DataSets({"set": Path(f"{kind}{path}")}, 64).read(["set"], "")


def test_names_are_checked_before_a_job_starts(tmp_path: Path):
    sets = DataSets({"gold": SAMPLE, "gone": tmp_path / "gone", "other": tmp_path}, 64)
    with pytest.raises(NotFound, match="give one with dataset/task_1"):
        sets.check(["other"], "train")
    with pytest.raises(NotFound, match="names: gold, gone, other"):
        sets.check(["golden"], "train")
    with pytest.raises(FailedPrecondition, match="is missing"):
        sets.check(["gone"], "train")
    with pytest.raises(InvalidArgument, match="has several splits"):
        sets.check(["gold"], "")
    with pytest.raises(InvalidArgument, match=r"config.split: is 'tset'; data set 'gold' has train, dev, test"):
        sets.check(["gold"], "tset")
    sets.check(["gold"], "train")


ANSWERED = [
    {"question": "who sings", "answer": "the wren sings", "label": 1},
    {"question": "who sings", "answer": "a song is long", "label": 0},
    {"question": "why", "answer": "because", "label": 1, "class": "reason"},
]


def test_answer_selection_is_a_data_set_with_the_classes_of_its_questions(tmp_path: Path):
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ANSWERED))
    other = {"question": "who flies", "answer": "the wren sings", "label": 0}
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (other, ANSWERED[0])))
    sets = DataSets({"folder": Path(f"analogy:{tmp_path}"), "file": Path(f"analogy:{tmp_path / 'train.jsonl'}")}, 1024)
    for use in (sets.check, sets.read):
        with pytest.raises(InvalidArgument, match="data set 'folder' has dev, train"):
            use(["folder"], "test")
    sets.check(["folder", "file"], "train")
    found = [(pair.query, pair.premise, pair.sign, pair.question_class) for pair in sets.read(["file"], "")[0]]
    assert found == [
        ("who sings", "the wren sings", "POSITIVE", "who"),
        ("who sings", "a song is long", "NEGATIVE", "who"),
        ("why", "because", "POSITIVE", "reason"),
    ]
    pairs, held_out = sets.read(["folder"], "train")
    assert [(pair.query, pair.premise, pair.sign, pair.question_class) for pair in pairs] == found
    assert {pair.split for pair in pairs} == {"train"}
    assert held_out == {"who flies"}
    built = build_training_set(pairs, [], "train", held_out)
    assert [example.question_class for example in built.examples] == ["who", "reason"]

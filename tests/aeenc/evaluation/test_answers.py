"""The readers of answer selection: WikiQA and TrecQA, and kinds of damage to each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from aeenc.errors import InvalidArgument, NotFound
from aeenc.evaluation import Question, answer_splits, question_class, read_answers

HEADER = "QuestionID\tQuestion\tDocumentID\tDocumentTitle\tSentenceID\tSentence\tLabel"
ROWS = (
    'Q1\tWho built the "old" bridge ?\tD1\tBridge\tD1-0\tIt was built by a mason .\t1',
    'Q1\tWho built the "old" bridge ?\tD1\tBridge\tD1-1\tThe bridge is old .\t0',
    "Q2\twhere do wrens live\tD2\tWren\tD2-0\tWrens live in hedges .\t1",
    "Q3\thow tall is an oak\tD3\tOak\tD3-0\tOaks are trees .\t0",
)
TSV = "\n".join([HEADER, *ROWS]) + "\n"
XML = """<QApairs id='1.1'>
<question>
Who	built	the	"	old	"	bridge	?
WP	VBD	DT	``	JJ	''	NN	.
</question>
<positive>
It	was	built	by	a	mason	&	<num>	others	.
PRP	VBD	VBN	IN	DT	NN	CC	CD	NNS	.
</positive>
<negative>
The	bridge	is	old	.
DT	NN	VBZ	JJ	.
</negative>
</QApairs>

<QApairs id='1.2'>
<question>
where	do	wrens	live
</question>
<positive>
Wrens	live	in	hedges	.
</positive>
</QApairs>
"""
JSONL = """{"question": "Who built the old bridge ?", "answer": "It was built by a mason .", "label": 1}
{"question": "Who built the old bridge ?", "answer": "The bridge is old .", "label": 0}
{"question": "where do wrens live", "sentence": "Wrens live in hedges .", "label": true}

{"question": "how tall is an oak", "answer": "Oaks are trees .", "label": 0, "class": "size"}
"""


def test_wikiqa_is_read_with_its_labels_and_quotation_marks(tmp_path: Path):
    (tmp_path / "WikiQA-train.tsv").write_text(TSV)
    (tmp_path / "WikiQA-dev.tsv").write_text("\ufeff" + TSV.replace("\n", "\r\n"))  # as a spreadsheet saves it
    (tmp_path / "WikiQA.tsv").write_text("the whole of it is no split")
    dataset = read_answers(tmp_path)
    assert tuple(dataset) == answer_splits(tmp_path) == ("dev", "train")
    assert dataset["train"] == dataset["dev"]
    assert dataset["train"] == (
        Question(
            'Who built the "old" bridge ?', "who", {"It was built by a mason .": True, "The bridge is old .": False}
        ),
        Question("where do wrens live", "where", {"Wrens live in hedges .": True}),
        Question("how tall is an oak", "", {"Oaks are trees .": False}),
    )


def test_trecqa_is_read_from_its_lines(tmp_path: Path):
    (tmp_path / "TRAIN-ALL.xml").write_text(XML)
    assert read_answers(tmp_path)["train-all"] == (
        Question(
            'Who built the " old " bridge ?',
            "who",
            {"It was built by a mason & <num> others .": True, "The bridge is old .": False},
        ),
        Question("where do wrens live", "where", {"Wrens live in hedges .": True}),
    )


def test_json_lines_and_lists_are_the_same_and_may_name_classes(tmp_path: Path):
    path, listed = tmp_path / "test.jsonl", tmp_path / "more.json"
    path.write_text(JSONL)
    listed.write_text(json.dumps([json.loads(line) for line in JSONL.splitlines() if line], indent=1))
    questions = read_answers(path)[""]
    assert questions == read_answers(listed)[""]
    assert [one.question_class for one in questions] == ["who", "where", "size"]
    by_length = read_answers(path, classify=lambda text: "long" if len(text) > 20 else "short")
    assert [one.question_class for one in by_length[""]] == ["long", "short", "size"]


def test_of_equal_answers_a_right_one_counts(tmp_path: Path):
    path = tmp_path / "test.jsonl"
    rows = [{"question": "q", "answer": "a", "label": label} for label in (0, 1, 0)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_answers(path)[""][0].answers == {"a": True}


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Who is it ?", "who"),
        ("when ?", "when"),
        ("when is it", "when"),
        ("WHERE", "where"),
        ("Whose is it", ""),
        ("", ""),
    ],
)
def test_the_first_word_gives_the_class(question: str, expected: str):
    assert question_class(question) == expected


def test_another_layout_and_two_files_of_a_split_are_refused(tmp_path: Path):
    with pytest.raises(NotFound, match="has no WikiQA-<split>"):
        read_answers(tmp_path)
    for name in ("train.xml", "TRAIN.jsonl"):
        (tmp_path / name).write_text(XML)
    with pytest.raises(InvalidArgument, match="are both of split 'train'"):
        read_answers(tmp_path)


Change = Callable[[bytes], bytes]


def swap(old: str, new: str) -> Change:
    def change(data: bytes) -> bytes:
        assert old.encode() in data
        return data.replace(old.encode(), new.encode(), 1)

    return change


def line(number: int, text: str) -> Change:
    """Puts a text in place of a line."""

    def change(data: bytes) -> bytes:
        lines = data.split(b"\n")
        lines[number - 1] = text.encode()
        return b"\n".join(lines)

    return change


def cut(after: str) -> Change:
    return lambda data: data[: data.index(after.encode()) + len(after)]


EVERYWHERE: dict[str, tuple[Change, str]] = {
    "an empty file": (lambda data: b"", ":1"),
    "white space alone": (lambda data: b"\n \n", ":1"),
    "a byte of Latin-1": (lambda data: data.replace(b"mason", b"m\xe4son"), " is not UTF-8"),
}
WIKIQA: dict[str, tuple[Change, str]] = {
    **EVERYWHERE,
    "no header": (line(1, ROWS[2]), ":1: the header needs a column QuestionID"),
    "no column of labels": (swap("\tLabel", "\tlabels"), ":1: the header needs a column Label"),
    "a column twice": (swap("DocumentTitle", "Sentence"), ":1: the header needs a column Sentence, once"),
    "the header alone": (cut("Label"), ":1: no question"),
    "a cell too few": (line(3, ROWS[1].replace("\tD1-1", "")), ":3: 6 cells; the header has 7"),
    "a cell too many": (line(3, ROWS[1] + "\t1"), ":3: 8 cells"),
    "an empty line within": (line(3, ""), ":3: 0 cells"),
    "no id of the question": (line(3, ROWS[1].replace("Q1", "")), ":3: QuestionID is empty"),
    "an id for two questions": (line(4, ROWS[2].replace("Q2", "Q1")), ":4: question Q1 has another text"),
    "no question": (line(4, ROWS[2].replace("where do wrens live", " ")), ":4: Question is ''"),
    "no sentence": (line(4, ROWS[2].replace("Wrens live in hedges .", "")), ":4: Sentence is ''"),
    "no label": (line(3, ROWS[1][:-1]), ":3: Label is ''"),
    "a label of 2": (line(3, ROWS[1][:-1] + "2"), ":3: Label is '2'"),
    "a label with a fraction": (line(3, ROWS[1][:-1] + "1.0"), ":3: Label is '1.0'"),
}
TRECQA: dict[str, tuple[Change, str]] = {
    **EVERYWHERE,
    "well-formed XML": (lambda data: b"<?xml version='1.0'?>\n" + data, ":1: \"<?xml version='1.0'?>\" stands outside"),
    "no id": (line(1, "<QApairs>"), ":1: '<QApairs>' stands outside"),
    "an empty id": (line(1, "<QApairs id=''>"), ":1:"),
    "an id twice": (swap("1.2", "1.1"), ":16: question 1.1 stands in an earlier block"),
    "a block within a block": (line(14, ""), ":16: \"<QApairs id='1.2'>\" is none of"),
    "a line between blocks": (line(15, "stray"), ":15: 'stray' stands outside"),
    "an unknown tag": (swap("<negative>", "<neutral>"), ":10: '<neutral>' is none of"),
    "no question": (
        swap("<question>\nwhere\tdo\twrens\tlive\n</question>\n", ""),
        ":17: question 1.2 has <positive> before",
    ),
    "nothing in a block": (
        lambda data: data + b"<QApairs id='2'>\n</QApairs>\n",
        ":25: question 2 has no <question>",
    ),
    "two questions": (swap("<negative>", "<question>"), ":10: question 1.1 has a second <question>"),
    "a question without words": (line(18, " "), ":19: <question> is ''"),
    "tags of words without words": (line(7, ""), ":9: <positive> is ''"),
    "an answer without words": (line(21, "\t"), ":22: <positive> is ''"),
    "an answer not closed": (line(9, ""), ":10: <negative> stands where </positive> is missing"),
    "the wrong closing tag": (line(9, "</negative>"), ":9: </negative> stands where </positive> is missing"),
    "a block not closed within an answer": (swap("</negative>\n", ""), ":13: </QApairs> stands where </negative>"),
    "cut off within an answer": (cut("Wrens\tlive"), ":21: the file ends within <positive>"),
    "cut off within a block": (cut("hedges\t.\n</positive>"), ":22: the file ends within question 1.2"),
}
JSON: dict[str, tuple[Change, str]] = {
    **EVERYWHERE,
    "no JSON": (line(2, "nonsense"), ":2: not JSON"),
    "a line cut off": (cut('"sentence": "Wrens'), ":3: not JSON"),
    "a list in a line": (line(2, "[1]"), ":2: '[1]' is no object"),
    "lists without an end": (line(2, "[" * 100_000), ":2: nested too deeply"),
    "no question": (swap('"question": "where do wrens live", ', ""), ":3: question is 'None'"),
    "an empty question": (swap('"where do wrens live"', '" "'), ":3: question is ' '"),
    "a question that is a list": (swap('"where do wrens live"', '["where"]'), ":3: question is \"['where']\""),
    "no answer": (swap('"sentence": "Wrens live in hedges .", ', ""), ":3: give answer or sentence"),
    "answer and sentence": (swap('"sentence"', '"answer": "yes", "sentence"'), ":3: give answer or sentence"),
    "an empty answer": (swap('"Wrens live in hedges ."', '""'), ":3: answer is ''"),
    "half a character": (swap("Wrens live", "\\ud800"), ":3: answer is"),
    "no label": (swap(', "label": true', ""), ":3: label is 'None'"),
    "a label of 2": (swap("true", "2"), ":3: label is '2'"),
    "a label with a fraction": (swap("true", "1.0"), ":3: label is '1.0'"),
    "a label that is no number": (swap("true", "NaN"), ":3: label is 'nan'"),
    "a class that is a number": (swap('"size"', "3"), ":5: class is '3'"),
    "two classes of a question": (
        swap('mason .", "label": 1', 'mason .", "label": 1, "class": "x"'),
        ":2: the question has class 'x' in an earlier line",
    ),
}
DAMAGE = [
    pytest.param(name, text, change, said, id=f"{name}: {kind}")
    for name, text, kinds in (("train.tsv", TSV, WIKIQA), ("train.xml", XML, TRECQA), ("train.jsonl", JSONL, JSON))
    for kind, (change, said) in kinds.items()
]


@pytest.mark.parametrize(("name", "text", "change", "said"), DAMAGE)
def test_damage_is_named_with_file_and_line(tmp_path: Path, name: str, text: str, change: Change, said: str):
    path = tmp_path / name
    path.write_bytes(change(text.encode()))
    with pytest.raises(InvalidArgument) as caught:
        read_answers(tmp_path)
    assert caught.value.message.startswith(f"{path}:")
    assert said in caught.value.message


def test_damage_within_a_list_of_json_is_named(tmp_path: Path):
    path = tmp_path / "train.json"
    for text, said in (
        ('[{"question": "q",\n "answer" "a"}]', ":2: not JSON"),
        ('[\n{"question": "q", "answer": "a", "label": 1},\n{"question": "q"}]', ": [1]: give answer"),
        ("{}", ":1: not a list"),
    ):
        path.write_text(text)
        with pytest.raises(InvalidArgument) as caught:
            read_answers(path)
        assert caught.value.message.startswith(f"{path}{said}")
    other = tmp_path / "train.csv"
    other.write_text("")
    with pytest.raises(InvalidArgument, match="rename it"):
        read_answers(other)

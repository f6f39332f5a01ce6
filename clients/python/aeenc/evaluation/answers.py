"""Reads answer selection: questions with right and wrong candidate sentences, in the layouts of WikiQA and TrecQA.

    DIR/WikiQA-<split>.tsv     a header with QuestionID, Question, Sentence and Label; cells are never quoted
    DIR/<split>.xml            TrecQA's lines: <QApairs id='…'>, and in it <question>, <positive>, <negative>, each on a
                               line of its own; the first line inside is the sentence, words parted by tabs
    DIR/<split>.jsonl, .json   {"question", "answer" or "sentence", "label"} a line, or a list of these; "class" may
                               name the class of the question

Splits are train, train-all, dev and test, in capitals too. A file alone is read in the same way and has one split.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path
from typing import Any

from aeenc.errors import InvalidArgument, NotFound
from aeenc.files.lines import HALF, json_file, json_lines, records, text_lines

CLASSES = ("who", "when", "where")
Classify = Callable[[str], str]
_SPLIT = re.compile(r"(?:wikiqa-)?(train|train-all|dev|test)", re.IGNORECASE)
_WIKIQA = ("QuestionID", "Question", "Sentence", "Label")
_OPENING = re.compile(r"<QApairs id=(['\"])(.+)\1>")
_TAGS = {"<question>": "</question>", "<positive>": "</positive>", "<negative>": "</negative>"}
_CLOSING = "</QApairs>"


def question_class(question: str) -> str:
    """Returns who, when or where if the question begins with that word; empty for any other question."""
    first = question.split(maxsplit=1)[:1]
    return first[0].lower() if first and first[0].lower() in CLASSES else ""


@dataclass(frozen=True)
class Question:
    """A question, its class (empty for none), and its candidate answers by text: whether each is right."""

    text: str
    question_class: str
    answers: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class _Row:
    """One question with one candidate, or with none, and where it stands in its file."""

    place: str
    question_id: str
    question: str
    answer: str
    right: bool
    question_class: str = ""


def read_answers(path: Path | str, classify: Classify = question_class) -> dict[str, tuple[Question, ...]]:
    """Reads the distinct questions of each split of a directory in file order, or of a file as the split "".

    `classify` gives the class of a question whose file names none. Of equal answers to a question, a right one
    counts. Raises NotFound for another layout, InvalidArgument naming file and line.
    """
    root = Path(path)
    files = {"": root} if root.is_file() else _files(root)
    if not files:
        raise NotFound(f"{root} has no WikiQA-<split>.tsv and no <split>.xml, .jsonl or .json of a known split")
    return {split: tuple(_questions(file, classify)) for split, file in files.items()}


def answer_splits(folder: Path | str) -> tuple[str, ...]:
    """Lists the splits of a directory without reading them; none for another layout."""
    return tuple(_files(Path(folder)))


def _files(folder: Path) -> dict[str, Path]:
    """Finds the file of each split. Raises InvalidArgument for a split with two."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        named = _SPLIT.fullmatch(path.stem)
        if named and path.suffix in _READERS and path.is_file():
            first = found.setdefault(named[1].lower(), path)
            if first != path:
                raise InvalidArgument(f"{path} and {first.name} are both of split {named[1].lower()!r}; keep one")
    return found


def _questions(path: Path, classify: Classify) -> list[Question]:
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise InvalidArgument(f"{path} ends in none of {', '.join(_READERS)}; rename it")
    found: dict[str, Question] = {}
    ids: dict[str, str] = {}
    for row in reader(path):
        if ids.setdefault(row.question_id, row.question) != row.question:
            raise InvalidArgument(f"{row.place}: question {row.question_id} has another text in an earlier line")
        name = row.question_class or classify(row.question)
        question = found.setdefault(row.question, Question(row.question, name))
        if question.question_class != name:
            raise InvalidArgument(f"{row.place}: the question has class {question.question_class!r} in an earlier line")
        if row.answer:
            question.answers[row.answer] = row.right or question.answers.get(row.answer, False)
    if not found:
        raise InvalidArgument(f"{path}:1: no question; give the whole file")
    return list(found.values())


def _tsv(path: Path) -> Iterator[_Row]:
    """Yields the rows of WikiQA."""
    rows = records(path, (line for _, line in text_lines(path)), delimiter="\t", quoting=csv.QUOTE_NONE)
    _, header = next(rows, ("", []))
    missing = [name for name in _WIKIQA if header.count(name) != 1]
    if missing:
        raise InvalidArgument(f"{path}:1: the header needs a column {missing[0]}, once")
    columns = [header.index(name) for name in _WIKIQA]
    for place, row in rows:
        if len(row) != len(header):
            raise InvalidArgument(f"{place}: {len(row)} cells; the header has {len(header)}")
        question_id, question, answer, label = (row[column].strip() for column in columns)
        if not question_id:
            raise InvalidArgument(f"{place}: QuestionID is empty; complete or remove the row")
        yield _Row(
            place,
            question_id,
            _words(place, "Question", question),
            _words(place, "Sentence", answer),
            _label(place, "Label", label),
        )


class _TrecQa:
    """Reads TrecQA's lines. They are no XML: words such as `<num>` and `&` stand there as they are."""

    def __init__(self, path: Path) -> None:
        self._lines, self._place = text_lines(path), f"{path}:1"

    def rows(self) -> Iterator[_Row]:
        """Yields each question without a candidate, then with its candidates."""
        seen: set[str] = set()
        for line in filter(None, self._stripped()):
            opened = _OPENING.fullmatch(line)
            if opened is None:
                raise InvalidArgument(f"{self._place}: {line[:80]!r} stands outside <QApairs id='…'>")
            if opened[2] in seen:
                raise InvalidArgument(f"{self._place}: question {opened[2]} stands in an earlier block, too; keep one")
            seen.add(opened[2])
            yield from self._block(opened[2])

    def _stripped(self) -> Iterator[str]:
        """Yields the lines, stripped, and notes where they stand."""
        for place, line in self._lines:
            self._place = place
            yield line.strip()

    def _block(self, question_id: str) -> Iterator[_Row]:
        question = ""
        for line in filter(None, self._stripped()):
            if line == _CLOSING and question:
                return
            if line == _CLOSING:
                raise InvalidArgument(f"{self._place}: question {question_id} has no <question>")
            if line not in _TAGS:
                raise InvalidArgument(f"{self._place}: {line[:80]!r} is none of {', '.join(_TAGS)} and {_CLOSING}")
            if bool(question) == (line == "<question>"):
                needed = "has a second <question>" if question else f"has {line} before <question>"
                raise InvalidArgument(f"{self._place}: question {question_id} {needed}; give it once, first")
            words = self._sentence(line)
            if line == "<question>":
                question, words = words, ""
            yield _Row(self._place, question_id, question, words, right=line == "<positive>")
        raise InvalidArgument(f"{self._place}: the file ends within question {question_id}; give the whole file")

    def _sentence(self, tag: str) -> str:
        """Reads the first line up to a closing tag; further ones have parts of speech."""
        sentence: str | None = None
        for line in self._stripped():
            if line == _TAGS[tag]:
                return _words(self._place, tag, sentence or "")
            if line in {*_TAGS, *_TAGS.values(), _CLOSING} or _OPENING.fullmatch(line):
                raise InvalidArgument(f"{self._place}: {line} stands where {_TAGS[tag]} is missing; complete the block")
            sentence = line if sentence is None else sentence
        raise InvalidArgument(f"{self._place}: the file ends within {tag}; give the whole file")


def _json(path: Path) -> Iterator[_Row]:
    records = json_file(path)
    if not isinstance(records, list):
        raise InvalidArgument(f"{path}:1: not a list; write a list of objects, or end the file's name in .jsonl")
    for number, record in enumerate(records):
        yield _record(f"{path}: [{number}]", record)


_READERS: dict[str, Callable[[Path], Iterator[_Row]]] = {
    ".tsv": _tsv,
    ".xml": lambda path: _TrecQa(path).rows(),
    ".jsonl": lambda path: starmap(_record, json_lines(path)),
    ".json": _json,
}


def _record(place: str, record: Any) -> _Row:
    if not isinstance(record, dict):
        raise InvalidArgument(f"{place}: {str(record)[:80]!r} is no object; write question, answer and label")
    if ("answer" in record) == ("sentence" in record):
        raise InvalidArgument(f"{place}: give answer or sentence, one of both")
    name = record.get("class", "")
    if not isinstance(name, str):
        raise InvalidArgument(f"{place}: class is {str(name)[:80]!r}; write a string")
    question = _words(place, "question", record.get("question"))
    answer = _words(place, "answer", record.get("answer", record.get("sentence")))
    return _Row(place, question, question, answer, _label(place, "label", record.get("label")), name)


def _words(place: str, name: str, value: Any) -> str:
    if not isinstance(value, str) or not (text := " ".join(value.split())) or HALF.search(text):
        raise InvalidArgument(f"{place}: {name} is {str(value)[:80]!r}; write words")
    return text


def _label(place: str, name: str, value: Any) -> bool:
    if isinstance(value, float) or str(value) not in {"0", "1", "False", "True"}:
        raise InvalidArgument(f"{place}: {name} is {str(value)[:80]!r}; write 0 or 1")
    return str(value) in {"1", "True"}

"""Reads the release of TextGraphs-2021: facts in tables, and questions whose facts experts have rated.

    DIR/tables/*.tsv                        one fact a row: its id in the column `[SKIP] UID`, its words in the columns
                                            whose names do not start with [SKIP]
    DIR/wt-expert-ratings.<split>.json      {"rankingProblems": [{"qid", "queryText", "documents": [{"uuid",
                                            "relevance", "docText"}]}]}; docText is read where no table has the uuid

`[ANSWER]`, which stands between question and answer, is left out of the query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aeenc.errors import InvalidArgument, NotFound
from aeenc.evaluation.graded import check_grade
from aeenc.files.lines import json_file, records, text_lines
from aeenc.trees.dataset import EVERYTHING, FACTS, Accessible, Candidate

_SKIP = "[SKIP]"


@dataclass(frozen=True)
class RatedQuery:
    """A question with its answer, the grade of each rated fact by its id, and the facts that may explain it."""

    id: str
    text: str
    grades: dict[str, float]
    accessible: Accessible = EVERYTHING


@dataclass(frozen=True)
class RatedSet:
    """Facts by id, and the rated queries of one split."""

    facts: dict[str, str]
    queries: tuple[RatedQuery, ...]


class RatedDataset:
    """Facts and rated queries of all splits of a directory, compared by text. `load_data` reads it."""

    def __init__(self, rated: Mapping[str, RatedSet]) -> None:
        self._rated = rated

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits present, by name."""
        return tuple(self._rated)

    def candidates(self) -> list[Candidate]:
        """Lists the distinct facts in the order of the files."""
        ids: dict[str, dict[str, None]] = {}
        for rated in self._rated.values():
            for uid, text in rated.facts.items():
                ids.setdefault(text, {})[uid] = None
        return [Candidate(uid, text, tuple(others), (FACTS,)) for text, (uid, *others) in ids.items()]

    def hypotheses(self, split: str) -> list[tuple[str, str]]:
        """Lists (query id, text) of each distinct query of a split, in file order. Raises NotFound."""
        first: dict[str, str] = {}
        for query in self._set(split).queries:
            first.setdefault(query.text, query.id)
        return [(query_id, text) for text, query_id in first.items()]

    def queries(self, split: str) -> list[tuple[str, dict[str, float]]]:
        """Lists the distinct queries of a split, each with the grades of its facts by text, in file order.

        Of equal queries or facts, the highest grade counts. Queries without a grade above 0 are left out. Raises
        NotFound for an unknown split.
        """
        rated = self._set(split)
        found: dict[str, dict[str, float]] = {}
        for query in rated.queries:
            grades = found.setdefault(query.text, {})
            for uid, grade in query.grades.items():
                grades[rated.facts[uid]] = max(grade, grades.get(rated.facts[uid], 0.0))
        return [(text, grades) for text, grades in found.items() if any(grades.values())]

    def accessible(self, split: str) -> dict[str, Accessible]:
        """Maps each query of a split to the facts that may explain it, where not all may. Raises NotFound."""
        rated = self._set(split)
        first = {text: uid for uid, text in reversed(rated.facts.items())}

        def named(uid: str) -> str:
            return first[rated.facts[uid]] if uid else ""

        return {
            query.text: Accessible(
                named(query.accessible.before_id), tuple(map(named, query.accessible.only_ids or ())) or None
            )
            for query in rated.queries
            if query.accessible != EVERYTHING
        }

    def _set(self, split: str) -> RatedSet:
        if split not in self._rated:
            raise NotFound(f"there is no split {split!r}; there are {', '.join(self.splits)}")
        return self._rated[split]


def textgraphs_splits(folder: Path) -> tuple[str, ...]:
    """Lists the splits of a directory of the release without reading them; none for another layout."""
    return tuple(sorted(path.name.split(".")[1] for path in folder.glob("wt-expert-ratings.*.json")))


def read_textgraphs(folder: Path | str, split: str) -> RatedSet:
    """Reads the facts and one split. Raises NotFound for another layout, InvalidArgument naming file and place."""
    root = Path(folder)
    tables = sorted((root / "tables").glob("*.tsv"))
    if not tables:
        raise NotFound(f"{root / 'tables'} has no *.tsv; give the folder of the TextGraphs-2021 release")
    ratings = root / f"wt-expert-ratings.{split}.json"
    if not ratings.is_file():
        raise NotFound(
            f"{ratings} does not exist; give the folder of the TextGraphs-2021 release and one of its splits"
        )
    facts: dict[str, str] = {}
    for path in tables:
        for place, uid, text in _rows(path):
            if facts.setdefault(uid, text) != text:
                raise InvalidArgument(f"{place}: UID {uid} has another text in an earlier row; give each fact its own")
    return RatedSet(facts, tuple(_queries(ratings, facts)))


def _rows(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yields the place, id and text of each fact of a table."""
    rows = records(path, (line for _, line in text_lines(path)), delimiter="\t")
    _, header = next(rows, ("", []))
    ids = [column for column, name in enumerate(header) if name.startswith(_SKIP) and "UID" in name]
    words = [column for column, name in enumerate(header) if not name.startswith(_SKIP)]
    if not ids or not words:
        raise InvalidArgument(f"{path}:1: the header needs a column `{_SKIP} UID` and one without {_SKIP}")
    for place, row in rows:
        if any("\n" in cell for cell in row):
            raise InvalidArgument(f"{place}: a cell goes over the end of the line; close its quotation mark")
        if any(cell.strip() for cell in row[len(header) :]):
            raise InvalidArgument(f"{place}: {len(row)} cells; the header has {len(header)}")
        cells = row + [""] * (len(header) - len(row))
        uid, text = cells[ids[0]].strip(), " ".join(word for column in words if (word := cells[column].strip()))
        if bool(uid) != bool(text):
            raise InvalidArgument(f"{place}: the fact has no {'text' if uid else 'UID'}; complete or remove the row")
        if uid:
            yield place, uid, text


def _queries(path: Path, facts: dict[str, str]) -> Iterator[RatedQuery]:
    """Yields the rated queries of a file; adds facts that no table has to `facts`."""
    seen: set[str] = set()
    for where, problem in _objects(path, "", json_file(path), "rankingProblems"):
        query = _string(where, problem, "qid")
        if query in seen:
            raise InvalidArgument(f"{where}.qid is {query!r}, as in an earlier problem; keep one")
        seen.add(query)
        text = " ".join(_string(where, problem, "queryText").replace("[ANSWER]", " ").split())
        if not text:
            raise InvalidArgument(f"{where}.queryText has no words; write question and answer")
        grades: dict[str, float] = {}
        for place, document in _objects(path, where.removeprefix(f"{path}: ") + ".", problem, "documents"):
            uid = _string(place, document, "uuid")
            if uid in grades:
                raise InvalidArgument(f"{place}.uuid is {uid!r}, which the query rates twice; keep one")
            grades[uid] = _grade(place, document)
            if uid not in facts:
                if not document.get("docText"):
                    raise InvalidArgument(f"{place}.uuid is {uid!r}, which no table has; add the row, or a docText")
                facts[uid] = _string(place, document, "docText")
        yield RatedQuery(query, text, grades)


def _objects(path: Path, prefix: str, parent: object, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the place and value of each object of a list that must not be empty."""
    held = parent.get(name) if isinstance(parent, dict) else None
    if not isinstance(held, list) or not held:
        raise InvalidArgument(f"{path}: {prefix}{name} must be a list that is not empty")
    for number, one in enumerate(held):
        where = f"{path}: {prefix}{name}[{number}]"
        if not isinstance(one, dict):
            raise InvalidArgument(f"{where} is {str(one)[:80]!r}; write an object")
        yield where, one


def _string(where: str, record: dict[str, Any], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str) or not value.strip():
        raise InvalidArgument(f"{where}.{name} is {str(value)[:80]!r}; write a string that is not empty")
    return value.strip()


def _grade(where: str, record: dict[str, Any]) -> float:
    value = record.get("relevance")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidArgument(f"{where}.relevance is {str(value)[:80]!r}; write a number")
    try:
        return float(check_grade(value))
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}.relevance: {error.message}") from None

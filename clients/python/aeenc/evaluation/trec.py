"""TREC's run and qrels files, which every retrieval toolkit reads: `qid Q0 docid rank score tag`, `qid 0 docid grade`.

BEIR's qrels are read, too: `qid docid grade` under a line with the names of the columns.

Toolkits order a run by its scores and break ties in their own ways. Scores are therefore written strictly falling: one
that does not fall is lowered to the next smaller float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from aeenc.errors import InvalidArgument
from aeenc.evaluation.graded import check_grade, grade_text
from aeenc.evaluation.metrics import UNRANKED, Ranks
from aeenc.files.lines import text_lines
from aeenc.files.whole import whole_file
from aeenc.trees import content_id

Run = dict[str, dict[str, int]]  # query id -> document id -> rank, from 1


def query_id(text: str) -> str:
    """Returns the id of a query, from its text: the same in every file of every system."""
    return content_id(text, "q")


def document_id(name: str) -> str:
    """Quotes a premise's id for a file, which allows no spaces in it."""
    return quote(name, safe="-._~:/")


def write_run(
    path: Path,
    rankings: Iterable[tuple[str, Sequence[tuple[str, float]]]],
    tag: str,
    ids: Mapping[str, str] | None = None,
) -> None:
    """Writes the ranking of each query text, (premise id, score) best first. `ids` are queries' own ones, by text."""
    named = ((_query_name(text, ids), hits) for text, hits in rankings)
    _write_ranked(path, ((name, [(document_id(one), score) for one, score in hits]) for name, hits in named), tag)


def write_fused(path: Path, runs: Sequence[Run], tag: str) -> int:
    """Writes what `fuse` makes of runs, with minus the sum of ranks as the score; returns the number of queries."""
    fused = fuse(runs)
    _write_ranked(path, ((query, [(name, -total) for name, total in hits]) for query, hits in fused.items()), tag)
    return len(fused)


def fuse(runs: Sequence[Run]) -> dict[str, list[tuple[str, int]]]:
    """Orders each query's documents by the sum of their ranks, least first, and gives the sums.

    A document that a run lacks has the rank after its last one there. Ties go to the order of the first run, then of
    the next. Raises InvalidArgument for less than two runs, and for a query that not all of them answer.
    """
    if len(runs) < 2:
        raise InvalidArgument(f"fusion needs at least 2 runs, got {len(runs)}")
    queries = list(dict.fromkeys(query for run in runs for query in run))
    for number, run in enumerate(runs, start=1):
        if absent := next((query for query in queries if query not in run), None):
            raise InvalidArgument(f"run {number} of {len(runs)} does not answer query {absent}; fuse runs of one split")
    fused: dict[str, list[tuple[str, int]]] = {}
    for query in queries:
        lists = [run[query] for run in runs]
        names = dict.fromkeys(name for ranks in lists for name in sorted(ranks, key=ranks.__getitem__))
        sums = [(name, sum(ranks.get(name, len(ranks) + 1) for ranks in lists)) for name in names]
        fused[query] = sorted(sums, key=lambda one: one[1])  # stable: ties stay in the order of the runs
    return fused


def write_qrels(
    path: Path, gold: Iterable[tuple[str, Sequence[str] | Mapping[str, float]]], ids: Mapping[str, str] | None = None
) -> None:
    """Writes the gold premise ids of each query text, or the grades of its rated ones; gold without grades gets 1.

    Grades are written as they are; trec_eval itself reads whole ones only. `ids` are as in `write_run`.
    """
    with whole_file(path) as file:
        for text, premises in gold:
            grades = premises if isinstance(premises, Mapping) else dict.fromkeys(premises, 1)
            name = _query_name(text, ids)
            file.writelines(f"{name} 0 {document_id(one)} {grade_text(grade)}\n" for one, grade in grades.items())


def read_run(path: Path) -> Run:
    """Reads a run by its scores, ties by the rank written. Raises InvalidArgument with file and line."""
    found: dict[str, list[tuple[float, int, str]]] = {}
    for place, fields in _lines(path, 6):
        try:
            score, rank = float(fields[4]), int(fields[3])
        except ValueError:
            raise InvalidArgument(f"{place}: rank and score must be numbers; pass a TREC run file") from None
        if math.isnan(score):
            raise InvalidArgument(f"{place}: the score is NaN, which no order holds; write a number")
        found.setdefault(fields[0], []).append((-score, rank, fields[2]))
    run: Run = {}
    for query, hits in found.items():
        ranks: dict[str, int] = {}
        for *_, name in sorted(hits):
            ranks.setdefault(name, len(ranks) + 1)
        run[query] = ranks
    return run


def read_grades(path: Path) -> dict[str, dict[str, float]]:
    """Reads the grade of each rated document, of the queries with one above 0. Below 0, TREC's mark of junk, is 0.

    Raises InvalidArgument with file and line.
    """
    rated: dict[str, dict[str, float]] = {}
    for place, (query, *zero, name, written) in _lines(path, 3, 4):
        try:
            grade = check_grade(max(float(written), 0.0))
        except ValueError:
            if place == f"{path}:1" and not zero:  # BEIR's names of the columns
                continue
            raise InvalidArgument(f"{place}: the relevance must be a number; pass qrels of TREC or BEIR") from None
        except InvalidArgument as error:
            raise InvalidArgument(f"{place}: {error.message}") from None
        grades = rated.setdefault(query, {})
        if grades.setdefault(name, grade) != grade:
            raise InvalidArgument(
                f"{place}: {name} has grade {grade:g}, and {grades[name]:g} in an earlier line; keep one"
            )
    judged = {query: grades for query, grades in rated.items() if any(grades.values())}
    if not judged:
        raise InvalidArgument(f"{path} holds no relevant document; pass qrels of TREC or BEIR")
    return judged


def ranks_of(run: Run, gold: Mapping[str, Iterable[str]]) -> list[Ranks]:
    """Looks up the ranks of each query's documents, in the order of `gold`; UNRANKED where the run lacks one."""
    return [
        np.array([run.get(query, {}).get(name, UNRANKED) for name in names], dtype=np.int64)
        for query, names in gold.items()
    ]


def _write_ranked(path: Path, rankings: Iterable[tuple[str, Sequence[tuple[str, float]]]], tag: str) -> None:
    with whole_file(path) as file:
        for query, hits in rankings:
            last = np.float32(np.inf)
            for rank, (name, score) in enumerate(hits, start=1):
                last = min(np.float32(score), np.nextafter(last, np.float32(-np.inf)))
                file.write(f"{query} Q0 {name} {rank} {last:.9g} {tag}\n")


def _query_name(text: str, ids: Mapping[str, str] | None) -> str:
    return document_id(ids[text]) if ids else query_id(text)


def _lines(path: Path, *columns: int) -> Iterator[tuple[str, list[str]]]:
    for place, line in text_lines(path):
        fields = line.split()
        if fields and len(fields) not in columns:
            needed = " or ".join(map(str, columns))
            raise InvalidArgument(f"{place}: {len(fields)} columns; such a file has {needed}")
        if fields:
            yield place, fields

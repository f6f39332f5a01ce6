"""A retrieval benchmark in BEIR's layout, which BEIR, MTEB, Pyserini and others read.

    DIR/corpus.jsonl        {"_id": …, "title": "", "text": …}
    DIR/queries.jsonl       {"_id": …, "text": …}; also "before" and "only", where not every premise may explain it
    DIR/qrels/<split>.tsv   query-id, corpus-id, score: the grade, 1 explains, 0 was seen and refused

Unjudged pairs are left out. The same text is one premise, and keeps its id. A premise gets an id from its text where it
has none, where BEIR cannot read it (blanks, quotes), or where another text has it. A query gets one, too: the same text
has the same id in every export.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aeenc import values
from aeenc.errors import FailedPrecondition, InvalidArgument
from aeenc.evaluation import Source, gold_of, grades_of
from aeenc.exports.judgements import Judgements, judgements_of
from aeenc.files.whole import whole_folder
from aeenc.trees import EVERYTHING, Accessible, content_id

_READABLE = re.compile(r'[^\s"\x00-\x1f\x7f]+')  # ids of BEIR's files, which are separated by tabs and may be quoted


@dataclass(frozen=True)
class Beir:
    """Counts of an export. `conflicts`: premises both accepted and refused for a query, left out.

    `renamed` premises have an id from their text, since another text has theirs.
    """

    premises: int
    queries: int
    explains: int
    refused: int
    conflicts: int
    renamed: int = 0


def gold_judgements(dataset: Source, split: str) -> dict[str, Judgements]:
    """Reads judgements from a split: a query's children in gold trees explain it, and what is rated above 0."""
    ids = {candidate.text: candidate.id for candidate in dataset.candidates()}
    by_query: dict[str, Judgements] = {}
    for query, gold in gold_of(dataset, split):
        grades = grades_of(gold)
        judged = by_query[query] = Judgements(grades=dict(grades))
        for text, grade in grades.items():
            (judged.positives if grade else judged.negatives)[text] = ids[text]
    return by_query


def write_pairs_as_beir(
    folder: Path | str,
    premises: Iterable[tuple[str, str]],
    pairs: Iterable[values.Pair],
    *,
    split: str,
    grades: bool = False,
) -> Beir:
    """Writes the judgements of pairs; `premises` (id, text) is the corpus they were retrieved from.

    With `grades`, the score of an accepted premise is the grade that its oracle gave. Raises InvalidArgument for one
    outside 0 to 100.
    """
    by_query, conflicts = judgements_of(pairs, grades=grades)
    return write_beir(folder, premises, by_query, split=split, conflicts=conflicts)


def write_beir(
    folder: Path | str,
    premises: Iterable[tuple[str, str]],
    by_query: Mapping[str, Judgements],
    *,
    split: str,
    conflicts: int = 0,
    accessible: Mapping[str, Accessible] | None = None,
) -> Beir:
    """Writes judgements in BEIR's layout. Adds judged premises that are missing from `premises` to the corpus.

    `accessible` says of queries which of `premises` may explain them (default: all). Raises AlreadyExists when `folder`
    holds something, InvalidArgument for a split that cannot be a file name, for a grade that is not whole, and for what
    is accessible and not among `premises`, FailedPrecondition where nothing is judged: BEIR reads neither.
    """
    if not re.fullmatch(r"[\w-]+", split):
        raise InvalidArgument.field("split", f"is {split!r}; use letters, digits, - and _")
    if not any(judged.positives or judged.negatives for judged in by_query.values()):
        raise FailedPrecondition("no premise is judged, and BEIR reads no such folder; judge some first")
    explains = refused = renamed = 0
    with whole_folder(folder) as root:
        names: dict[str, str] = {}  # by text
        taken: set[str] = set()
        (root / "qrels").mkdir()
        with (
            (root / "corpus.jsonl").open("w", encoding="utf-8") as corpus,
            (root / "queries.jsonl").open("w", encoding="utf-8") as queries,
            (root / "qrels" / f"{split}.tsv").open("w", encoding="utf-8") as qrels,
        ):

            def add(premise_id: str, text: str) -> str:
                nonlocal renamed
                if text in names:
                    return names[text]
                name = premise_id if _READABLE.fullmatch(premise_id) else content_id(text)
                renamed += name in taken
                while name in taken:
                    name = content_id(name + text)
                names[text] = name
                taken.add(name)
                corpus.write(json.dumps({"_id": name, "title": "", "text": text}, ensure_ascii=False) + "\n")
                return name

            ids = {premise_id: add(premise_id, text) for premise_id, text in premises}
            qrels.write("query-id\tcorpus-id\tscore\n")
            for query, judged in by_query.items():
                query_id = content_id(query, "query")
                record: dict[str, object] = {"_id": query_id, "text": query}
                record |= _access(query, (accessible or {}).get(query, EVERYTHING), ids)
                queries.write(json.dumps(record, ensure_ascii=False) + "\n")
                for plain, side in ((1, judged.positives), (0, judged.negatives)):
                    for text, premise_id in side.items():
                        grade = judged.grades.get(text, plain)
                        _check_whole(query, text, grade)
                        qrels.write(f"{query_id}\t{add(premise_id, text)}\t{int(grade)}\n")
                explains += len(judged.positives)
                refused += len(judged.negatives)
    return Beir(len(names), len(by_query), explains, refused, conflicts, renamed)


def _access(query: str, access: Accessible, ids: Mapping[str, str]) -> dict[str, object]:
    """Returns what a line says of what may explain its query. Raises InvalidArgument for an unknown premise."""
    if absent := [one for one in filter(None, [access.before_id, *(access.only_ids or ())]) if one not in ids]:
        lost = f"has {absent[0]!r} for {query!r}, the id of none of the premises; correct it"
        raise InvalidArgument.field("accessible", lost)
    before = ids[access.before_id] if access.before_id else ""  # a premise may have no id
    named = {"before": before, "only": [ids[one] for one in access.only_ids or ()]}
    return {name: one for name, one in named.items() if one}


def _check_whole(query: str, text: str, grade: float) -> None:
    """Raises InvalidArgument for a grade that is not a whole number: BEIR reads no other."""
    if not float(grade).is_integer():  # NaN is none
        raise InvalidArgument(
            f"{query!r}: {text!r} has grade {grade:g}, and BEIR reads whole grades only; export without grades, or the "
            "pairs"
        )

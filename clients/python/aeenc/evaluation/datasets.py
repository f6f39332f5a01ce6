"""Data sets in their layouts: EntailmentBank's trees, and rated facts as TextGraphs-2021 or BEIR have them.

BEIR's layout, which BRIGHT and exports of LeanDojo have, too:

    DIR/corpus.jsonl        {"_id": …, "title": …, "text": …}: a premise; a title stands before its text
    DIR/queries.jsonl       {"_id": …, "text": …}; also "before": a corpus-id, "only": a list of them
    DIR/qrels/<split>.tsv   query-id, corpus-id, score: as `read_grades` reads it

A query with `before` may be explained by premises that stand before that one in the corpus, one with `only` by these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path

from aeenc.errors import InvalidArgument
from aeenc.evaluation.textgraphs import RatedDataset, RatedQuery, RatedSet, read_textgraphs, textgraphs_splits
from aeenc.evaluation.trec import read_grades
from aeenc.files.lines import parsed, refuse_half, text_lines
from aeenc.trees.dataset import EVERYTHING, FACTS, Accessible, Candidate, Dataset

Source = Dataset | RatedDataset
Gold = tuple[str, Sequence[str] | Mapping[str, float]]  # a query and its gold premises, as texts, maybe with grades
CORPUS, QUERIES = "corpus.jsonl", "queries.jsonl"
MAX_ONLY = 1024  # premises that are listed for a query


def load_data(directory: Path | str) -> Source:
    """Reads all splits of a directory. Raises NotFound for an unknown layout, InvalidArgument for a malformed file."""
    root = Path(directory)
    if splits := textgraphs_splits(root):
        return RatedDataset({split: read_textgraphs(root, split) for split in splits})
    return RatedDataset(read_beir(root)) if beir_splits(root) else Dataset.load(root)


def splits_in(directory: Path | str) -> tuple[str, ...]:
    """Lists the splits of a directory without reading them. Raises NotFound for an unknown layout."""
    root = Path(directory)
    return textgraphs_splits(root) or beir_splits(root) or Dataset.splits_in(root)


def gold_of(dataset: Source, split: str) -> list[Gold]:
    """Lists the gold queries of a split, with the grades of their premises where it has some."""
    return [*dataset.queries(split)]


def accessible_of(dataset: Source, split: str) -> dict[str, Accessible]:
    """Maps the queries of a split to the premises that may explain them, by id; those not there: all may."""
    return dataset.accessible(split) if isinstance(dataset, RatedDataset) else {}


def grades_of(premises: Sequence[str] | Mapping[str, float]) -> Mapping[str, float]:
    """Returns the grades of gold premises; each has 1 where none are told."""
    return premises if isinstance(premises, Mapping) else dict.fromkeys(premises, 1.0)


def strict_gold(queries: Iterable[Gold]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yields each query's gold premises with their grades, except its own text; leaves out queries without any."""
    for query, premises in queries:
        gold = {text: grade for text, grade in grades_of(premises).items() if text != query}
        if any(gold.values()):
            yield query, gold


def gold_folded(
    queries: Iterable[Gold], candidates: Iterable[Candidate], standing: Mapping[str, str]
) -> Iterator[Gold]:
    """Yields gold queries with the premises that stand for those that say the same, each with its highest grade.

    `standing` has the id of a candidate -> the id of the one that stands for it, as a corpus with `fold_similar` has
    them. Raises InvalidArgument naming a candidate for which none of them stands.
    """
    texts = {one.id: one.text for one in candidates}
    _check_standing(texts, standing)
    stands = {text: texts[standing[name]] for name, text in texts.items()}
    for query, premises in queries:
        gold: dict[str, float] = {}
        for text, grade in grades_of(premises).items():
            gold[stands[text]] = max(grade, gold.get(stands[text], 0.0))
        yield query, gold


def accessible_folded(
    accessible: Mapping[str, Accessible], candidates: Sequence[Candidate], standing: Mapping[str, str]
) -> dict[str, Accessible]:
    """Returns what is accessible where some candidates stand with an earlier one; `standing` as in `gold_folded`.

    Before one of those is what is before the next that stands for itself; where none follows, all is. Raises as
    `gold_folded`.
    """
    names = [one.id for one in reversed(candidates)]
    _check_standing(names, standing)
    following = accumulate(names, lambda end, name: name if standing[name] == name else end, initial="")
    ends = dict(zip(names, [*following][1:], strict=True))
    return {text: replace(one, before_id=ends.get(one.before_id, "")) for text, one in accessible.items()}


def _check_standing(names: Collection[str], standing: Mapping[str, str]) -> None:
    known = set(names)
    if lost := next((name for name in names if standing.get(name) not in known), None):
        raise InvalidArgument(
            f"candidate {lost!r} has no premise in the folded corpus; build that from these candidates again"
        )


def beir_splits(root: Path) -> tuple[str, ...]:
    """Lists the splits of a directory in BEIR's layout without reading them; none for another layout."""
    return tuple(_qrels(root))


def _refuse(_where: str, error: InvalidArgument) -> None:
    raise error


def read_beir(root: Path, refuse: Callable[[str, InvalidArgument], None] = _refuse) -> dict[str, RatedSet]:
    """Reads the splits of a directory in BEIR's layout. Documents without a word are left out.

    Raises InvalidArgument naming file and line, and for a judgement of what is not there. A `refuse` that returns gets
    each of these errors with where it is (`facts`, `queries` or the split). Then a line, document or split at fault is
    left out. A query that says wrongly what is accessible to it stays without that; gold that is not accessible stays.
    """
    facts = {name: text for name, (text, _) in _records(root / CORPUS, partial(refuse, FACTS)).items()}
    queries: dict[str, RatedQuery] = {}
    for name, (text, record) in _records(root / QUERIES, partial(refuse, "queries")).items():
        may = EVERYTHING
        try:
            may = _accessible(root / QUERIES, name, record)
        except InvalidArgument as error:
            refuse("queries", error)
        queries[name] = RatedQuery(name, text, {}, may)
    return {
        split: RatedSet(facts, tuple(_judged(path, facts, queries, partial(refuse, split))))
        for split, path in _qrels(root).items()
    }


def _qrels(root: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted((root / "qrels").glob("[!.]*.tsv"))} if (root / CORPUS).is_file() else {}


def _judged(
    qrels: Path,
    facts: Mapping[str, str],
    queries: Mapping[str, RatedQuery],
    refuse: Callable[[InvalidArgument], None],
) -> Iterator[RatedQuery]:
    places = {text: place for place, text in enumerate(dict.fromkeys(facts.values()))}  # as a corpus has them
    rated: dict[str, dict[str, float]] = {}
    try:
        rated = read_grades(qrels)
    except InvalidArgument as error:
        refuse(error)
    for name, grades in rated.items():
        if name not in queries:
            refuse(InvalidArgument(f"{qrels}: {QUERIES} has no text of query {name!r}; add it, or leave the query out"))
            continue
        try:
            _check_judged(qrels, queries[name], grades, facts, places)
        except InvalidArgument as error:
            refuse(error)
        yield replace(queries[name], grades={one: grade for one, grade in grades.items() if one in facts})


def _check_judged(
    qrels: Path, query: RatedQuery, grades: Mapping[str, float], facts: Mapping[str, str], places: Mapping[str, int]
) -> None:
    """Raises InvalidArgument for gold that the corpus lacks, or that may not explain the query."""
    may = query.accessible
    named = [*(one for one, grade in grades.items() if grade), *filter(None, [may.before_id]), *(may.only_ids or ())]
    if absent := [one for one in named if one not in facts]:
        raise InvalidArgument(
            f"{qrels}: {CORPUS} has no text of {absent[0]!r}, which query {query.id!r} is judged by, or names as what "
            "may explain it; add it, or leave it out"
        )
    end = places[facts[may.before_id]] if may.before_id else len(places)
    only = {facts[one] for one in may.only_ids or facts}
    for one, grade in grades.items():
        if grade and (places[facts[one]] >= end or facts[one] not in only):
            raise InvalidArgument(
                f"{qrels}: {one!r} explains query {query.id!r}, whose `before` or `only` in {QUERIES} leaves it out; "
                "correct one of them"
            )


def _accessible(path: Path, name: str, record: Mapping[str, object]) -> Accessible:
    before, only = record.get("before", ""), record.get("only", [])
    is_empty = any(field in record and not record[field] for field in ("before", "only"))
    is_list = isinstance(only, list) and len(only) <= MAX_ONLY and all(isinstance(one, str) for one in only)
    if is_empty or not isinstance(before, str) or not isinstance(only, list) or not is_list:
        raise InvalidArgument(
            f"{path}: query {name!r}: `before` must be a corpus-id, and `only` a list of 1 to {MAX_ONLY:,} of them; "
            "leave them out where all may explain it"
        )
    return Accessible(before, tuple(only) or None)


def _records(path: Path, refuse: Callable[[InvalidArgument], None]) -> dict[str, tuple[str, dict[str, object]]]:
    """Reads the texts of a file by their ids, each with the object that holds it; those without a word are left out."""
    found: dict[str, tuple[str, dict[str, object]]] = {}
    try:
        for place, line in text_lines(path):
            if line.strip():
                try:
                    name, text, record = _record(place, line, found)
                except InvalidArgument as error:
                    refuse(error)
                else:
                    found[name] = text, record
    except InvalidArgument as error:  # the lines behind it are unreadable as well
        refuse(error)
    return {name: one for name, one in found.items() if one[0]}


def _record(place: str, line: str, earlier: Collection[str]) -> tuple[str, str, dict[str, object]]:
    """Reads the id and the text of a line, and the object that holds them.

    Raises InvalidArgument naming the place, for an id of `earlier` lines, too.
    """
    record = parsed(place, line)
    fields = [record.get(name, "") for name in ("_id", "title", "text")] if isinstance(record, dict) else []
    name, *words = [field for field in fields if isinstance(field, str)] or [""]
    if not name or len(words) < 2 or not isinstance(record, dict):
        raise InvalidArgument(f"{place}: must be an object with `_id` and `text`, strings, as BEIR's files have it")
    text = " ".join(part for part in words if part.strip())
    for written in (name, text):
        refuse_half(place, written)
    if name in earlier:
        raise InvalidArgument(f"{place}: the _id {name!r} stands in an earlier line, too; give each text its own")
    return name, text, record

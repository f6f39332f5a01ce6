"""The two protocols: `strict` drops a candidate with the query's own text, `paper` keeps it (docs/evaluation.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import DataLoss, InvalidArgument, NotFound
from aeenc.evaluation import GradedMetrics, Metrics, average_precision, graded_metrics_of, metrics_of
from aeenc.trees import EVERYTHING, Accessible
from services.trainer.evaluation.ranking import AccessibleOrdinals, Matrix, gold_ranks, ranks_without

Ordinals = NDArray[np.int64]
Ranks = NDArray[np.int64]


@dataclass(frozen=True)
class EvaluationQuery:
    """A query text, the texts of its gold premises, and their grades, all above 0; no grades: each is 1.

    Records do not say what is accessible.
    """

    text: str
    gold: tuple[str, ...]
    grades: tuple[float, ...] = ()
    accessible: Accessible = EVERYTHING

    @classmethod
    def of_record(cls, record: Sequence[Any]) -> Self:
        """Reads what `to_record` wrote."""
        text, gold, grades = (*record, ())[:3]
        return cls(text, tuple(gold), tuple(grades))

    def to_record(self) -> list[Any]:
        """Returns the text, the gold premises and, where there are some, their grades, as JSON has them."""
        return [self.text, list(self.gold), *([list(self.grades)] if self.grades else ())]

    @property
    def every_grade(self) -> tuple[float, ...]:
        """The grade of each gold premise."""
        return self.grades or (1.0,) * len(self.gold)


@dataclass(frozen=True)
class GoldStandard:
    """Distinct queries over the premises of a generation, with the ordinals of gold premises and of their own text.

    `kept` is `gold` without the query's own text, as `strict` ranks it; it may be empty. `grades` belong to
    `gold`; there are none if each is 1. `accessible` says what may be found for each query; none: all.
    """

    queries: Sequence[EvaluationQuery]
    gold: Sequence[Ordinals]
    own: Sequence[int | None]
    grades: Sequence[NDArray[np.float64]] = ()
    accessible: Sequence[AccessibleOrdinals] = ()

    @classmethod
    def of(
        cls,
        queries: Sequence[EvaluationQuery],
        ordinal_by_text: Mapping[str, int],
        ordinal_by_id: Mapping[str, int] | None = None,
    ) -> GoldStandard:
        """Looks distinct queries up, and by id what is accessible to them; without ids, everything is.

        Raises InvalidArgument for no queries, or a gold premise outside the corpus or not accessible, NotFound for an
        id that the corpus lacks.
        """
        if not queries:
            raise InvalidArgument("there are no queries to evaluate; give at least one with a gold premise")
        gold = gold_ordinals(queries, ordinal_by_text)
        grades = [np.array(query.every_grade) for query in queries]
        own = [ordinal_by_text.get(query.text) for query in queries]
        accessible: list[AccessibleOrdinals] = []
        if ordinal_by_id is not None and any(query.accessible != EVERYTHING for query in queries):
            each = zip(queries, gold, strict=True)
            accessible = [accessible_to(query, ordinals, ordinal_by_id) for query, ordinals in each]
            own = [
                ordinal if ordinal is not None and may.has(np.array([ordinal])).all() else None
                for ordinal, may in zip(own, accessible, strict=True)
            ]
        found = cls(queries, gold, own, grades if any((one != 1).any() for one in grades) else (), accessible)
        if not any(len(ordinals) for ordinals in found.kept):
            raise InvalidArgument("every query's only gold premise is its own text; give queries with other premises")
        return found

    def part(self, begin: int, end: int) -> GoldStandard:
        """Selects some of the queries in a row."""
        return replace(self, **{name: each[begin:end] for name, each in vars(self).items()})

    @property
    def kept(self) -> list[Ordinals]:
        """The gold ordinals that are not the query's own."""
        return [gold[others] for gold, others in zip(self.gold, self.others, strict=True)]

    @property
    def kept_grades(self) -> list[NDArray[np.float64]]:
        """The grades of `kept`; none if each is 1."""
        return [grades[others] for grades, others in zip(self.grades, self.others, strict=True)] if self.grades else []

    @property
    def others(self) -> list[NDArray[np.bool_]]:
        """Marks the gold premises (g,) of each query that are not its own text."""
        own = (-1 if ordinal is None else ordinal for ordinal in self.own)
        return [ordinals != mine for ordinals, mine in zip(self.gold, own, strict=True)]


@dataclass(frozen=True)
class Report:
    """Quality of one system on one set of queries; `paper` is None if not requested, `graded` (strict) without grades.

    `average_precisions` (q,) is strict, for paired tests. Ranks are those of each query's gold premises, in order;
    strict ones leave out the query's own text, so that a query may have none.
    """

    strict: Metrics
    paper: Metrics | None
    candidates: int
    queries: int
    pairs: int
    average_precisions: NDArray[np.float64]
    strict_ranks: Sequence[Ranks] = field(default=(), repr=False)
    paper_ranks: Sequence[Ranks] = field(default=(), repr=False)
    graded: GradedMetrics | None = None

    @classmethod
    def of(
        cls, standard: GoldStandard, strict: Sequence[Ranks], paper: Sequence[Ranks] | None, *, candidates: int
    ) -> Report:
        """Computes the report: ranks `strict[i]` belong to `standard.kept[i]`, `paper[i]` to `standard.gold[i]`."""
        ranked = [ranks for ranks in strict if len(ranks)]
        grades = zip(strict, standard.kept_grades, strict=True) if standard.grades else ()
        graded = [(ranks.tolist(), own.tolist()) for ranks, own in grades if len(ranks)]
        return cls(
            strict=metrics_of(ranked),
            paper=metrics_of(paper) if paper else None,
            candidates=candidates,
            queries=len(standard.queries),
            pairs=sum(len(ordinals) for ordinals in standard.gold),
            average_precisions=np.array([average_precision(ranks) for ranks in ranked]),
            strict_ranks=strict,
            paper_ranks=paper or (),
            graded=graded_metrics_of([one for one, _ in graded], [own for _, own in graded]) if graded else None,
        )


def merge_queries(
    queries: Sequence[EvaluationQuery], stored: Callable[[str], str] = lambda text: text
) -> list[EvaluationQuery]:
    """Merges equal queries, in order of first appearance, with the union of their gold premises as they are `stored`.

    Of two grades of a premise, the higher one counts. Raises InvalidArgument where not the same is accessible to both.
    """
    gold: dict[str, dict[str, float]] = {}
    accessible: dict[str, Accessible] = {}
    for query in queries:
        grades = gold.setdefault(query.text, {})
        if accessible.setdefault(query.text, query.accessible) != query.accessible:
            raise InvalidArgument(
                f"query {query.text[:80]!r} is there twice with other before_id or only_ids; give it once"
            )
        for premise, grade in zip(query.gold, query.every_grade, strict=True):
            name = stored(premise)
            grades[name] = max(grade, grades.get(name, 0.0))
    return [
        EvaluationQuery(
            text,
            tuple(grades),
            tuple(grades.values()) if any(one != 1 for one in grades.values()) else (),
            accessible[text],
        )
        for text, grades in gold.items()
    ]


def accessible_to(query: EvaluationQuery, gold: Ordinals, ordinal_by_id: Mapping[str, int]) -> AccessibleOrdinals:
    """Looks up what is accessible to a query with these gold ordinals.

    Raises NotFound for an id that the corpus lacks, InvalidArgument for a gold premise that is not accessible.
    """
    told = query.accessible
    named = [*filter(None, [told.before_id]), *(told.only_ids or ())]
    if absent := [one for one in named if one not in ordinal_by_id]:
        raise NotFound(f"premise {absent[0]!r}, by which query {query.text[:80]!r} says what is accessible, is unknown")
    found = AccessibleOrdinals(
        ordinal_by_id[told.before_id] if told.before_id else None,
        np.array([ordinal_by_id[one] for one in told.only_ids]) if told.only_ids else None,
    )
    if not (may := found.has(gold)).all():
        raise InvalidArgument(
            f"gold premise {query.gold[int(np.argmin(may))][:80]!r} of query {query.text[:80]!r} is not accessible: it "
            "is not before `before_id`, or not in `only_ids`; leave it out, or widen these"
        )
    return found


def gold_ordinals(queries: Sequence[EvaluationQuery], ordinal_by_text: Mapping[str, int]) -> list[Ordinals]:
    """Looks each query's gold premises up. Raises InvalidArgument naming one outside the corpus."""
    ordinals = []
    for query in queries:
        for premise in query.gold:
            if premise not in ordinal_by_text:
                raise InvalidArgument(
                    f"gold premise {premise[:80]!r} of query {query.text[:80]!r} is not in the corpus; "
                    "build the corpus from the data set that the queries come from"
                )
        if not query.gold:
            raise InvalidArgument(f"query {query.text[:80]!r} has no gold premise; leave it out")
        ordinals.append(np.array([ordinal_by_text[premise] for premise in query.gold], dtype=np.int64))
    return ordinals


def evaluate(
    queries: Sequence[EvaluationQuery],
    query_vectors: NDArray[np.float32],
    premise_vectors: Matrix,
    ordinal_by_text: Mapping[str, int],
) -> Report:
    """Ranks all premises for each distinct query and reports both protocols.

    `query_vectors` (q, dim) belong to `queries`, which are distinct (`merge_queries`); `premise_vectors` (n, dim).
    A query whose only gold premise is its own text is left out of `strict`.
    """
    standard = GoldStandard.of(queries, ordinal_by_text)
    return Report.of(standard, *ranks_of(standard, query_vectors, premise_vectors), candidates=len(premise_vectors))


def ranks_of(
    standard: GoldStandard, query_vectors: NDArray[np.float32], premise_vectors: Matrix
) -> tuple[list[Ranks], list[Ranks]]:
    """Ranks the gold premises of each query under both protocols, `strict` first, by its vector."""
    if not np.isfinite(query_vectors).all():
        raise DataLoss("a query vector is not finite; evaluate another checkpoint")
    paper = gold_ranks(query_vectors, premise_vectors, standard.gold, standard.accessible)
    each = zip(paper, standard.gold, standard.own, query_vectors, strict=True)
    return [ranks_without(ranks, gold, own, query, premise_vectors) for ranks, gold, own, query in each], paper

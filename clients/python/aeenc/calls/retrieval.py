"""Retrieval as values: how premises are asked for, the hits, and long rankings of many texts by call after call.

Opens no connection; `aeenc.index` calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import takewhile
from operator import eq
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from aeenc import errors, values
from aeenc.calls.encoding import Precision, precision_name, selector, truncation
from aeenc.calls.inputs import (
    allowed,
    at_least_one,
    check_accessible,
    listed,
    refuse_unknown,
)
from aeenc.v1 import index_pb2, types_pb2
from aeenc.values.writing import as_message, message, message_of, mirrored, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from aeenc.trees import Accessible

TEXTS = 16  # a call of a ranking, so that its answer stays well below a message's limit
PAIRS = 512  # a call that re-ranks, about

FusionMethod = Literal["min_max", "reciprocal_rank"]
Mode = Literal["dense", "lexical", "hybrid", "iterative_lexical"]


def premise_filter(
    splits: Sequence[str] | None, only_ids: Sequence[str] | None, tags: Sequence[str] | None, before_id: str | None
) -> index_pb2.PremiseFilter | None:
    """Builds the filter of a call; None without one. Raises InvalidArgument for an empty list or clause of tags."""
    made = message(
        index_pb2.PremiseFilter,
        any_split=allowed(splits, "splits"),
        only_ids=allowed(only_ids, "only_ids"),
        before_id=before_id,
        any_clause=[_clause(number, one) for number, one in enumerate(allowed(tags, "tags"))],
    )
    return made if made.ByteSize() else None


def _clause(number: int, text: object) -> index_pb2.TagClause:
    names = [name.strip() for name in text.split(",")] if isinstance(text, str) else []
    if not names or not all(name.removeprefix("-") for name in names):
        remedy = "give tags with commas between them, such as 'physics,-draft'; - is for one that it must not have"
        raise errors.InvalidArgument.field(f"tags[{number}]", f"is {text!r:.60}; {remedy}")
    wanted = [name for name in names if not name.startswith("-")]
    barred = [name.removeprefix("-") for name in names if name.startswith("-")]
    return message_of(f"tags[{number}]", index_pb2.TagClause, all_of=wanted, none_of=barred)


@dataclass(frozen=True)
class Fusion:
    """The fusion of both rankings in mode hybrid. `lexical_weight` is BM25's share, 0 to 1; None: the index's.

    `features` orders the first 100 premises anew, or 200 with a `..._many`, by named features times these weights, as
    `aeenc tune-retrieval` finds them; mode dense takes `first`, `rank` and those that begin with `vectors_`.
    """

    method: FusionMethod = "min_max"
    lexical_weight: float | None = None
    features: Mapping[str, float] = field(default_factory=dict, hash=False)

    def to_proto(self) -> index_pb2.Fusion:
        """Converts to the message."""
        return mirrored(index_pb2.Fusion, self, method=cast("Any", self.method) or "")


@dataclass(frozen=True)
class Hit:
    """One premise found: its id, its text and its score, a cosine in mode dense."""

    id: str
    text: str
    score: float


@dataclass(frozen=True, eq=False)  # an array has no one answer to ==
class SearchResult:
    """The premises found for each vector, best first: `ids[i]` with `scores[i]` (float32).

    `timings` are there where the call asked for them.
    """

    ids: list[list[str]]
    scores: list[NDArray[np.float32]]
    generation: str
    space_id: str
    exact: bool
    timings: values.Timings | None = None


@dataclass(frozen=True)
class Retrieved:
    """The premises found for each text, best first, and their origin: encoder, generation, cross-encoder.

    `model_version` and `rerank_versions` are empty where no such model took part. `unknown_splits` are the splits asked
    for that no premise of the generation has, `unknown_tags` the tags; empty also where the index does not know them.
    `precision` is that of the query encoder; where `exact` is false, premises may be missing.
    """

    results: list[list[Hit]]
    model_version: str
    space_id: str
    generation: str
    rerank_versions: tuple[str, ...] = ()
    unknown_splits: tuple[str, ...] = ()
    unknown_tags: tuple[str, ...] = ()
    precision: str = ""
    exact: bool = True
    _timings: types_pb2.Timings = field(default_factory=types_pb2.Timings, repr=False, compare=False)

    @cached_property
    def timings(self) -> values.Timings:
        """How long each step took. It is read on demand, because loading the values takes longer than most answers."""
        return values.Timings.from_message(self._timings)

    @classmethod
    def of(cls, response: index_pb2.RetrieveResponse) -> Retrieved:
        """Reads the index's answer."""
        return cls(
            results=[
                [Hit(p.premise.id, p.premise.text, p.score) for p in found.premises] for found in response.results
            ],
            model_version=response.model_version,
            space_id=response.space_id,
            generation=response.generation,
            rerank_versions=tuple(response.rerank_versions),
            precision=precision_name(response.precision),
            exact=response.exact,
            unknown_splits=tuple(response.unknown_splits),
            unknown_tags=tuple(response.unknown_tags),
            _timings=response.timings,
        )

    def __iter__(self) -> Iterator[list[Hit]]:
        return iter(self.results)

    def __getitem__(self, position: int) -> list[Hit]:
        return self.results[position]

    def __len__(self) -> int:
        return len(self.results)


@dataclass(frozen=True)
class Retrieval:
    """How premises are ranked, as `IndexClient.retrieve` documents it."""

    mode: Mode = "dense"
    fusion: Fusion | None = None
    prior: float = 0.0
    rerank: int = 0
    negative_feedback: float = 0.0
    rerank_weight: float = 0.0
    rerank_versions: Sequence[str] = ()

    def to_proto(self) -> index_pb2.RetrievalOptions:
        """Converts to the message."""
        return mirrored(
            index_pb2.RetrievalOptions,
            self,
            mode=cast("Any", self.mode) or "",  # None would leave it unspecified
            fusion=as_message(self.fusion, index_pb2.Fusion, "fusion") if self.fusion is not None else None,
        )


@dataclass(frozen=True, kw_only=True)
class RetrieveOptions(Retrieval):
    """All options of a call of Retrieve, as `IndexClient.retrieve` documents them: to keep, and to ask with often."""

    k: int = 10
    label: str | None = None
    version: str | None = None
    drop_self: bool = True
    exclude: Sequence[str] = ()
    splits: Sequence[str] | None = None
    only_ids: Sequence[str] | None = None
    before_id: str = ""
    tags: Sequence[str] | None = None
    generation: str = ""
    truncate: bool = False
    precision: Precision | None = None
    routing_key: str = ""
    exact: bool = False
    nprobe: int = 0
    ef_search: int = 0

    def __post_init__(self) -> None:
        for name in ("exclude", "splits", "only_ids", "tags", "rerank_versions"):  # several requests go through them
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(listed(given, name)))

    @classmethod
    def of(cls, retrieval: Retrieval | None, changes: Mapping[str, Any]) -> RetrieveOptions:
        """Copies options, some of them changed. Raises InvalidArgument for one that Retrieve does not take."""
        if not isinstance(retrieval, Retrieval | None):
            raise errors.InvalidArgument.field("retrieval", f"is {shown(retrieval)}; give RetrieveOptions")
        refuse_unknown(changes, CALL_OPTIONS)
        return cls(**{**(vars(retrieval) if retrieval else {}), **changes})

    def request(
        self, corpus: str, texts: Sequence[str], accepted: Sequence[Sequence[str]] = ()
    ) -> index_pb2.RetrieveRequest:
        """Builds the request. Raises InvalidArgument, naming the option and the item, for what it cannot hold."""
        accepted = listed(accepted, "accepted")  # one that can be gone through only once is gone through twice here
        return mirrored(
            index_pb2.RetrieveRequest,
            self,
            corpus=corpus,
            texts=texts,
            options=self.to_proto(),
            accepted=[
                message_of(f"accepted[{number}]", types_pb2.PremiseSet, premise_ids=ids)
                for number, ids in enumerate(accepted)
            ],
            model=selector(self.label, self.version),
            truncate=truncation(self.truncate),
            **self.of_search(),
        )

    def of_search(self) -> dict[str, Any]:
        """Returns the fields that the request has in common with one of Search. Raises InvalidArgument as `request`."""
        return {
            "k": self.k,
            "exclude_ids": self.exclude,
            "filter": premise_filter(self.splits, self.only_ids, self.tags, self.before_id),
            "generation": self.generation,
            "params": mirrored(index_pb2.SearchParams, self),
        }


class SearchKeywords(TypedDict, total=False):
    """Those of RetrieveOptions that a search by vectors has, as keyword arguments."""

    k: int
    exclude: Sequence[str]
    splits: Sequence[str] | None
    only_ids: Sequence[str] | None
    before_id: str
    tags: Sequence[str] | None
    generation: str
    exact: bool
    nprobe: int
    ef_search: int


class RetrieveKeywords(SearchKeywords, total=False):
    """RetrieveOptions as keyword arguments, for editors and type checkers."""

    mode: Mode
    fusion: Fusion | None
    prior: float
    rerank: int
    negative_feedback: float
    rerank_weight: float
    rerank_versions: Sequence[str]
    label: str | None
    version: str | None
    drop_self: bool
    truncate: bool
    precision: Precision | None
    routing_key: str


CALL_OPTIONS = frozenset(RetrieveKeywords.__annotations__)
SEARCH_OPTIONS = frozenset(SearchKeywords.__annotations__)


Ask = Callable[[index_pb2.RetrieveRequest], Awaitable[Retrieved]]


@dataclass(frozen=True)
class Rankings:
    """The premises ranked for each text, best first, by one query encoder and one cross-encoder ("": none).

    All are of one `generation`, the active one at the first call unless the caller names another.
    """

    results: list[list[Hit]]
    model_version: str
    rerank_versions: tuple[str, ...]
    generation: str = ""


async def rank(
    ask: Ask,
    corpus: str,
    options: RetrieveOptions,
    texts: Sequence[str],
    accepted: Sequence[Sequence[str]] = (),
    accessible: Sequence[Accessible] = (),
) -> Rankings:
    """Ranks the first k premises for each text: with re-ranking its first n, then the others in their former order.

    `accessible` has for each text what may be found for it; texts of one call have it in common. Cuts texts that are
    too long. Raises as Retrieve does, and FailedPrecondition when the cross-encoder changes.
    """
    texts, n = listed(texts, "texts"), options.rerank
    apart = listed(accepted, "accepted"), listed(accessible, "accessible")
    check_accessible(apart[1])
    for name, of_texts in zip(("accepted", "accessible"), apart, strict=True):
        if of_texts and len(of_texts) != len(texts):
            problem = f"has {len(of_texts)} entries for {len(texts)} texts; give one each, or none"
            raise errors.InvalidArgument.field(name, problem)
    if apart[1] and (options.only_ids is not None or options.before_id):
        raise errors.InvalidArgument.field("accessible", "says what only_ids and before_id say; leave it or them out")
    options = replace(options, truncate=True)
    if not n:
        return await _ask(ask, corpus, options, texts, TEXTS, *apart)
    plain = replace(options, rerank=0, rerank_weight=0.0, rerank_versions=())
    first = await _ask(ask, corpus, plain, texts, TEXTS, *apart)
    version = first.model_version or options.version
    pinned = replace(
        options, k=n, label=None if version else options.label, version=version, generation=first.generation
    )
    anew = await _ask(ask, corpus, pinned, texts, max(1, PAIRS // at_least_one(n, "rerank")), *apart)
    results = [_continued(head, whole)[: options.k] for head, whole in zip(anew.results, first.results, strict=True)]
    return Rankings(results, first.model_version, anew.rerank_versions, first.generation)


async def _ask(
    ask: Ask,
    corpus: str,
    options: RetrieveOptions,
    texts: Sequence[str],
    together: int,
    accepted: Sequence[Sequence[str]],
    accessible: Sequence[Accessible],
) -> Rankings:
    results: list[list[Hit]] = []
    reranked_by = tuple[str, ...]()
    while len(results) < len(texts):
        part = slice(len(results), len(results) + together)
        if accessible:
            alike = takewhile(partial(eq, accessible[part.start]), accessible[part])
            part = slice(part.start, part.start + sum(1 for _ in alike))
            options = replace(options, **vars(accessible[part.start]))
        try:
            answer = await ask(options.request(corpus, texts[part], accepted[part]))
        except errors.TooLarge:  # premises are long
            if len(texts[part]) == 1:
                raise
            together = len(texts[part]) // 2
            continue
        # the version and the generation that answered first answer all
        version, generation = answer.model_version or options.version, answer.generation or options.generation
        options = replace(options, label=None if version else options.label, version=version, generation=generation)
        if reranked_by and answer.rerank_versions != reranked_by:
            raise errors.FailedPrecondition(
                f"the cross-encoder changed from {' and '.join(reranked_by)} to {' and '.join(answer.rerank_versions)} "
                "meanwhile; ask again"
            )
        reranked_by = answer.rerank_versions
        results += answer.results
    return Rankings(results, options.version or "", reranked_by, options.generation)


def _continued(head: list[Hit], whole: list[Hit]) -> list[Hit]:
    """Appends the rest of the first ranking to a re-ranked head, with scores that go on below the head's."""
    seen = {hit.id for hit in head}
    lowest = min((hit.score for hit in head), default=0.0)
    rest = [hit for hit in whole if hit.id not in seen]
    return [*head, *(Hit(hit.id, hit.text, lowest - place) for place, hit in enumerate(rest, start=1))]

"""From vectors or texts to premises: checks the request, has texts encoded, searches, and looks premises up.

A text is encoded by the query encoder that the caller's label names in the space of the generation searched, so that a
corpus of another space needs no other call. Search asks nobody else; only texts need the encoder.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from aeenc.encoded import Precision
from services.index.backend import Searched
from services.index.catalogue import Catalogue
from services.index.engine import SearchEngine
from services.index.query_encoder import QueryEncoder
from services.index.search import Found, norms_of
from services.kit.checks import Limits, check_count, check_k, check_texts

UNIT_TOLERANCE = 1e-2  # half precision keeps a unit vector well within


@dataclass(frozen=True)
class Scope:
    """Which premises may be returned, and how many a query."""

    corpus: str
    k: int
    exclude_ids: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    generation: str = ""


@dataclass(frozen=True)
class TextQuery:
    """Texts to find premises for, and how. `version` or `label` names the query encoder; None: the label `stable`.

    `precision`, `routing_key` and `request_id` are the encoder's matter and passed on; empty ones leave it the choice.
    """

    texts: tuple[str, ...]
    scope: Scope
    label: str | None = None
    version: str | None = None
    drop_self: bool = True
    truncate: bool = False
    mode: str = "DENSE"
    accepted: bool = False
    rerank: int = 0
    prior: float = 0.0
    precision: Precision | None = None
    routing_key: str = ""
    request_id: str = ""


@dataclass(frozen=True)
class Answer:
    """What was found for each query, in the generation searched. Times in seconds; `version` encoded the texts."""

    found: list[Found]
    served: Searched
    total_s: float
    queue_s: float
    compute_s: float
    encode_s: float = 0.0
    version: str = ""
    exact: bool = True


class Retrieval:
    """Answers Search and Retrieve."""

    def __init__(self, catalogue: Catalogue, engine: SearchEngine, encoder: QueryEncoder, limits: Limits) -> None:
        self._catalogue = catalogue
        self._engine = engine
        self._encoder = encoder
        self._limits = limits

    async def search(
        self, scope: Scope, vectors: NDArray[np.float32], space_id: str, *, deadline_s: float | None = None
    ) -> Answer:
        """The nearest premises of each vector (n, dim), which belong to `space_id`.

        Raises InvalidArgument for a bad scope or vector, SpaceMismatch for another space, NotFound, Overloaded.
        """
        started = time.perf_counter()
        check_count(len(vectors), self._limits, "vectors")
        check_scope(scope, self._limits)
        check_finite(vectors)
        served = await self._catalogue.resolve(scope.corpus, scope.generation)
        check_space(served, space_id)
        check_dimension(served, vectors.shape[1])
        check_unit(vectors)
        selection = served.select(scope.splits, scope.exclude_ids)
        outcome = await self._engine.search(served, vectors, scope.k, selection, deadline_s=deadline_s)
        total_s = time.perf_counter() - started
        return Answer(outcome.found, served, total_s, outcome.queue_s, outcome.compute_s)

    async def retrieve(self, query: TextQuery, *, deadline_s: float | None = None) -> Answer:
        """The premises that best explain each text.

        Raises what `search` and the encoder raise, Unimplemented for what this build does not have, Unavailable naming
        the encoder when it does not answer.
        """
        started = time.perf_counter()
        check_implemented(query)
        check_texts(query.texts, self._limits)
        check_scope(query.scope, self._limits)
        served = await self._catalogue.resolve(query.scope.corpus, query.scope.generation)
        encoded = await self._encoder.encode(query, served.generation.space_id, deadline_s=deadline_s)
        encode_s = time.perf_counter() - started
        check_space(served, encoded.space_id)
        check_dimension(served, encoded.vectors.shape[1])
        selection = served.select(query.scope.splits, query.scope.exclude_ids)
        k = query.scope.k + int(query.drop_self)  # texts are distinct, so at most one premise is the query's own
        left_s = None if deadline_s is None else deadline_s - encode_s
        outcome = await self._engine.search(served, encoded.vectors, k, selection, deadline_s=left_s)
        found = outcome.found
        if query.drop_self:
            own = served.generation.ordinal_by_text
            found = [_without(one, own.get(text), query.scope.k) for text, one in zip(query.texts, found, strict=True)]
        total_s = time.perf_counter() - started
        return Answer(found, served, total_s, outcome.queue_s, outcome.compute_s, encode_s, encoded.model_version)


def check_scope(scope: Scope, limits: Limits) -> None:
    """Refuses a k and an exclude list beyond the limits."""
    check_k(scope.k, limits)
    if scope.exclude_ids:
        check_count(len(scope.exclude_ids), limits, "exclude_ids")


def check_implemented(query: TextQuery) -> None:
    """Refuses what this build does not have, and names what to use."""
    if query.mode != "DENSE":
        raise errors.Unimplemented(f"mode {query.mode} is not in this build; use RETRIEVE_MODE_DENSE")
    if query.rerank:
        raise errors.Unimplemented(f"rerank {query.rerank} is not in this build; set it to 0 for the dense ranking")
    if query.prior:
        raise errors.Unimplemented(f"prior {query.prior:g} is not in this build; set it to 0 for the dense ranking")
    if query.accepted:
        raise errors.Unimplemented("accepted premises are not in this build; use exclude_ids to leave them out")


def check_finite(vectors: NDArray[np.float32]) -> None:
    """Refuses NaN and infinity, naming the first row."""
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise errors.InvalidArgument.field(f"vectors[{bad[0]}]", "holds NaN or infinity; send finite numbers")


def check_unit(vectors: NDArray[np.float32]) -> None:
    """Refuses vectors that are not of unit length: their inner products would be no cosines."""
    norms = norms_of(vectors)
    bad = np.flatnonzero(np.abs(norms - 1.0) > UNIT_TOLERANCE)
    if len(bad):
        raise errors.InvalidArgument.field(
            f"vectors[{bad[0]}]", f"has length {norms[bad[0]]:.4g}; scale it to 1, as Encode answers it"
        )


def check_dimension(served: Searched, dim: int) -> None:
    """Refuses vectors of another length than the corpus's."""
    own = served.generation
    if dim != own.dim:
        raise errors.InvalidArgument.field(
            "vectors.dim",
            f"vector has {dim} dimensions, corpus {own.corpus!r} has {own.dim}; encode in its space",
        )


def check_space(served: Searched, space_id: str) -> None:
    """Refuses vectors of another space than the generation's."""
    own = served.generation
    if not space_id:
        raise errors.InvalidArgument.field("space_id", "is empty; send the space_id that Encode answered")
    if space_id != own.space_id:
        raise errors.SpaceMismatch(
            f"vectors are of space {space_id}, generation {own.id} of corpus {own.corpus!r} is of {own.space_id}; "
            "encode in that space, or activate a generation of yours",
            metadata={"vectors": space_id, "corpus": own.space_id},
        )


def _without(found: Found, ordinal: int | None, k: int) -> Found:
    keep = found.ordinals != (-1 if ordinal is None else ordinal)
    return Found(found.ordinals[keep][:k], found.scores[keep][:k])

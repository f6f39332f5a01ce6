"""Checks of vectors and text queries before a search. Each refuses with the field, the value and the remedy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.index.ranking.features import NAMES as FEATURES
from services.index.ranking.features import VECTOR_NAMES as VECTOR_FEATURES
from services.index.values import WITHOUT_ENCODER, GenerationView, Scope, TextQuery, VectorQuery
from services.kit.limits import Limits, check_count, check_k, check_texts

UNIT_TOLERANCE = 1e-2  # a unit vector in half precision stays well within it
LEAST_SQUARE, LARGEST_SQUARE = (1 - UNIT_TOLERANCE) ** 2, (1 + UNIT_TOLERANCE) ** 2
SEARCH_HIT_BYTES = 7  # at least: an id of one letter with its two bytes of protobuf, and a float32
RETRIEVE_HIT_BYTES = 13  # at least: a message of an id, a text and a score
ENSEMBLE = 8  # cross-encoders at most
CLAUSES = 64  # of a filter, and tags of a clause, at most


def check_scope(scope: Scope, limits: Limits) -> None:
    """Refuses a k, a list of ids or splits, or clauses of tags beyond the limits."""
    check_k(scope.k, limits)
    lists = {
        "exclude_ids": scope.exclude_ids,
        "filter.only_ids": scope.only_ids,
        "filter.any_split": scope.splits,
    }
    for name, names in lists.items():
        if names:
            check_count(len(names), limits, name)
    sizes = [len(wanted) + len(unwanted) for wanted, unwanted in scope.clauses]
    if len(sizes) > CLAUSES or not all(1 <= size <= CLAUSES for size in sizes):
        raise errors.InvalidArgument.field(
            "filter.any_clause",
            f"has {len(sizes):,} clauses with {', '.join(map(str, sizes[:8]))} tags; give up to {CLAUSES} clauses of 1 "
            f"to {CLAUSES} tags, or store a tag for what they select",
        )


def check_answer(texts: int, k: int, rows: int, hit_bytes: int, limits: Limits) -> None:
    """Refuses a call whose answer cannot fit a message: each of its hits takes at least `hit_bytes`.

    Of a call that re-ranks, `k` is how many it re-ranks: memory holds these for every text.
    """
    hits, most = texts * min(k, rows), limits.message_bytes // hit_bytes
    if hits > most:
        raise errors.TooLarge(
            f"{texts:,} queries of {k:,} premises each are {hits:,} hits, and an answer of {limits.message_bytes:,} "
            f"bytes holds at most {most:,}; ask for fewer at once, for a smaller k, or re-rank fewer"
        )


def check_limits(query: VectorQuery, limits: Limits) -> None:
    """Refuses no vectors, too many, or a scope beyond the limits."""
    check_count(len(query.vectors), limits, "vectors")
    check_scope(query.scope, limits)


def check_vector_query(query: VectorQuery, served: GenerationView) -> None:
    """Refuses vectors that cannot be compared with a generation's."""
    check_vectors(served, query.vectors, query.space_id)
    check_unit(query.vectors)


def check_unit(vectors: NDArray[np.float32]) -> None:
    """Refuses vectors that are not finite or not of unit length: their inner products would not be cosines."""
    for number, row in enumerate(vectors):
        square = float(row.dot(row))  # float32 is exact enough for a tolerance of 1e-2
        if LEAST_SQUARE <= square <= LARGEST_SQUARE:
            continue
        if not math.isfinite(square):
            raise errors.InvalidArgument.field(f"vectors[{number}]", "holds NaN or infinity; send finite numbers")
        raise errors.InvalidArgument.field(
            f"vectors[{number}]", f"has length {math.sqrt(square):.4g}; scale it to 1, as Encode returns it"
        )


def check_space(served: GenerationView, space_id: str) -> None:
    """Refuses a space other than the generation's."""
    own = served.generation
    if not space_id:
        raise errors.InvalidArgument.field("space_id", "is empty; send the space_id that Encode returned")
    if space_id != own.space_id:
        raise errors.SpaceMismatch(
            f"vectors are of space {space_id}, generation {own.id} of corpus {own.corpus!r} is of {own.space_id}; "
            "encode in that space, or activate a generation of that space",
            metadata={"vectors": space_id, "corpus": own.space_id},
        )


def check_vectors(served: GenerationView, vectors: NDArray[np.float32], space_id: str) -> None:
    """Refuses vectors (n, dim) of another space or dimension than the generation's."""
    check_space(served, space_id)
    dim, own = vectors.shape[1], served.generation
    if dim != own.dim:
        raise errors.InvalidArgument.field(
            "vectors.dim",
            f"vector has {dim} dimensions, corpus {own.corpus!r} has {own.dim}; encode in its space",
        )


def check_text_query(query: TextQuery, limits: Limits) -> None:
    """Refuses texts, a scope, shares, a re-ranking or accepted premises beyond the limits or of no use together."""
    check_texts(query.texts, limits)
    check_scope(query.scope, limits)
    if not 0.0 <= query.lexical_weight <= 1.0:
        raise errors.InvalidArgument.field(
            "fusion.lexical_weight", f"{query.lexical_weight:g} is not within 0 and 1; give the share of BM25"
        )
    if not 0.0 <= query.prior <= 1.0:
        raise errors.InvalidArgument.field("prior", f"{query.prior:g} is not within 0 and 1; give its share")
    if query.prior and query.mode == "ITERATIVE_LEXICAL":
        raise errors.InvalidArgument.field(
            "prior", "cannot be added to scores of different rounds; use mode LEXICAL, or set it to 0"
        )
    if not 0.0 <= query.negative_feedback <= 1.0:
        raise errors.InvalidArgument.field(
            "negative_feedback", f"{query.negative_feedback:g} is not within 0 and 1; give its share"
        )
    if query.negative_feedback and query.mode in WITHOUT_ENCODER:
        raise errors.InvalidArgument.field(
            "negative_feedback", f"changes vectors, and mode {query.mode} has none; use DENSE or HYBRID, or 0"
        )
    _check_features(query)
    _check_reranking(query, limits)
    if query.accepted and len(query.accepted) != len(query.texts):
        raise errors.InvalidArgument.field(
            "accepted", f"has {len(query.accepted)} lists for {len(query.texts)} texts; give one for each text, or none"
        )
    if any(len(ids) > limits.items for ids in query.accepted):
        raise errors.InvalidArgument.field("accepted", f"has over {limits.items:,} ids for a text; give fewer")


def check_accepted(served: GenerationView, text: int, unknown: Sequence[str]) -> None:
    """Refuses ids accepted for the text at position `text` that the generation does not have."""
    if unknown:
        raise errors.InvalidArgument.field(
            f"accepted[{text}].premise_ids",
            f"{unknown[0]!r} is not a premise of generation {served.id}; send ids that Retrieve returned",
        )


def _check_features(query: TextQuery) -> None:
    known = VECTOR_FEATURES if query.mode == "DENSE" else FEATURES
    for name, weight in query.features.items():
        if name not in known:
            raise errors.InvalidArgument.field(
                "fusion.features", f"has {name!r}; mode {query.mode} has {', '.join(known)}"
            )
        if not math.isfinite(weight):
            raise errors.InvalidArgument.field("fusion.features", f"{name} is {weight:g}; give a finite weight")
    if query.features and query.mode in WITHOUT_ENCODER:
        raise errors.InvalidArgument.field(
            "fusion.features", f"order what DENSE and HYBRID find, and the mode is {query.mode}; use those, or none"
        )


def _check_reranking(query: TextQuery, limits: Limits) -> None:
    if query.rerank and not query.scope.k <= query.rerank <= limits.k:
        raise errors.InvalidArgument.field(
            "rerank", f"is {query.rerank}; give k ({query.scope.k}) to {limits.k:,}, or 0 for none"
        )
    if query.rerank_weight:
        _check_rerank_weight(query)
    if query.rerank_versions:
        _check_ensemble(query)


def _check_ensemble(query: TextQuery) -> None:
    versions = query.rerank_versions
    if not len(set(versions)) == len(versions) <= ENSEMBLE:
        raise errors.InvalidArgument.field(
            "rerank_versions", f"has {', '.join(versions)}; give at most {ENSEMBLE} different versions"
        )
    if not query.rerank:
        raise errors.InvalidArgument.field(
            "rerank_versions", "are given and rerank is 0; say how many premises to re-rank, or leave them out"
        )
    if query.rerank_weight and len(versions) > 1:
        raise errors.InvalidArgument.field(
            "rerank_weight", f"is {query.rerank_weight:g}; an ensemble ranks by its sum of ranks alone, set it to 0"
        )


def _check_rerank_weight(query: TextQuery) -> None:
    weight = query.rerank_weight
    if not 0.0 < weight < math.inf:
        raise errors.InvalidArgument.field(
            "rerank_weight",
            f"is {weight:g}; give a positive number, or set it to 0 for the cross-encoder's score alone",
        )
    if not query.rerank:
        raise errors.InvalidArgument.field(
            "rerank_weight", f"is {weight:g} and rerank is 0; say how many premises to re-rank, or set it to 0"
        )
    if query.mode == "ITERATIVE_LEXICAL":
        raise errors.InvalidArgument.field(
            "rerank_weight",
            f"is {weight:g}, but it cannot be added to scores of different rounds; use mode LEXICAL, or set it to 0",
        )

"""What is refused about vectors and text queries before they are searched for."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.inner_products import norms_of
from services.index.backend import Searched
from services.index.queries import WITHOUT_ENCODER, Scope, TextQuery
from services.kit.limits import Limits, check_count, check_k

UNIT_TOLERANCE = 1e-2  # half precision keeps a unit vector well within


def check_scope(scope: Scope, limits: Limits) -> None:
    """Refuses a k and an exclude list beyond the limits."""
    check_k(scope.k, limits)
    if scope.exclude_ids:
        check_count(len(scope.exclude_ids), limits, "exclude_ids")


def check_unit(vectors: NDArray[np.float32]) -> None:
    """Refuses vectors with NaN or infinity, or not of unit length: their inner products would be no cosines."""
    norms = norms_of(vectors)
    unit = np.abs(norms - 1.0) <= UNIT_TOLERANCE
    if unit.all():
        return
    row = int(np.argmin(unit))
    if not np.isfinite(norms[row]):
        raise errors.InvalidArgument.field(f"vectors[{row}]", "holds NaN or infinity; send finite numbers")
    raise errors.InvalidArgument.field(
        f"vectors[{row}]", f"has length {norms[row]:.4g}; scale it to 1, as Encode answers it"
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


def check_text_query(query: TextQuery, limits: Limits) -> None:
    """Refuses shares beyond 0 to 1 or without use, a re-ranking that cannot be, accepted premises that do not fit."""
    if not 0.0 <= query.lexical_weight <= 1.0:
        raise errors.InvalidArgument.field(
            "fusion.lexical_weight", f"{query.lexical_weight:g} is not within 0 and 1; give the share of BM25"
        )
    if not 0.0 <= query.prior <= 1.0:
        raise errors.InvalidArgument.field("prior", f"{query.prior:g} is not within 0 and 1; give its share")
    if query.prior and query.mode == "ITERATIVE_LEXICAL":
        raise errors.InvalidArgument.field(
            "prior", "cannot be weighed against scores of different rounds; use mode LEXICAL, or set it to 0"
        )
    if not 0.0 <= query.negative_feedback <= 1.0:
        raise errors.InvalidArgument.field(
            "negative_feedback", f"{query.negative_feedback:g} is not within 0 and 1; give its share"
        )
    if query.negative_feedback and query.mode in WITHOUT_ENCODER:
        raise errors.InvalidArgument.field(
            "negative_feedback", f"changes vectors, which mode {query.mode} has none of; use DENSE or HYBRID, or 0"
        )
    if query.rerank and not query.scope.k <= query.rerank <= limits.k:
        raise errors.InvalidArgument.field(
            "rerank", f"is {query.rerank}; give k ({query.scope.k}) to {limits.k:,}, or 0 for none"
        )
    if query.rerank_weight:
        _check_rerank_weight(query)
    if query.accepted and len(query.accepted) != len(query.texts):
        raise errors.InvalidArgument.field(
            "accepted", f"has {len(query.accepted)} lists for {len(query.texts)} texts; give one each, or none at all"
        )
    if any(len(ids) > limits.items for ids in query.accepted):
        raise errors.InvalidArgument.field("accepted", f"has over {limits.items:,} ids for a text; give fewer")


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
            f"is {weight:g}, but scores of different rounds cannot be added to; use mode LEXICAL, or set it to 0",
        )


def check_base(generation: str, space_id: str, wanted: str) -> None:
    """Refuses to change a generation of one space by a build in another ("": wherever the base is)."""
    if wanted not in {"", space_id}:
        raise errors.SpaceMismatch(
            f"base generation {generation} is of space {space_id}, the build of space {wanted}; stream the whole "
            "corpus, without a base generation"
        )

"""Search and Retrieve as messages of aeenc.v1, to the index's values and back. It takes no decisions."""

from __future__ import annotations

from aeenc import vectors
from aeenc.v1 import index_pb2, types_pb2
from services.index.ranking.stages import RetrievalResult
from services.index.values import (
    DEFAULT_EFFORT,
    LEXICAL_WEIGHT,
    Effort,
    FusionMethod,
    Mode,
    Scope,
    TextQuery,
    Timings,
    VectorQuery,
)
from services.kit.convert import PRECISIONS, decode_enum, to_duration, to_precision
from services.kit.limits import AnswerRoom

_MODES: dict[int, Mode] = {
    index_pb2.RETRIEVE_MODE_DENSE: "DENSE",
    index_pb2.RETRIEVE_MODE_LEXICAL: "LEXICAL",
    index_pb2.RETRIEVE_MODE_HYBRID: "HYBRID",
    index_pb2.RETRIEVE_MODE_ITERATIVE_LEXICAL: "ITERATIVE_LEXICAL",
}
_FUSIONS: dict[int, FusionMethod] = {
    index_pb2.FUSION_METHOD_MIN_MAX: "min_max",
    index_pb2.FUSION_METHOD_RECIPROCAL_RANK: "reciprocal_rank",
}
_TRUNCATES = {types_pb2.TRUNCATE_ERROR: False, types_pb2.TRUNCATE_END: True}


def to_scope(request: index_pb2.SearchRequest | index_pb2.RetrieveRequest) -> Scope:
    """Converts the fields that Search and Retrieve share."""
    return Scope(
        corpus=request.corpus,
        k=request.k,
        exclude_ids=tuple(request.exclude_ids),
        splits=tuple(request.filter.any_split),
        generation=request.generation,
        only_ids=tuple(request.filter.only_ids),
        before_id=request.filter.before_id,
        clauses=frozenset((frozenset(one.all_of), frozenset(one.none_of)) for one in request.filter.any_clause),
    )


def to_vector_query(request: index_pb2.SearchRequest) -> VectorQuery:
    """Converts a Search call."""
    return VectorQuery(vectors.from_proto(request.vectors), request.space_id, to_scope(request), to_effort(request))


def to_effort(request: index_pb2.SearchRequest | index_pb2.RetrieveRequest) -> Effort:
    """Converts how hard an approximate engine tries."""
    if not request.HasField("params"):
        return DEFAULT_EFFORT
    params = request.params
    return Effort(nprobe=params.nprobe, ef_search=params.ef_search, exact=params.exact)


def to_text_query(request: index_pb2.RetrieveRequest, request_id: str = "") -> TextQuery:
    """Converts a Retrieve call. The encoder gets its request id, so that one call has one name in all logs."""
    chosen, options = request.model.WhichOneof("selector"), request.options
    return TextQuery(
        texts=tuple(request.texts),
        scope=to_scope(request),
        label=request.model.label if chosen == "label" else None,
        version=request.model.version if chosen == "version" else None,
        drop_self=request.drop_self if request.HasField("drop_self") else True,
        truncate=decode_enum(_TRUNCATES, request.truncate, "truncate", False),
        mode=decode_enum(_MODES, options.mode, "mode", "DENSE"),
        accepted=tuple(tuple(one.premise_ids) for one in request.accepted),
        rerank=options.rerank,
        rerank_weight=options.rerank_weight,
        rerank_versions=tuple(options.rerank_versions),
        prior=options.prior,
        negative_feedback=options.negative_feedback,
        fusion=decode_enum(_FUSIONS, options.fusion.method, "fusion.method", "min_max"),
        lexical_weight=options.fusion.lexical_weight if options.fusion.HasField("lexical_weight") else LEXICAL_WEIGHT,
        features=dict(options.fusion.features),
        precision=decode_enum(PRECISIONS, request.precision, "precision", None),
        routing_key=request.routing_key,
        request_id=request_id,
        effort=to_effort(request),
    )


def to_search_response(answer: RetrievalResult, room: AnswerRoom, timed: bool) -> index_pb2.SearchResponse:
    """Converts the answer to Search, with its timings where they were asked for. Raises TooLarge as it is filled."""
    generation = answer.served.generation
    response = index_pb2.SearchResponse(
        generation=generation.id,
        space_id=generation.space_id,
        exact=all(one.exact for one in answer.hits),
        timings=_timings(answer.timings) if timed else None,
        unknown_splits=answer.unknown_splits,
        unknown_tags=answer.unknown_tags,
    )
    for one in answer.hits:
        ids = generation.premises.ids_of(one.ordinals.tolist())
        room.take(sum(map(len, ids)) + 6 * len(ids))
        response.results.add(premise_ids=ids, scores=one.scores.tolist())
    return response


def to_retrieve_response(answer: RetrievalResult, room: AnswerRoom) -> index_pb2.RetrieveResponse:
    """Converts the answer to Retrieve. Raises TooLarge as it is filled."""
    premises = answer.served.generation.premises
    response = index_pb2.RetrieveResponse(
        model_version=answer.version,
        rerank_versions=answer.reranked_by,
        precision=to_precision(answer.precision),
        space_id=answer.served.generation.space_id,
        generation=answer.served.id,
        exact=all(one.exact for one in answer.hits),
        timings=_timings(answer.timings),
        unknown_splits=answer.unknown_splits,
        unknown_tags=answer.unknown_tags,
    )
    for one in answer.hits:
        found = response.results.add().premises
        for rank, (ordinal, score) in enumerate(zip(one.ordinals.tolist(), one.scores.tolist(), strict=True), start=1):
            premise = premises[ordinal]
            room.take(len(premise.id) + len(premise.text) + 15)
            found.add(premise={"id": premise.id, "text": premise.text}, rank=rank, score=score)
    return response


def _timings(taken: Timings) -> types_pb2.Timings:
    return types_pb2.Timings(
        total=to_duration(taken.total_s),
        queue=to_duration(taken.queue_s),
        compute=to_duration(taken.compute_s),
        encode=to_duration(taken.encode_s) if taken.encode_s else None,
    )

"""Messages of aeenc.v1 to the index's values and back. It takes no decisions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from google.protobuf.message import Message

from aeenc import vectors
from aeenc.v1 import index_pb2, types_pb2
from services.corpus.generation import PremiseRecord
from services.index.catalogue.served import EXPLANATIONS_BYTES, ServedGeneration
from services.index.ranking.stages import RetrievalResult
from services.index.values import (
    DEFAULT_PARAMS,
    LEXICAL_WEIGHT,
    BuildProgress,
    BuildSpec,
    Explanation,
    FoldingRule,
    FusionMethod,
    Mode,
    ReplicaState,
    Scope,
    SearchParams,
    TextQuery,
    Timings,
    VectorQuery,
)
from services.kit.convert import (
    PRECISIONS,
    TRUNCATES,
    bounded,
    decode_enum,
    opened_by,
    to_duration,
    to_precision,
    to_timestamp,
)
from services.kit.limits import AnswerRoom, Limits, check_texts
from services.store.artifacts import Artifact

_FOLDING_RULES: dict[int, FoldingRule] = {index_pb2.FOLDING_EXACT: "EXACT", index_pb2.FOLDING_NORMALIZED: "NORMALIZED"}
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
HITS_ON_LOOP = 400  # about a millisecond of work, reading premises from disk included


class Answers:
    """Makes and serialises answers within the size of a unary call: large ones off the event loop, one after another.

    A message takes several times its size in memory, so many large ones are not made at once.
    """

    def __init__(self, limits: Limits) -> None:
        self.limit_bytes = limits.message_bytes
        self._large = asyncio.Semaphore(1)

    async def make(self, items: int, convert: Callable[..., Message], *arguments: Any) -> bytes:
        """Returns the answer that `convert` makes of the arguments, which is given the room for it beside them.

        Raises TooLarge for one over the size of a unary call, as soon as that is sure.
        """
        if items <= HITS_ON_LOOP:
            return self._made(convert, *arguments)
        async with self._large:
            return await asyncio.to_thread(self._made, convert, *arguments)

    def _made(self, convert: Callable[..., Message], answer: Any, *arguments: Any) -> bytes:
        made = convert(answer, AnswerRoom(self.limit_bytes), *arguments).SerializeToString()
        AnswerRoom(self.limit_bytes).take(len(made))
        return made


def to_premise(record: PremiseRecord) -> types_pb2.Premise:
    """Converts a premise."""
    return types_pb2.Premise(
        id=record.id, text=record.text, aliases=record.aliases, splits=record.splits, tags=record.tags
    )


def to_premises_response(
    records: Sequence[PremiseRecord], _room: AnswerRoom, generation: str
) -> index_pb2.GetPremisesResponse:
    """Converts the answer to GetPremises."""
    return index_pb2.GetPremisesResponse(premises=map(to_premise, records), generation=generation)


def to_generation(artifact: Artifact, *, active: bool, held_by: Sequence[str] = ()) -> index_pb2.Generation:
    """Converts a generation, and who holds it."""
    meta = artifact.meta
    return index_pb2.Generation(
        id=artifact.id,
        corpus=meta["corpus"],
        space_id=meta["space_id"],
        premise_version=meta["premise_version"],
        premises=meta["premises"],
        dim=meta["dim"],
        engine=meta["engine"],
        manifest_sha256=artifact.manifest_sha256,
        created_at=to_timestamp(artifact.created_at),
        active=active,
        size_bytes=artifact.size_bytes,
        notes=_notes(meta),
        held_by=held_by,
        recall_at_10=meta.get("index", {}).get("recall_at_10", float(meta["engine"] in {"flat", "milvus-flat"})),
    )


def _notes(meta: Mapping[str, Any]) -> list[str]:
    shares = {
        "wordless": "have no words; search by words does not find them",
        "foreign": "are not in English; search by words matches theirs as they stand, without stems and stop words",
        "truncated": "are too long for the model, which did not see their ends",
        "repeats": "say the same as an earlier one but for case, articles and punctuation; `--fold-same` makes aliases",
    }
    return [
        f"{meta[name]:,} of {meta['premises']:,} premises {text}" for name, text in shares.items() if meta.get(name)
    ]


def to_build_response(progress: BuildProgress, active_id: str | None) -> index_pb2.BuildGenerationResponse:
    """Converts one report of a build."""
    response = index_pb2.BuildGenerationResponse(
        received=progress.received,
        encoded=progress.encoded,
        ack_level=f"ACK_LEVEL_{progress.ack_level}",
        durable=progress.durable,
        stage=f"BUILD_STAGE_{progress.stage}",
    )
    if progress.is_last and progress.generation is not None:
        active = progress.generation.id == active_id
        response.generation.CopyFrom(to_generation(progress.generation, active=active))
    return response


def to_build_spec(header: index_pb2.BuildHeader, *, timeout_s: float | None) -> BuildSpec:
    """Converts the header of a build."""
    return BuildSpec(
        corpus=header.corpus,
        request_id=header.request_id,
        base_generation=header.base_generation,
        delete_ids=tuple(header.delete_ids),
        activate=header.activate,
        resume_from=header.resume_from,
        space_id=header.space_id,
        timeout_s=timeout_s,
        folding=decode_enum(_FOLDING_RULES, header.folding, "header.folding", None),
        truncate=decode_enum(TRUNCATES, header.truncate, "header.truncate", False),
    )


async def to_premises(
    opening: index_pb2.BuildGenerationRequest, requests: AsyncIterator[index_pb2.BuildGenerationRequest]
) -> AsyncIterator[Sequence[PremiseRecord]]:
    """Reads the premises of a build: those beside its header, and those of the messages that follow."""
    if opening.premises:
        yield _records(opening)
    async for request in requests:
        yield _records(request)


def _records(request: index_pb2.BuildGenerationRequest) -> list[PremiseRecord]:
    return [PremiseRecord(p.id, p.text, tuple(p.aliases), tuple(p.splits), tuple(p.tags)) for p in request.premises]


async def to_explanations(
    requests: AsyncIterator[index_pb2.PutExplanationsRequest], limits: Limits
) -> tuple[str, bool, list[Explanation]]:
    """Reads the corpus, whether to replace, and the explanations. Raises InvalidArgument for a bad stream, TooLarge."""
    header = index_pb2.ExplanationsHeader()
    found: list[Explanation] = []
    whole = bounded(requests, EXPLANATIONS_BYTES, "explanations", "put them in several calls")
    async for request in opened_by("header", whole):
        header.MergeFrom(request.header)
        if request.explanations:
            check_texts([one.text for one in request.explanations], limits, "explanations")
        found += [Explanation(one.text, tuple(one.premise_ids)) for one in request.explanations]
    return header.corpus, header.replace, found


def to_corpus_info(
    corpus: str, served: ServedGeneration | None, replicas: Sequence[ReplicaState]
) -> index_pb2.CorpusInfo:
    """Converts a corpus, its active generation, and what the replicas serve."""
    active = to_generation(served.generation.artifact, active=True) if served else None
    return index_pb2.CorpusInfo(corpus=corpus, active=active, replicas=map(to_replica, replicas))


def to_replica(state: ReplicaState) -> index_pb2.IndexReplica:
    """Converts what a replica serves."""
    return index_pb2.IndexReplica(**asdict(state))


def to_scope(request: index_pb2.SearchRequest | index_pb2.RetrieveRequest) -> Scope:
    """Converts the fields that Search and Retrieve share."""
    wanted = request.filter  # each reading makes an object
    return Scope(
        corpus=request.corpus,
        k=request.k,
        exclude_ids=tuple(request.exclude_ids),
        splits=tuple(wanted.any_split),
        generation=request.generation,
        only_ids=tuple(wanted.only_ids),
        before_id=wanted.before_id,
        clauses=frozenset((frozenset(one.all_of), frozenset(one.none_of)) for one in wanted.any_clause),
    )


def to_vector_query(request: index_pb2.SearchRequest) -> VectorQuery:
    """Converts a Search call."""
    return VectorQuery(
        vectors.from_proto(request.vectors), request.space_id, to_scope(request), to_search_params(request)
    )


def to_search_params(request: index_pb2.SearchRequest | index_pb2.RetrieveRequest) -> SearchParams:
    """Converts how hard an approximate engine tries."""
    if not request.HasField("params"):
        return DEFAULT_PARAMS
    params = request.params
    return SearchParams(nprobe=params.nprobe, ef_search=params.ef_search, exact=params.exact)


def to_text_query(request: index_pb2.RetrieveRequest, request_id: str = "") -> TextQuery:
    """Converts a Retrieve call. The encoder gets its request id, so that one call has one name in all logs."""
    chosen, options = request.model.WhichOneof("selector"), request.options
    return TextQuery(
        texts=tuple(request.texts),
        scope=to_scope(request),
        label=request.model.label if chosen == "label" else None,
        version=request.model.version if chosen == "version" else None,
        drop_self=request.drop_self if request.HasField("drop_self") else True,
        truncate=decode_enum(TRUNCATES, request.truncate, "truncate", False),
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
        params=to_search_params(request),
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

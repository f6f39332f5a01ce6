"""Converts between `aeenc.v1` messages and the encoder's own values."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping

from aeenc import vectors
from aeenc.errors import InvalidArgument
from aeenc.v1 import encoder_pb2, types_pb2
from services.encoder.batching.encoder import CallResult, EncodeCall, ScoreCall
from services.encoder.batching.queues import Lane
from services.encoder.rollout.history import Swap
from services.encoder.rollout.versions import Selection, Versions
from services.kit.convert import PRECISIONS, TRUNCATES, decode_enum, label_of, to_duration, to_precision, to_timestamp

_ROLES = {encoder_pb2.ROLE_QUERY: "query", encoder_pb2.ROLE_PREMISE: "premise"}
_LANES: dict[encoder_pb2.Lane, Lane] = {encoder_pb2.LANE_INTERACTIVE: "interactive", encoder_pb2.LANE_BULK: "bulk"}


def to_call(
    request: encoder_pb2.EncodeRequest,
    deadline_s: float | None,
    request_id: str,
    caller: str,
    *,
    is_unary: bool = True,
) -> EncodeCall:
    """Converts an Encode request, or a batch of a stream, which goes into the bulk lane by default."""
    return EncodeCall(
        texts=request.texts,
        role=decode_enum(_ROLES, request.role, "role", ""),
        selection=_selection(request.model, request.space_id, request.routing_key or request_id),
        truncate=decode_enum(TRUNCATES, request.truncate, "truncate", False),
        precision=decode_enum(PRECISIONS, request.precision, "precision", ""),
        lane=decode_enum(_LANES, request.lane, "lane", "interactive" if is_unary else "bulk"),
        deadline_s=deadline_s,
        is_unary=is_unary,
        caller=caller,
    )


async def alike(
    requests: AsyncIterator[encoder_pb2.EncodeStreamRequest],
) -> AsyncIterator[encoder_pb2.EncodeStreamRequest]:
    """Yields the batches of a stream. Raises InvalidArgument for one that asks for something else than the first."""
    first: Mapping[str, object] = {}
    async for request in requests:
        batch = request.batch
        asked = {
            "role": decode_enum(_ROLES, batch.role, "role", ""),
            "model": str(batch.model).strip(),
            "truncate": "at the end" if decode_enum(TRUNCATES, batch.truncate, "truncate", False) else "an error",
            "space_id": batch.space_id,
        }
        first = first or asked
        for name in [name for name in asked if asked[name] != first[name]]:
            raise InvalidArgument.field(
                f"batch.{name}",
                f"is {asked[name] or 'unset'} in batch {request.batch_seq}, but {first[name] or 'unset'} in the first; "
                "send it in another stream",
            )
        yield request


def to_score_call(
    request: encoder_pb2.ScoreRequest, deadline_s: float | None, request_id: str, caller: str
) -> ScoreCall:
    """Converts a Score request."""
    return ScoreCall(
        query=request.query,
        texts=request.premises,
        selection=_selection(request.model, "", request_id),
        truncate=decode_enum(TRUNCATES, request.truncate, "truncate", False),
        precision=decode_enum(PRECISIONS, request.precision, "precision", ""),
        deadline_s=deadline_s,
        first_of_ensemble=request.first_of_ensemble,
        caller=caller,
    )


def to_response(result: CallResult) -> encoder_pb2.EncodeResponse:
    """Converts a result to an Encode response."""
    return encoder_pb2.EncodeResponse(
        embeddings=vectors.to_proto(result.rows),
        model_version=result.model_version,
        space_id=result.space_id,
        timings=_timings(result),
        truncated=result.truncated,
        precision=to_precision(result.precision),
        tokens=result.tokens,
    )


def to_score_response(result: CallResult) -> encoder_pb2.ScoreResponse:
    """Converts a result to a Score response."""
    return encoder_pb2.ScoreResponse(
        scores=result.rows[:, 0].tolist(),
        model_version=result.model_version,
        timings=_timings(result),
        truncated=result.truncated,
        ensemble=result.ensemble,
        precision=to_precision(result.precision),
    )


def to_versions(versions: Versions) -> list[encoder_pb2.LoadedVersion]:
    """Lists the loaded versions."""
    return [
        encoder_pb2.LoadedVersion(
            version=version,
            space_id=model.space_id,
            premise_encoder=version in versions.premise_versions.values(),
            in_flight=model.in_flight,
            precisions=map(to_precision, dict.fromkeys((versions.precision_of(version), *model.runners))),
        )
        for version, model in sorted(versions.models.items())
    ]


def to_swaps(swaps: Iterable[Swap], instance: str) -> list[types_pb2.Rollout]:
    """Lists the last swaps of this encoder, newest first."""
    return [
        types_pb2.Rollout(
            instance=instance,
            label=label_of(swap.row),
            ok=not swap.reason,
            reason=swap.reason,
            finished_at=to_timestamp(swap.finished_at),
            duration=to_duration(swap.duration_s),
        )
        for swap in swaps
    ]


def _selection(model: types_pb2.ModelSelector, space_id: str, routing_key: str) -> Selection:
    return Selection(label=model.label, version=model.version, space_id=space_id, routing_key=routing_key)


def _timings(result: CallResult) -> types_pb2.Timings:
    return types_pb2.Timings(
        total=to_duration(result.total_s),
        queue=to_duration(result.queue_s),
        tokenize=to_duration(result.tokenize_s),
        compute=to_duration(result.compute_s),
    )

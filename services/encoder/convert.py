"""Between `aeenc.v1` messages and the encoder's own values."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf import duration_pb2, timestamp_pb2

from aeenc import vectors
from aeenc.v1 import encoder_pb2, types_pb2
from services.encoder.encoding import EncodeCall, EncodeResult
from services.encoder.follower import Swap
from services.encoder.versions import Versions

_ROLES = {encoder_pb2.ROLE_QUERY: "query", encoder_pb2.ROLE_PREMISE: "premise"}


def to_call(request: encoder_pb2.EncodeRequest, deadline_s: float | None) -> EncodeCall:
    """An Encode request as a call."""
    return EncodeCall(
        texts=request.texts,
        role=_ROLES.get(request.role, ""),
        label=request.model.label,
        version=request.model.version,
        space_id=request.space_id,
        truncate=request.truncate == types_pb2.TRUNCATE_END,
        deadline_s=deadline_s,
    )


def to_response(result: EncodeResult) -> encoder_pb2.EncodeResponse:
    """A result as an Encode response."""
    timings = types_pb2.Timings(
        total=_duration(result.total_s),
        queue=_duration(result.queue_s),
        tokenize=_duration(result.tokenize_s),
        compute=_duration(result.compute_s),
    )
    return encoder_pb2.EncodeResponse(
        embeddings=vectors.to_proto(result.vectors),
        model_version=result.model_version,
        space_id=result.space_id,
        timings=timings,
        truncated=result.truncated,
    )


def to_versions(versions: Versions) -> list[encoder_pb2.LoadedVersion]:
    """The loaded versions."""
    return [
        encoder_pb2.LoadedVersion(
            version=version,
            space_id=versions.space_id,
            labels=sorted(name for name, here in versions.labels.items() if here.version == version),
            premise_encoder=version == versions.premise_version,
            in_flight=versions.in_flight[version],
        )
        for version in sorted(versions.models)
    ]


def to_labels(versions: Versions) -> list[encoder_pb2.AppliedLabel]:
    """The labels as they are served here."""
    return [
        encoder_pb2.AppliedLabel(space_id=versions.space_id, label=name, version=here.version, revision=here.revision)
        for name, here in sorted(versions.labels.items())
    ]


def to_swaps(swaps: Iterable[Swap]) -> list[encoder_pb2.SwapOutcome]:
    """The last swaps, newest first."""
    return [_swap(swap) for swap in swaps]


def _swap(swap: Swap) -> encoder_pb2.SwapOutcome:
    finished_at = timestamp_pb2.Timestamp()
    finished_at.FromDatetime(swap.finished_at)
    return encoder_pb2.SwapOutcome(
        label=swap.label,
        version=swap.version,
        revision=swap.revision,
        ok=swap.ok,
        reason=swap.reason,
        finished_at=finished_at,
        duration=_duration(swap.duration_s),
    )


def _duration(seconds: float) -> duration_pb2.Duration:
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(int(seconds * 1e9))
    return duration

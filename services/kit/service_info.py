"""What every service says about itself in GetInfo."""

from __future__ import annotations

from google.protobuf import timestamp_pb2

import aeenc
from aeenc.v1 import types_pb2
from services.kit.checks import Limits
from services.kit.server import GrpcServer


def to_service_info(server: GrpcServer, limits: Limits) -> types_pb2.ServiceInfo:
    """The common part of a GetInfo answer."""
    started_at = timestamp_pb2.Timestamp()
    started_at.FromDatetime(server.started_at)
    return types_pb2.ServiceInfo(
        software_version=aeenc.__version__,
        api_version="aeenc.v1",
        instance=server.settings.instance,
        state=f"SERVICE_STATE_{server.readiness.state}",
        state_reason=server.readiness.reason,
        started_at=started_at,
        limits=types_pb2.Limits(
            message_bytes=limits.message_bytes,
            items=limits.items,
            text_bytes=limits.text_bytes,
            k=limits.k,
            tokens=limits.tokens,
            queued_items=limits.queued_items,
            queued_tokens=limits.queued_tokens,
        ),
    )

"""Starts the encoder: `python -m services.encoder`."""

from __future__ import annotations

from aeenc.v1 import encoder_pb2_grpc
from services.encoder.batching import Batcher
from services.encoder.encoding import Encoding
from services.encoder.follower import Follower
from services.encoder.metrics import EncoderMetrics
from services.encoder.model import providers_of
from services.encoder.servicer import EncoderServicer
from services.encoder.settings import EncoderSettings
from services.encoder.versions import Versions
from services.kit.artifacts import ArtifactStore
from services.kit.checks import Limits
from services.kit.redis import connect
from services.kit.registry import Registry
from services.kit.server import GrpcServer, run


def build(settings: EncoderSettings) -> GrpcServer:
    """Wires the encoder."""
    server = GrpcServer(settings)
    metrics = EncoderMetrics(server.metrics)
    versions, providers = Versions(), providers_of(settings.device)
    redis = connect(settings.redis_url)
    follower = Follower(
        registry=Registry(redis, settings.namespace),
        store=ArtifactStore(settings.artifacts_dir),
        versions=versions,
        readiness=server.readiness,
        metrics=metrics,
        instance=settings.instance,
        space_id=settings.space_id,
        state_dir=settings.state_dir,
        poll_s=settings.poll_s,
        max_file_bytes=settings.model_bytes,
        providers=providers,
    )
    limits = Limits(
        message_bytes=settings.message_bytes,
        items=settings.max_items,
        text_bytes=settings.text_bytes,
        tokens=256,
        queued_items=settings.queued_items,
    )
    batcher = Batcher(
        workers=settings.workers,
        batch_items=settings.batch_items,
        batch_tokens=settings.batch_tokens,
        queued_items=settings.queued_items,
        metrics=metrics,
    )
    encoding = Encoding(versions, batcher, limits)
    servicer = EncoderServicer(server, encoding, versions, follower, limits, providers[0])
    server.add(encoder_pb2_grpc.add_EncoderServiceServicer_to_server, servicer, "aeenc.v1.EncoderService")

    async def close() -> None:
        await follower.stop()
        encoding.close()
        await redis.aclose()

    server.on_start(follower.start)
    server.on_stop(close)
    return server


if __name__ == "__main__":
    run(lambda: build(EncoderSettings.from_command_line()))

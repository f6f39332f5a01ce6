"""`python -m services.index` starts the index: settings → domain objects → servicers → server."""

from __future__ import annotations

from aeenc.channel import Channel
from aeenc.encoder import EncoderClient
from aeenc.v1 import index_pb2_grpc
from services.index.building import Builder, BuildOptions
from services.index.catalogue import Catalogue
from services.index.condition import Condition
from services.index.engine import SearchEngine
from services.index.retrieval import Retrieval
from services.index.servicer import IndexAdminServicer, IndexServicer
from services.index.settings import IndexSettings
from services.kit.artifacts import ArtifactStore
from services.kit.server import GrpcServer, run


def build(settings: IndexSettings) -> GrpcServer:
    """The index as a server that is not yet started. Call it inside a running event loop."""
    server, limits = GrpcServer(settings), settings.limits
    condition = Condition(server.readiness)
    store, engine = ArtifactStore(settings.artifacts_dir), SearchEngine(settings.max_queued)
    catalogue = Catalogue(store, engine, pinned_generations=settings.pinned_generations)
    catalogue.on_change(condition.source("corpora"))
    channel = Channel(settings.encoder_target, **settings.peer())
    retrieval = Retrieval(
        catalogue,
        engine,
        EncoderClient(channel),
        limits,
        encode_timeout_s=settings.encode_timeout_s,
        on_encoder=condition.source("encoder"),
    )
    options = BuildOptions(
        settings.build_batch,
        settings.build_window,
        settings.build_encode_timeout_s,
        settings.build_sync_s,
        settings.build_keep_s,
    )
    builder = Builder(store, catalogue, channel, limits, options)

    async def load() -> None:
        server.readiness.starting("opening the active generations")
        engine.start()
        await catalogue.load()
        await builder.sweep()
        condition.open()

    async def close() -> None:
        engine.close()
        await channel.close()

    server.on_start(load)
    server.on_stop(close)
    public, admin = IndexServicer(server, catalogue, retrieval, limits), IndexAdminServicer(catalogue, builder, limits)
    server.add(index_pb2_grpc.add_IndexServiceServicer_to_server, public, "aeenc.v1.IndexService")
    server.add(index_pb2_grpc.add_IndexAdminServiceServicer_to_server, admin, "aeenc.v1.IndexAdminService", admin=True)
    return server


if __name__ == "__main__":
    run(lambda: build(IndexSettings.from_command_line()))

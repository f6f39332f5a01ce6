"""`python -m services.index` starts the index: settings → domain objects → servicers → server."""

from __future__ import annotations

from aeenc.channel import Channel
from aeenc.encoder import EncoderClient
from aeenc.v1 import index_pb2_grpc
from services.index.building import Builder, BuildOptions
from services.index.catalogue import Catalogue
from services.index.condition import Condition
from services.index.encoding import QueryEncoder
from services.index.engine import SearchEngine
from services.index.explanations import Explanations
from services.index.metrics import IndexMetrics
from services.index.ranking import Ranker
from services.index.reranking import Reranker
from services.index.retrieval import Retrieval
from services.index.servicer import IndexAdminServicer, IndexServicer
from services.index.settings import IndexSettings
from services.index.words import Words
from services.kit.artifacts import ArtifactStore
from services.kit.server import GrpcServer, run


def build(settings: IndexSettings) -> GrpcServer:
    """The index as a server that is not yet started. Call it inside a running event loop."""
    server, limits = GrpcServer(settings), settings.limits
    condition, metrics = Condition(server.readiness), IndexMetrics(server.metrics)
    store, engine = ArtifactStore(settings.artifacts_dir), SearchEngine(settings.max_queued, metrics.searched)
    catalogue = Catalogue(store, engine, pinned_generations=settings.pinned_generations)
    catalogue.on_change(condition.source("corpora"))
    channel = Channel(settings.encoder_target, **settings.peer())
    words = Words(settings.max_queued)
    client, explanations = EncoderClient(channel), Explanations(store)
    encoder = QueryEncoder(
        client,
        timeout_s=settings.encode_timeout_s,
        max_queued=settings.max_queued,
        on_change=condition.source("encoder"),
    )
    reranker = Reranker(client, timeout_s=settings.encode_timeout_s)
    ranker = Ranker(engine, words, encoder, reranker, pool=settings.k_max)
    retrieval = Retrieval(catalogue, engine, ranker, explanations, limits)
    options = BuildOptions(
        settings.build_batch,
        settings.build_window,
        settings.build_encode_timeout_s,
        settings.build_sync_s,
        settings.build_keep_s,
        settings.engines,
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
        words.close()
        await encoder.close()
        await channel.close()

    server.on_start(load)
    server.on_stop(close)
    public, admin = (
        IndexServicer(server, catalogue, retrieval, limits),
        IndexAdminServicer(catalogue, builder, explanations, limits),
    )
    server.add(index_pb2_grpc.add_IndexServiceServicer_to_server, public, "aeenc.v1.IndexService")
    server.add(index_pb2_grpc.add_IndexAdminServiceServicer_to_server, admin, "aeenc.v1.IndexAdminService", admin=True)
    return server


if __name__ == "__main__":
    run(lambda: build(IndexSettings.from_command_line()))

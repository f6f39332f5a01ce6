"""`python -m services.index` starts the index: settings → domain objects → servicers → server."""

from __future__ import annotations

from aeenc import errors
from aeenc.encoder import EncoderClient
from aeenc.transport.channel import Channel
from aeenc.v1 import index_pb2_grpc
from services.index.backend import Backend
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
from services.kit.server import GrpcServer, run
from services.store.artifacts import ArtifactStore


def build(settings: IndexSettings) -> GrpcServer:
    """The index as a server that is not yet started. Call it inside a running event loop."""
    server, limits = GrpcServer(settings), settings.limits
    condition = Condition(server.readiness)
    channel = Channel(settings.encoder_target, **settings.peer())
    encoder = QueryEncoder(
        EncoderClient(channel),
        timeout_s=settings.encode_timeout_s,
        max_queued=settings.max_queued,
        on_change=condition.source("encoder"),
    )
    open_backend = _on_milvus if settings.backend == "milvus" else _on_files
    backend = open_backend(settings, server, condition, channel, encoder)

    async def load() -> None:
        server.readiness.starting("opening the active generations")
        await backend.load()
        condition.open()

    async def close() -> None:
        await backend.close()
        await encoder.close()
        await channel.close()

    server.on_start(load)
    server.on_stop(close)
    public = IndexServicer(server, backend.catalogue, backend.retrieval, limits)
    admin = IndexAdminServicer(backend.catalogue, backend.builder, backend.explanations, limits)
    server.add(index_pb2_grpc.add_IndexServiceServicer_to_server, public, "aeenc.v1.IndexService")
    server.add(index_pb2_grpc.add_IndexAdminServiceServicer_to_server, admin, "aeenc.v1.IndexAdminService", admin=True)
    return server


def _on_files(
    settings: IndexSettings, server: GrpcServer, condition: Condition, channel: Channel, encoder: QueryEncoder
) -> Backend:
    """Generations in files, searched in this process by FAISS and by words."""
    store, metrics = ArtifactStore(settings.artifacts_dir), IndexMetrics(server.metrics)
    engine, words = SearchEngine(settings.max_queued, metrics.searched), Words(settings.max_queued)
    catalogue = Catalogue(store, engine, pinned_generations=settings.pinned_generations)
    catalogue.on_change(condition.source("corpora"))
    explanations = Explanations(store)
    ranker = Ranker(engine, words, encoder, _reranker(settings, channel), pool=settings.k_max)
    retrieval = Retrieval(catalogue, engine, ranker, explanations, settings.limits)
    builder = Builder(store, catalogue, channel, settings.limits, _build_options(settings))

    async def load() -> None:
        engine.start()
        await catalogue.load()
        await builder.sweep()

    async def close() -> None:
        engine.close()
        words.close()

    return Backend(catalogue, retrieval, builder, explanations, load, close)


def _on_milvus(
    settings: IndexSettings, _server: GrpcServer, condition: Condition, channel: Channel, encoder: QueryEncoder
) -> Backend:
    """Generations in a Milvus; its client is loaded only here."""
    try:
        from services.index.milvus.opening import open_backend
    except ModuleNotFoundError as error:
        raise errors.InvalidArgument(
            f"AEENC_INDEX_BACKEND=milvus needs {error.name}; install aeenc-services with the extra index-milvus"
        ) from error
    state, reranker = condition.source("milvus"), _reranker(settings, channel)
    return open_backend(settings, encoder, reranker, channel, _build_options(settings), on_state=state)


def _reranker(settings: IndexSettings, channel: Channel) -> Reranker:
    return Reranker(EncoderClient(channel), timeout_s=settings.encode_timeout_s)


def _build_options(settings: IndexSettings) -> BuildOptions:
    return BuildOptions(
        settings.build_batch,
        settings.build_window,
        settings.build_encode_timeout_s,
        settings.build_sync_s,
        settings.build_keep_s,
        settings.engines,
    )


if __name__ == "__main__":
    run(lambda: build(IndexSettings.from_command_line()))

"""`python -m services.index` starts the index: settings → domain objects → servicers → server."""

from __future__ import annotations

from aeenc import errors
from aeenc.channel import Channel
from aeenc.encoder import EncoderClient
from aeenc.v1 import index_pb2_grpc
from services.index.backend import Backend
from services.index.building import Builder, BuildOptions
from services.index.catalogue import Catalogue
from services.index.condition import Condition
from services.index.engine import SearchEngine
from services.index.query_encoder import QueryEncoder
from services.index.retrieval import Retrieval
from services.index.servicer import IndexAdminServicer, IndexServicer
from services.index.settings import IndexSettings
from services.kit.artifacts import ArtifactStore
from services.kit.server import GrpcServer, run


def build(settings: IndexSettings) -> GrpcServer:
    """The index as a server that is not yet started. Call it inside a running event loop."""
    server, limits = GrpcServer(settings), settings.limits
    condition = Condition(server.readiness)
    channel = Channel(settings.encoder_target, **settings.peer())
    backend = (_on_milvus if settings.backend == "milvus" else _on_files)(settings, condition, channel)

    async def load() -> None:
        server.readiness.starting("opening the active generations")
        await backend.load()
        condition.open()

    async def close() -> None:
        await backend.close()
        await channel.close()

    server.on_start(load)
    server.on_stop(close)
    public = IndexServicer(server, backend.catalogue, backend.retrieval, limits)
    admin = IndexAdminServicer(backend.catalogue, backend.builder, limits)
    server.add(index_pb2_grpc.add_IndexServiceServicer_to_server, public, "aeenc.v1.IndexService")
    server.add(index_pb2_grpc.add_IndexAdminServiceServicer_to_server, admin, "aeenc.v1.IndexAdminService", admin=True)
    return server


def _on_files(settings: IndexSettings, condition: Condition, channel: Channel) -> Backend:
    """Generations in files, searched in this process by FAISS."""
    store, engine = ArtifactStore(settings.artifacts_dir), SearchEngine(settings.max_queued)
    catalogue = Catalogue(store, engine, pinned_generations=settings.pinned_generations)
    catalogue.on_change(condition.source("corpora"))
    retrieval = Retrieval(catalogue, engine, _query_encoder(settings, condition, channel), settings.limits)

    async def load() -> None:
        engine.start()
        await catalogue.load()

    async def close() -> None:
        engine.close()

    builder = Builder(store, catalogue, channel, settings.limits, _build_options(settings))
    return Backend(catalogue, retrieval, builder, load, close)


def _on_milvus(settings: IndexSettings, condition: Condition, channel: Channel) -> Backend:
    """Generations in a Milvus; its client is loaded only here."""
    try:
        from services.index.milvus.opening import open_backend
    except ModuleNotFoundError as error:
        raise errors.InvalidArgument(
            f"AEENC_INDEX_BACKEND=milvus needs {error.name}; install aeenc-services with the extra index-milvus"
        ) from error
    encoder = _query_encoder(settings, condition, channel)
    return open_backend(settings, encoder, channel, _build_options(settings), on_state=condition.source("milvus"))


def _query_encoder(settings: IndexSettings, condition: Condition, channel: Channel) -> QueryEncoder:
    return QueryEncoder(
        EncoderClient(channel), timeout_s=settings.encode_timeout_s, on_encoder=condition.source("encoder")
    )


def _build_options(settings: IndexSettings) -> BuildOptions:
    return BuildOptions(settings.build_batch, settings.build_window, settings.build_encode_timeout_s)


if __name__ == "__main__":
    run(lambda: build(IndexSettings.from_command_line()))

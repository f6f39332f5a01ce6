"""`python -m services.index` starts the index: settings → domain objects → servicers → server."""

from __future__ import annotations

from collections.abc import Callable

from aeenc.encoder import EncoderClient
from aeenc.transport.channel import Channel
from aeenc.v1 import index_pb2_grpc
from services.index.building.builder import Builder
from services.index.catalogue.catalogue import Catalogue
from services.index.catalogue.following import Follower
from services.index.catalogue.replicas import Replicas
from services.index.dense.batcher import SearchBatcher
from services.index.lexical.executor import LexicalExecutor
from services.index.metrics import IndexMetrics
from services.index.ranking.encoding import QueryEncoder, Reranker
from services.index.ranking.prior import Explanations
from services.index.ranking.ranker import Ranker
from services.index.ranking.retrieval import Retrieval
from services.index.servicer import IndexAdminServicer, IndexServicer
from services.index.settings import IndexSettings, milvus_lacks
from services.index.values import Backend, BuildOptions
from services.kit.readiness import Readiness
from services.kit.server import GrpcServer
from services.kit.workers import run_workers
from services.store.objects import open_store


class ServiceHealth:
    """Turns the problems of several sources into one readiness: a problem degrades the service and never stops it.

    Before `open` it only collects.
    """

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._problems: dict[str, str] = {}
        self._is_open = False

    def source(self, name: str) -> Callable[[str], None]:
        """Makes a listener for one source; it takes a problem, or "" for none."""

        def report(reason: str) -> None:
            if self._problems.get(name, "") != reason:
                self._problems[name] = reason
                self._update()

        return report

    def open(self) -> None:
        """Starts to report: the service answers from now on."""
        self._is_open = True
        self._update()

    def _update(self) -> None:
        reasons = "; ".join(reason for reason in self._problems.values() if reason)
        if not self._is_open:
            return
        if reasons:
            self._readiness.degraded(reasons)
        else:
            self._readiness.serving()


def build(settings: IndexSettings) -> GrpcServer:
    """Makes the index as a server that is not started yet. Call it inside a running event loop."""
    server, limits = GrpcServer(settings), settings.limits
    health = ServiceHealth(server.readiness)
    channel = Channel(settings.encoder_target, **settings.peer())
    encoder = QueryEncoder(
        EncoderClient(channel),
        timeout_s=settings.encode_timeout_s,
        max_queued=settings.max_queued,
        on_change=health.source("encoder"),
    )
    open_backend = _on_milvus if settings.backend == "milvus" else _on_files
    backend = open_backend(settings, server, health, channel, encoder)

    async def load() -> None:
        server.readiness.starting("opening the active generations")
        await backend.load()
        health.open()

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
    settings: IndexSettings, server: GrpcServer, health: ServiceHealth, channel: Channel, encoder: QueryEncoder
) -> Backend:
    """Wires up generations in files, searched in this process by FAISS and by words."""
    store, metrics = (
        open_store(settings.artifacts_dir, settings.artifacts_url, settings.artifacts_cache_bytes),
        IndexMetrics(server.metrics),
    )
    replicas = Replicas(store, settings.instance, lease_s=settings.replica_lease_s, wait_s=settings.replica_wait_s)
    batcher, executor = SearchBatcher(settings.max_queued, metrics.searched), LexicalExecutor(settings.max_queued)
    catalogue = Catalogue(
        store,
        batcher,
        replicas,
        pinned_generations=settings.pinned_generations,
        pinned_bytes=settings.pinned_bytes,
    )
    catalogue.on_change(health.source("corpora"))
    follower = Follower(catalogue, replicas, settings.look_s, health.source("store"))
    explanations = Explanations(store, catalogue)
    ranker = Ranker(batcher, executor, encoder, _reranker(settings, channel), pool=settings.k_max)
    retrieval = Retrieval(catalogue, batcher, ranker, explanations, settings.limits)
    builder = Builder(store, catalogue, channel, settings.limits, _build_options(settings))

    async def load() -> None:
        batcher.start()
        follower.beat()
        await catalogue.load()
        await builder.sweep()
        follower.start()

    async def close() -> None:
        await follower.close()
        batcher.close()
        executor.close()
        await catalogue.close()

    return Backend(catalogue, retrieval, builder, explanations, load, close)


def _on_milvus(
    settings: IndexSettings, _server: GrpcServer, health: ServiceHealth, channel: Channel, encoder: QueryEncoder
) -> Backend:
    """Wires up generations in a Milvus; only here its client is loaded."""
    try:
        from services.index.milvus.backend import open_backend
    except ModuleNotFoundError as error:
        raise milvus_lacks(error) from error
    state, reranker = health.source("milvus"), _reranker(settings, channel)
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
        settings.request_keep_s,
        settings.lexical,
    )


if __name__ == "__main__":
    run_workers("services.index", build, IndexSettings)

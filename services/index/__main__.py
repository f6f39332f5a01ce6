"""`python -m services.index` starts the index: settings → domain objects → servicers → server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from aeenc.encoder import EncoderClient
from aeenc.errors import InvalidArgument
from aeenc.transport.channel import Channel
from aeenc.v1 import index_pb2_grpc
from services.index.building.builder import Builder
from services.index.catalogue.catalogue import Catalogue
from services.index.catalogue.replicas import Replicas
from services.index.catalogue.served import OpenGenerations
from services.index.dense.approximate import open_index
from services.index.dense.batcher import SearchBatcher
from services.index.dense.card import Card
from services.index.lexical.bm25 import LexicalExecutor
from services.index.ranking.encoding import QueryEncoder, Reranker
from services.index.ranking.stages import Retrieval, Stages
from services.index.servicer import IndexAdminServicer, IndexServicer
from services.index.settings import IndexSettings
from services.kit.concurrency import cancel_all, every
from services.kit.readiness import Readiness
from services.kit.server import GrpcServer
from services.kit.workers import run_workers
from services.store.artifacts import ArtifactStore
from services.store.objects import open_store

if TYPE_CHECKING:
    from services.index.milvus.collections import Collections  # its client is an extra of its own


class ServiceHealth:
    """Turns the problems of several sources into one readiness: they degrade the service, or end its readiness.

    Before `open` it only collects.
    """

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._problems: dict[str, str] = {}
        self._needed: set[str] = set()
        self._is_open = False

    def source(self, name: str, *, is_needed: bool = False) -> Callable[[str], None]:
        """Makes a listener for a source; it takes a problem, or "" for none. With `is_needed`, one ends readiness."""
        self._needed |= {name} if is_needed else set()
        return lambda problem: self._report(name, problem)

    def open(self) -> None:
        """Starts to report: the service answers from now on."""
        self._is_open = True
        self._report("", "")

    def _report(self, name: str, problem: str) -> None:
        self._problems[name] = problem
        if self._is_open:
            reasons = "; ".join(filter(None, self._problems.values()))
            if any(map(self._problems.get, self._needed)):
                self._readiness.starting(reasons)
            else:
                self._readiness.degraded(reasons) if reasons else self._readiness.serving()


def build(settings: IndexSettings) -> GrpcServer:
    """Makes the index as a server that is not started yet. Call it inside a running event loop."""
    server, limits = GrpcServer(settings), settings.limits
    health, is_named = ServiceHealth(server.readiness), settings.device.startswith("cuda")
    channel = Channel(settings.encoder_target, **settings.peer())
    encoder = QueryEncoder(
        EncoderClient(channel),
        timeout_s=settings.encode_timeout_s,
        max_queued=settings.max_queued,
        on_change=health.source("encoder"),
    )
    store = open_store(settings.artifacts_dir, settings.artifacts_url, settings.artifacts_cache_bytes)
    milvus = _milvus(settings, store, health.source("milvus")) if settings.milvus_uri else None
    replicas = Replicas(store, settings.instance, lease_s=settings.replica_lease_s, wait_s=settings.replica_wait_s)
    batcher, executor = SearchBatcher(settings.max_queued, server.metrics), LexicalExecutor(settings.max_queued)
    catalogue = Catalogue(
        store,
        batcher,
        replicas,
        OpenGenerations(settings.pinned_generations, settings.pinned_bytes),
        open_index=partial(
            open_index,
            open_remote=milvus.of if milvus else None,
            card=Card.open(settings.device, settings.gpu_bytes, health.source("card", is_needed=is_named)),
        ),
        on_change=health.source("corpora"),
    )
    reranker = Reranker(EncoderClient(channel), timeout_s=settings.encode_timeout_s, max_queued=settings.max_queued)
    stages = Stages(batcher.search, executor.each, encoder.encode, reranker.rerank, asyncio.to_thread)
    retrieval = Retrieval(catalogue, stages, limits)
    builder = Builder(store, catalogue, channel, limits, settings.builds)
    tell_of_store, loops = health.source("store"), list[asyncio.Task[None]]()

    def repeat(*what: Any, **how: Any) -> None:
        loops.append(asyncio.create_task(every(*what, **how)))

    async def follow() -> None:
        await catalogue.follow()
        tell_of_store("")

    def tell(why: str) -> None:
        tell_of_store(f"the store cannot be followed ({why}); what is open keeps serving")

    async def load() -> None:
        server.readiness.starting("opening the active generations")
        batcher.start()
        repeat(settings.look_s, catalogue.report, "the others are not told that this replica lives")
        await catalogue.load()
        await builder.sweep()
        repeat(settings.look_s, follow, "a look at the store has failed", tell=tell)
        if milvus:
            look = partial(asyncio.to_thread, milvus.look)
            repeat(settings.milvus_refresh_s, look, "collections in Milvus cannot be looked at")
        health.open()

    async def close() -> None:
        await cancel_all(loops)
        await asyncio.to_thread(replicas.sign_off)
        if milvus:
            await milvus.close()
        batcher.close()
        executor.close()
        await catalogue.close()
        await encoder.close()
        await channel.close()

    server.on_start(load)
    server.on_stop(close)
    public = IndexServicer(server, catalogue, retrieval, limits)
    admin = IndexAdminServicer(catalogue, builder, limits)
    server.add(index_pb2_grpc.add_IndexServiceServicer_to_server, public, "aeenc.v1.IndexService")
    server.add(index_pb2_grpc.add_IndexAdminServiceServicer_to_server, admin, "aeenc.v1.IndexAdminService", admin=True)
    return server


def _milvus(settings: IndexSettings, store: ArtifactStore, on_state: Callable[[str], None]) -> Collections:
    """Wires up a Milvus; only here its client is loaded."""
    try:
        from services.index.milvus.collections import Collections
        from services.index.milvus.link import MilvusLink
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            f"AEENC_INDEX_MILVUS_URI needs {error.name}; install aeenc-services with the extra index-milvus"
        ) from error
    link = MilvusLink(
        settings.milvus_uri,
        settings.milvus_token or "",
        settings.milvus_database,
        timeout_s=settings.milvus_timeout_s,
        threads=settings.milvus_threads,
        on_state=on_state,
    )
    lease_s, patience_s = settings.milvus_lease_s, settings.milvus_patience_s
    return Collections(store, link, settings.milvus_prefix, lease_s=lease_s, patience_s=patience_s)


if __name__ == "__main__":
    run_workers("services.index", build, IndexSettings)

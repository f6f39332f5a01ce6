"""Wires up the back end on Milvus from its settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aeenc import errors
from aeenc.transport.channel import Channel
from services.corpus.generation import corpora_of
from services.index.building.builder import sweep_generations
from services.index.milvus.builder import MilvusBuilder
from services.index.milvus.catalogue import MilvusCatalogue, Sweeper
from services.index.milvus.ledger.explanations import ExplanationTables
from services.index.milvus.ledger.records import Records
from services.index.milvus.link import MilvusAddress, MilvusLink
from services.index.milvus.prior import MilvusExplanations
from services.index.milvus.retrieval import MilvusRetrieval
from services.index.milvus.schema import K_MOST, TEXT_BYTES
from services.index.milvus.writer import Loading, MilvusBuildOptions, loading
from services.index.ranking.encoding import QueryEncoder, Reranker
from services.index.settings import IndexSettings
from services.index.values import Backend, BuildOptions, LexicalSettings
from services.store.objects import open_store


def open_backend(
    settings: IndexSettings,
    encoder: QueryEncoder,
    reranker: Reranker,
    encoders: Channel,
    options: BuildOptions,
    *,
    on_state: Callable[[str], None],
) -> Backend:
    """Makes the back end; it connects when it is loaded. Raises InvalidArgument for limits beyond those of Milvus."""
    _check(settings)
    link = _link(settings, on_state)
    records = Records(link, settings.milvus_prefix)
    store = open_store(settings.artifacts_dir, settings.artifacts_url, settings.artifacts_cache_bytes)
    catalogue = MilvusCatalogue(link, records, store)
    explanations = MilvusExplanations(link, catalogue, ExplanationTables(link, records))
    retrieval = MilvusRetrieval(
        catalogue,
        link,
        encoder,
        reranker,
        explanations,
        settings.limits,
        max_queued=settings.max_queued,
        pool=settings.k_max,
    )
    milvus = _build_options(settings)
    builder = MilvusBuilder(store, link, records, catalogue, encoders, settings.limits, options, milvus)
    sweeper = Sweeper(link, records, catalogue, refresh_s=settings.milvus_refresh_s, lease_s=settings.milvus_lease_s)

    async def load() -> None:
        await asyncio.to_thread(lambda: sweep_generations(store, corpora_of(store)))
        await builder.sweep()
        await sweeper.start()

    async def close() -> None:
        await sweeper.close()
        await link.close()

    return Backend(catalogue, retrieval, builder, explanations, load, close)


@asynccontextmanager
async def loading_of(settings: IndexSettings, corpus: str) -> AsyncIterator[Loading]:
    """Opens the way into Milvus for a generation that another process than an index has built."""
    _check(settings)
    link = _link(settings, lambda _: None)
    try:
        records = Records(link, settings.milvus_prefix)
        async with loading(link, records, corpus, _build_options(settings), settings.lexical) as under_way:
            yield under_way
    finally:
        await link.close()


def _link(settings: IndexSettings, on_state: Callable[[str], None]) -> MilvusLink:
    address = MilvusAddress(settings.milvus_uri, settings.milvus_token, settings.milvus_database)
    return MilvusLink(address, timeout_s=settings.milvus_timeout_s, threads=settings.milvus_threads, on_state=on_state)


def _build_options(settings: IndexSettings) -> MilvusBuildOptions:
    return MilvusBuildOptions(settings.milvus_engine, settings.milvus_patience_s, settings.milvus_lease_s)


def _check(settings: IndexSettings) -> None:
    if settings.text_bytes > TEXT_BYTES:
        raise errors.InvalidArgument(
            f"AEENC_INDEX_TEXT_BYTES={settings.text_bytes} is over {TEXT_BYTES:,}, the longest text in Milvus; lower it"
        )
    lexical, default = settings.lexical, LexicalSettings()
    if (lexical.k1, lexical.b, lexical.words) != (default.k1, default.b, default.words):
        raise errors.InvalidArgument(
            f"AEENC_INDEX_BM25_K1={lexical.k1:g}, _B={lexical.b:g}, _WORDS={lexical.words} are not in the back end "
            f"milvus; leave them at {default.k1:g}, {default.b:g} and {default.words}"
        )
    if settings.k_max >= K_MOST:
        raise errors.InvalidArgument(f"AEENC_INDEX_K_MAX={settings.k_max} is not below {K_MOST:,}; lower it")

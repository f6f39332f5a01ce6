"""Wires up the back end on Milvus from its settings."""

from __future__ import annotations

from collections.abc import Callable

from aeenc import errors
from aeenc.transport.channel import Channel
from services.index.milvus.builder import MilvusBuilder, MilvusBuildOptions
from services.index.milvus.catalogue import MilvusCatalogue, Sweeper
from services.index.milvus.ledger.explanations import ExplanationTables
from services.index.milvus.ledger.records import Records
from services.index.milvus.link import MilvusAddress, MilvusLink
from services.index.milvus.prior import MilvusExplanations
from services.index.milvus.retrieval import MilvusRetrieval
from services.index.milvus.schema import K_MOST, TEXT_BYTES
from services.index.ranking.encoding import QueryEncoder, Reranker
from services.index.settings import IndexSettings
from services.index.values import Backend, BuildOptions, LexicalSettings


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
    address = MilvusAddress(settings.milvus_uri, settings.milvus_token, settings.milvus_database)
    link = MilvusLink(address, timeout_s=settings.milvus_timeout_s, threads=settings.milvus_threads, on_state=on_state)
    records = Records(link, settings.milvus_prefix)
    catalogue = MilvusCatalogue(link, records)
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
    builds = MilvusBuildOptions(settings.milvus_engine, settings.milvus_patience_s, settings.milvus_lease_s)
    builder = MilvusBuilder(link, records, catalogue, encoders, settings.limits, options, builds)
    sweeper = Sweeper(link, records, catalogue, refresh_s=settings.milvus_refresh_s, lease_s=settings.milvus_lease_s)

    async def close() -> None:
        await sweeper.close()
        await link.close()

    return Backend(catalogue, retrieval, builder, explanations, sweeper.start, close)


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

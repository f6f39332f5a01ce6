"""The index's metrics, with units in their names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

_QUERIES = (1, 2, 4, 8, 16, 32, 64)


class IndexMetrics:
    """The index's counters and histograms."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._batch = Histogram(
            "aeenc_index_search_batch_queries",
            "Query vectors searched for together",
            registry=registry,
            buckets=_QUERIES,
        )
        self._core = Counter(
            "aeenc_index_search_core_seconds", "Processor time of the thread that searches", registry=registry
        )

    def searched(self, queries: int, core_s: float) -> None:
        """Records one batch."""
        self._batch.observe(queries)
        self._core.inc(core_s)

"""The encoder's metrics, with units in their names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_RATIO = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7)


class EncoderMetrics:
    """The counters, gauges and histograms of the encoder."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.queued_tokens = Gauge(
            "aeenc_encoder_queued_tokens", "Tokens admitted and not yet answered", ["lane"], registry=registry
        )
        self.queue_seconds = Histogram(
            "aeenc_encoder_queue_seconds",
            "Time that a call's texts waited for a worker",
            ["lane"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._batch_items = Histogram(
            "aeenc_encoder_batch_items",
            "Texts in a batch",
            registry=registry,
            buckets=(1, 2, 4, 8, 16, 32, 64, 256, 1024, 4096),
        )
        self._batch_tokens = Histogram(
            "aeenc_encoder_batch_tokens", "Tokens in a batch without padding", registry=registry, buckets=_TOKENS
        )
        self._padding = Histogram(
            "aeenc_encoder_padding_ratio", "Share of a batch that is padding", registry=registry, buckets=_RATIO
        )
        self._compute = Histogram(
            "aeenc_encoder_compute_seconds", "Time of one batch in the model", registry=registry, buckets=_SECONDS
        )
        self.refused = Counter("aeenc_encoder_refused", "Calls refused by admission", ["reason"], registry=registry)
        self.dropped = Counter(
            "aeenc_encoder_dropped_texts", "Texts dropped before they were computed", ["reason"], registry=registry
        )
        self.restarts = Counter(
            "aeenc_encoder_worker_restarts", "Workers that died or got stuck", ["reason"], registry=registry
        )
        self.swaps = Counter(
            "aeenc_encoder_swaps",
            "Attempts to serve a version; the labels of all runs count as `run`",
            ["space", "label", "outcome"],
            registry=registry,
        )
        self._serving = Gauge(
            "aeenc_encoder_serving_revision",
            "Registry revision of the version that a label serves here",
            ["space", "label", "version"],
            registry=registry,
        )
        self._precision = Gauge(
            "aeenc_encoder_precision",
            "1 for the precision in which the version that a label serves computes queries here",
            ["space", "label", "precision"],
            registry=registry,
        )
        self._runtime = Gauge(
            "aeenc_encoder_runtime",
            "1 for what computes here, 0 when it is a fall-back",
            ["runtime"],
            registry=registry,
        )
        self._served: dict[tuple[str, str], tuple[str, str]] = {}

    def batch(self, *, items: int, tokens: int, computed: int, seconds: float) -> None:
        """Records one computed batch; `computed` counts the tokens of its texts and the padding."""
        self._batch_items.observe(items)
        self._batch_tokens.observe(tokens)
        self._padding.observe(1 - tokens / computed)
        self._compute.observe(seconds)

    def runs_on(self, runtime: str, handicap: str) -> None:
        """Shows what computes here; `handicap` says why it is not what it could be."""
        self._runtime.labels(runtime).set(0 if handicap else 1)

    def serves(self, space_id: str, label: str, version: str, revision: int, precision: str) -> None:
        """Shows the version that a label serves and the precision of its queries, and no longer the one before."""
        if self._served.get((space_id, label)) != (version, precision):
            self.unserved(space_id, label)
        self._served[space_id, label] = version, precision
        self._serving.labels(space_id, label, version).set(revision)
        self._precision.labels(space_id, label, precision).set(1)

    def unserved(self, space_id: str, label: str) -> None:
        """Records that a label no longer serves here."""
        served = self._served.pop((space_id, label), None)
        if served is not None:
            version, precision = served
            self._serving.remove(space_id, label, version)
            self._precision.remove(space_id, label, precision)

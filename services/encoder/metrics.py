"""The encoder's metrics, with units in their names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class EncoderMetrics:
    """What the encoder counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.queued_items = Gauge(
            "aeenc_encoder_queued_items", "Texts admitted and not yet answered", registry=registry
        )
        self._batch_items = Histogram(
            "aeenc_encoder_batch_items", "Texts in a batch", registry=registry, buckets=(1, 2, 4, 8, 16, 32, 64)
        )
        self._batch_tokens = Histogram(
            "aeenc_encoder_batch_tokens", "Tokens in a batch without padding", registry=registry, buckets=_TOKENS
        )
        self._padding = Counter("aeenc_encoder_padding_tokens", "Padding tokens computed", registry=registry)
        self._compute = Histogram(
            "aeenc_encoder_compute_seconds", "Time of one session run", registry=registry, buckets=_SECONDS
        )
        self.swaps = Counter(
            "aeenc_encoder_swaps", "Attempts to serve a version", ["label", "outcome"], registry=registry
        )
        self.serving = Gauge(
            "aeenc_encoder_label_revision",
            "Registry revision that a label has here",
            ["label", "version"],
            registry=registry,
        )

    def batch(self, *, items: int, tokens: int, longest: int, seconds: float) -> None:
        """Records one computed batch."""
        self._batch_items.observe(items)
        self._batch_tokens.observe(tokens)
        self._padding.inc(items * longest - tokens)
        self._compute.observe(seconds)

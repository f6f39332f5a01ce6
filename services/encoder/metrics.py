"""The encoder's metrics, with units in their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.store.registry_rows import LabelRow

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_ITEMS = (1, 2, 4, 8, 16, 32, 64, 256, 1024, 4096)
_RATIO = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7)


class EncoderMetrics:
    """The counters, gauges and histograms of the encoder."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge, counter = partial(Gauge, registry=registry), partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self.queued_tokens = gauge("aeenc_encoder_queued_tokens", "Tokens admitted and not yet answered", ["lane"])
        about = "Time that a call's texts waited for a worker"
        self.queue_seconds = histogram("aeenc_encoder_queue_seconds", about, ["lane"], buckets=_SECONDS)
        self.batch_items = histogram("aeenc_encoder_batch_items", "Texts in a batch", buckets=_ITEMS)
        about = "Tokens in a batch without padding"
        self.batch_tokens = histogram("aeenc_encoder_batch_tokens", about, buckets=_TOKENS)
        self.padding = histogram("aeenc_encoder_padding_ratio", "Share of a batch that is padding", buckets=_RATIO)
        about = "Time of one batch in the model"
        self.compute_seconds = histogram("aeenc_encoder_compute_seconds", about, buckets=_SECONDS)
        self.refused = counter("aeenc_encoder_refused", "Calls refused by admission", ["reason"])
        about = "Texts dropped before they were computed"
        self.dropped = counter("aeenc_encoder_dropped_texts", about, ["reason"])
        self.restarts = counter("aeenc_encoder_worker_restarts", "Workers that died or got stuck", ["reason"])
        about = "Attempts to serve a version; the labels of all runs count as `run`"
        self.swaps = counter("aeenc_encoder_swaps", about, ["space", "label", "outcome"])
        about = "1 for what computes here, 0 when it is a fall-back"
        self.runtime = gauge("aeenc_encoder_runtime", about, ["runtime"])


class ServedLabels(Collector):
    """Shows at each scrape what labels serve."""

    def __init__(self, labels: Mapping[tuple[str, str], LabelRow]) -> None:
        self._labels = labels

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yields revision and precision of each label."""
        about = "Registry revision of the version that a label serves here"
        revision = GaugeMetricFamily("aeenc_encoder_serving_revision", about, labels=["space", "label", "version"])
        about = "1 for the precision in which the version that a label serves computes queries here"
        precision = GaugeMetricFamily("aeenc_encoder_precision", about, labels=["space", "label", "precision"])
        for row in list(self._labels.values()):  # the event loop may change them meanwhile
            revision.add_metric([row.space_id, row.name, row.version], row.revision)
            precision.add_metric([row.space_id, row.name, row.precision], 1)
        yield from (revision, precision)

    describe = collect

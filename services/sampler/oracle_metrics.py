"""What is counted of each oracle: its calls by outcome and duration, its verdicts, and whether it is taken for down."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from aeenc import errors

if TYPE_CHECKING:
    from services.sampler.oracle_gateway import Judged

_BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 3600.0)


class OracleMetrics:
    """Metrics of all oracles of a sampler."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter("aeenc_sampler_oracle_calls", "Calls by outcome", ["oracle", "code"], registry=registry)
        self._seconds = Histogram(
            "aeenc_sampler_oracle_seconds", "Duration of calls", ["oracle"], registry=registry, buckets=_BUCKETS_S
        )
        self._verdicts = Counter(
            "aeenc_sampler_oracle_verdicts", "Verdicts by what was read", ["oracle", "ruling"], registry=registry
        )
        self._open = Gauge(
            "aeenc_sampler_oracle_open", "1 while calls wait because the oracle fails", ["oracle"], registry=registry
        )

    @contextmanager
    def call(self, oracle: str) -> Iterator[None]:
        """Counts and times one call. A cancelled one is not counted."""
        begun = time.monotonic()
        try:
            yield
        except errors.AeencError as error:
            self._ended(oracle, error.code, begun)
            raise
        self._ended(oracle, "OK", begun)

    def _ended(self, oracle: str, code: str, begun: float) -> None:
        self._calls.labels(oracle, code).inc()
        self._seconds.labels(oracle).observe(time.monotonic() - begun)

    def read(self, oracle: str, answered: Sequence[Judged]) -> None:
        """Counts the verdicts of answers; those on premises that nobody asked about as UNKNOWN."""
        tally = Tally(ruling.name for judged in answered for ruling in judged.rulings.values())
        tally["UNKNOWN"] = sum(judged.unknown for judged in answered)
        for ruling, count in tally.items():
            self._verdicts.labels(oracle, ruling).inc(count)

    def open(self, oracle: str, is_open: bool) -> None:
        """Says whether the oracle is taken for down."""
        self._open.labels(oracle).set(int(is_open))

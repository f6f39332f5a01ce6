"""Counts and durations of calls."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class RpcMetrics:
    """Counts and times calls by method and status code, and counts them by caller."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "aeenc_rpc_seconds", "Duration of calls", ["method"], registry=registry, buckets=_BOUNDS_S
        )
        self._total = Counter("aeenc_rpc", "Calls by outcome", ["method", "code"], registry=registry)
        self._callers = Counter("aeenc_caller_calls", "Calls by caller", ["caller", "code"], registry=registry)
        self._known: dict[tuple[str, str, str], tuple[Histogram, Counter, Counter]] = {}

    def observe(self, method: str, code: str, elapsed_s: float, caller: str = "") -> None:
        """Records one finished call. `caller` is empty where no credential is needed or none was valid."""
        key = method, code, caller
        if (known := self._known.get(key)) is None:  # to find them by their labels costs as much as to count
            by_method, by_code = self._seconds.labels(method), self._total.labels(method, code)
            known = self._known[key] = by_method, by_code, self._callers.labels(caller, code)
        seconds, total, callers = known
        seconds.observe(elapsed_s)
        total.inc()
        callers.inc()

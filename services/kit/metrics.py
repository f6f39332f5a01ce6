"""Prometheus metrics of a service, with units in their names, on a port of their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class RpcMetrics:
    """Counts and times calls by method and status code."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "aeenc_rpc_seconds", "Duration of calls", ["method"], registry=registry, buckets=_BUCKETS_S
        )
        self._total = Counter("aeenc_rpc", "Calls by outcome", ["method", "code"], registry=registry)
        self._ok: dict[str, tuple[Histogram, Counter]] = {}  # looking children up by label costs as much as counting

    def observe(self, method: str, code: str, elapsed_s: float) -> None:
        """Records one finished call."""
        if code != "OK":
            self._seconds.labels(method).observe(elapsed_s)
            self._total.labels(method, code).inc()
            return
        if method not in self._ok:
            self._ok[method] = self._seconds.labels(method), self._total.labels(method, code)
        seconds, total = self._ok[method]
        seconds.observe(elapsed_s)
        total.inc()


class MetricsEndpoint:
    """Serves a registry over HTTP until closed. `port` is the one bound."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()

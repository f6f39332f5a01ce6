"""Traces: spans of calls and of work in the background, by OpenTelemetry.

    caller's traceparent -> span of the call -> spans inside -> traceparent of the calls that it makes (the SDK's part)
                                  '- its text in a record -> span of the run, job or swap that works on the record

Without `configure` nothing is recorded, and the trace of a caller is forwarded as it came. The values of requests are
never in a span: texts and credentials belong to callers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from aeenc import errors

__all__ = ["Context", "Span"]

TRACEPARENT = "traceparent"
_W3C = TraceContextTextMapPropagator()
_tracer = trace.get_tracer("aeenc")  # finds the provider once there is one
_receivers: list[str] = []
# Failures that are the service's, not the caller's.
_FAULTS = {"INTERNAL", "UNAVAILABLE", "DATA_LOSS", "DEADLINE_EXCEEDED", "UNKNOWN"}


def configure(endpoint: str, share: float, *, service: str, instance: str, version: str) -> Callable[[], None]:
    """Sends spans to an OTLP receiver (gRPC, `http://host:4317`). Returns what sends the last ones and ends it.

    `share`, 0 to 1, is the part of the traces that begin here; a caller decides on its own. Headers, certificates and
    the sizes of batches are OpenTelemetry's variables `OTEL_EXPORTER_OTLP_…` and `OTEL_BSP_…`.
    Raises InvalidArgument where the packages are not installed or the endpoint is no URL.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise errors.InvalidArgument(f"trace_endpoint {endpoint!r} is not a URL; give http://host:4317, or https://")
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ImportError as error:
        raise errors.InvalidArgument(
            f"trace_endpoint {endpoint!r} needs packages that are not installed ({error}); install "
            "'aeenc-services[tracing]', or unset it"
        ) from error
    about = {"service.name": f"aeenc-{service}", "service.instance.id": instance, "service.version": version}
    provider = TracerProvider(
        resource=Resource.create(about), sampler=ParentBased(TraceIdRatioBased(share)), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    trace.set_tracer_provider(provider)
    _receivers.append(endpoint)
    return provider.shutdown


def begin_call(method: str, metadata: Mapping[str, Any]) -> Span | None:
    """Begins the span of a call, within the caller's trace if it sent one. The task that answers is inside it.

    Returns None if nobody records spans and the caller sent no trace.
    """
    if not _receivers and TRACEPARENT not in metadata:
        return None
    parent = _W3C.extract(metadata) if TRACEPARENT in metadata else None
    span = _tracer.start_span(method[1:], parent, SpanKind.SERVER)
    if span.get_span_context().is_valid:
        attach(trace.set_span_in_context(span))
    return span


def end_call(span: Span, code: str, request_id: str) -> None:
    """Ends the span of a call with its status."""
    if span.is_recording():
        span.set_attributes({"rpc.response.status_code": code, "aeenc.request_id": request_id})
        if code in _FAULTS:
            span.set_status(StatusCode.ERROR)
    span.end()


@contextmanager
def span(
    name: str, *, within: str | Context | None = None, links: Iterable[str] = (), **attributes: str | int
) -> Iterator[Span]:
    """Makes a span of the body: within the running one, or within a context or a `traceparent` that was kept.

    `links` are the traceparents of what else it belongs to. What the body raises marks it as failed.
    """
    parent = _of_text(within) if isinstance(within, str) else within
    linked = [Link(context) for text in links if (context := _span_context(text)).is_valid]
    named = {f"aeenc.{key}": value for key, value in attributes.items()}
    begun = _tracer.start_span(name, parent, attributes=named, links=linked)
    token = attach(trace.set_span_in_context(begun, parent))
    try:
        yield begun
    except Exception as error:
        begun.set_status(StatusCode.ERROR, type(error).__name__)
        raise
    finally:
        detach(token)
        begun.end()


@contextmanager
def shared(name: str, first: Context, others: Sequence[str]) -> Iterator[None]:
    """Goes on in the trace of the first of several callers; where there are others, in a span that links theirs."""
    if others:
        with span(name, within=first, links=others, callers=1 + len(others)):
            yield
        return
    token = attach(first)
    try:
        yield
    finally:
        detach(token)


def failed() -> None:
    """Marks the running span as failed, where an error is recorded and not raised."""
    trace.get_current_span().set_status(StatusCode.ERROR)


def here() -> Context:
    """Returns the running span, to continue within it from another task."""
    return get_current()


def traceparent(context: Context | None = None) -> str:
    """Returns the running span, or that of a context, as text for a record; empty where there is none."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, context)
    return carrier.get(TRACEPARENT, "")


def ids() -> dict[str, str]:
    """Returns the ids of the running span, for a line of the log; empty where there is none."""
    running = trace.get_current_span().get_span_context()
    return {"trace_id": f"{running.trace_id:032x}", "span_id": f"{running.span_id:016x}"} if running.is_valid else {}


def _of_text(text: str) -> Context:
    return _W3C.extract({TRACEPARENT: text}, Context())


def _span_context(text: str) -> SpanContext:
    return trace.get_current_span(_of_text(text)).get_span_context()

"""Traces: a span of each call, and its `traceparent` in the metadata, where the program uses OpenTelemetry.

A program without OpenTelemetry pays nothing: the package is looked for among the imported modules, never imported
first. Who records spans has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from aeenc import errors

_API = "opentelemetry.trace"


@contextmanager
def traced(method: Callable[..., Any], metadata: list[tuple[str, str]]) -> Iterator[None]:
    """Makes a span of a call, a child of the running one, and adds its `traceparent` to the call's metadata.

    The span is not the running one of the body, which may be a generator: its caller's own spans stay beside it.
    """
    api: Any = sys.modules.get(_API)
    if api is None:
        yield
        return
    span = _tracer(api).start_span(name_of(method), kind=api.SpanKind.CLIENT)
    context = span.get_span_context()
    if not context.is_valid:
        yield
        return
    metadata.append(("traceparent", f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"))
    if context.trace_state:
        metadata.append(("tracestate", context.trace_state.to_header()))
    code = "OK"
    try:
        yield
    except errors.AeencError as error:
        code = error.code
        span.set_status(api.StatusCode.ERROR, code)
        raise
    except BaseException:
        code = "CANCELLED"
        raise
    finally:
        if span.is_recording():
            span.set_attribute("rpc.response.status_code", code)
        span.end()


@cache
def _tracer(api: Any) -> Any:
    """Makes the tracer once, which costs as much as a span. It finds the program's provider when there is one."""
    return api.get_tracer("aeenc")


def name_of(method: Any) -> str:
    """Returns the full name of a method of a stub, which grpc keeps to itself."""
    name = getattr(method, "_method", b"")
    return (name.decode() if isinstance(name, bytes) else str(name)).lstrip("/") or "call"

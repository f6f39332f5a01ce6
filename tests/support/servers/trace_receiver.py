"""A receiver of spans: OTLP over gRPC on the loopback, as a collector is one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from support.worlds.sampler_world import serving


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it arrived; ids in hexadecimal, `parent` empty for the first of a trace."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    links: tuple[str, ...]
    kind: int
    attributes: dict[str, str]


@dataclass
class TraceReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it receives; `port` is the one bound."""

    spans: list[ReceivedSpan] = field(default_factory=list)
    port: int = 0

    @property
    def endpoint(self) -> str:
        """The address, as AEENC_*_TRACE_ENDPOINT."""
        return f"http://127.0.0.1:{self.port}"

    async def Export(self, request: trace_service_pb2.ExportTraceServiceRequest, context: Any) -> Any:
        for of_resource in request.resource_spans:
            resource = {one.key: one.value.string_value for one in of_resource.resource.attributes}
            for of_scope in of_resource.scope_spans:
                self.spans += [_received(resource["service.name"], span) for span in of_scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name: str) -> list[ReceivedSpan]:
        """The spans of a name."""
        return [span for span in self.spans if span.name == name]

    async def path(self, *names: str, timeout_s: float = 15.0) -> list[ReceivedSpan]:
        """Waits for spans of these names, each the parent of the next. Raises AssertionError with what there is."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            for last in self.named(names[-1]):
                if (found := self._up(last, names)) is not None:
                    return found
            if asyncio.get_running_loop().time() > deadline:
                by_id = {span.id: span.name for span in self.spans}
                seen = sorted({f"{by_id.get(span.parent, span.parent)} → {span.name}" for span in self.spans})
                raise AssertionError(f"no path {' → '.join(names)} among: {'; '.join(seen)}")
            await asyncio.sleep(0.02)

    def _up(self, last: ReceivedSpan, names: tuple[str, ...]) -> list[ReceivedSpan] | None:
        found = [last]
        for name in reversed(names[:-1]):
            parents = (one for one in self.named(name) if (one.trace, one.id) == (found[0].trace, found[0].parent))
            parent = next(parents, None)
            if parent is None:
                return None
            found.insert(0, parent)
        return found

    @asynccontextmanager
    async def running(self) -> AsyncIterator[TraceReceiver]:
        """Receives on a free port."""
        async with serving(trace_service_pb2_grpc.add_TraceServiceServicer_to_server, self) as self.port:
            yield self


def _received(service: str, span: Span) -> ReceivedSpan:
    return ReceivedSpan(
        service=service,
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        links=tuple(link.span_id.hex() for link in span.links),
        kind=span.kind,
        attributes={one.key: one.value.string_value or str(one.value.int_value) for one in span.attributes},
    )

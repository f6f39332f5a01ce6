"""The steps around every call. They wrap the handler of each method in one place, so that their order stands here.

    call -> gate -> message -> request id -> readiness -> corpora -> handler -> answer -.
             |                     |             |           |          | raises errors   +-> metrics, log, audit
             '- message unread ----+-------------'-----------'----------'-> status -------'

Every answer has the request id in its trailing metadata. Handlers raise `aeenc.errors`; nothing else sets a status.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from google.protobuf.message import Message

from aeenc import errors
from aeenc.transport import status
from services.kit.calls.grpcio_workarounds import RequestStream
from services.kit.calls.metrics import RpcMetrics
from services.kit.convert import REQUEST_ID_KEY, begin_request, named_fields, request_id
from services.kit.credentials.gate import ADMITTED, Caller, Gate, caller
from services.kit.credentials.roles import REFLECTION_PREFIX, Role, role_for
from services.kit.logs import get
from services.kit.readiness import Readiness
from services.kit.tracing import Span, begin_call, end_call

log = get(__name__)
LINGER_S = 0.5
ABOUT_CHARS = 256  # of each name in a line of the audit trail

_DISK_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
# Answered in every state and without credentials: a load balancer has none.
_OPEN_PREFIXES = ("/grpc.health.v1.",)
_METADATA: ContextVar[Mapping[str, Any]] = ContextVar("metadata")  # of the call in work; converting it takes a while
_ARITY = {False: "unary", True: "stream"}


@dataclass(frozen=True)
class Method:
    """What is known of a method before it is called."""

    name: str  # /package.Service/Rpc
    changes: bool  # whether it changes something, and is audited
    always_answers: bool  # also while the service is not ready
    sends_stream: bool

    @classmethod
    def of(cls, name: str, handler: Any) -> Method:
        """Describes the method of a handler."""
        always = name.endswith("/GetInfo") or name.startswith(REFLECTION_PREFIX)
        return cls(name, role_for(name) > Role.READ, always, handler.request_streaming)


class Call:
    """A call in work: its method, who makes it, and what it is about, for the audit trail."""

    __slots__ = ("about", "caller", "method", "request_id", "span", "started")

    def __init__(self, method: Method, caller: Caller, request_id: str, span: Span) -> None:
        self.method, self.caller, self.request_id, self.span = method, caller, request_id, span
        self.started = time.perf_counter()
        self.about: dict[str, str] = {}

    def look(self, message: Any) -> None:
        """Checks the corpora that a message names, and notes its names for the audit trail.

        Raises PermissionDenied for a corpus that is not open to the caller.
        """
        if not (self.caller.corpora or self.method.changes) or not isinstance(message, Message):
            return
        named = list(named_fields(message))
        self.about |= {name: value[:ABOUT_CHARS] for name, value in named if value}
        self.caller.check_corpora(value for name, value in named if name == "corpus")


class CallHandlers(grpc.GenericRpcHandler):
    """The handlers of a server, each wrapped. Servicers are added to it as to a server.

    It takes the place of an interceptor of grpc, which would be two more coroutines for each call.
    """

    def __init__(self, gate: Gate, readiness: Readiness, metrics: RpcMetrics) -> None:
        self._gate = gate
        self._readiness = readiness
        self._metrics = metrics
        self._added: list[grpc.GenericRpcHandler] = []
        self._wrapped: dict[str, tuple[Any, Any]] = {}  # by method: for those who may call it, and for others

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Adds the handlers of a service."""
        self._added += handlers

    def add_registered_method_handlers(self, _service: str, _handlers: Mapping[str, Any]) -> None:
        """Does nothing: generated code adds the same handlers by `add_generic_rpc_handlers`."""

    def service(self, handler_call_details: Any) -> Any:
        """Finds the handler of a call, which runs between admission and bookkeeping.

        Who may not call the method gets another, which refuses the call without parsing what was sent.
        """
        method = str(handler_call_details.method)
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            found = (added.service(handler_call_details) for added in self._added)
            if (handler := next(filter(None, found), None)) is None:
                return None
            wrapped = self._wrapped[method] = self._wrap(method, handler)
        for_callers, for_others = wrapped
        if method.startswith(_OPEN_PREFIXES):
            return for_callers
        metadata = dict(handler_call_details.invocation_metadata or ())
        _METADATA.set(metadata)
        try:  # the handler runs in the same context, and finds there who calls
            ADMITTED.set(self._gate.admit(method, str(metadata.get("authorization", ""))))
        except errors.AeencError as error:
            ADMITTED.set(error)
            return for_others
        return for_callers

    def _wrap(self, method: str, handler: Any) -> tuple[Any, Any]:
        kind = f"{_ARITY[handler.request_streaming]}_{_ARITY[handler.response_streaming]}"
        wrap = self._wrap_streaming if handler.response_streaming else self._wrap_unary
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        inner = getattr(handler, kind)
        called = _pass_through(inner) if method.startswith(_OPEN_PREFIXES) else wrap(Method.of(method, handler), inner)
        decode = _make_decoder(handler.request_deserializer, streaming=handler.request_streaming)
        answer = _make_encoder(handler.response_serializer)
        return make(called, decode, answer), make(called, None, answer)

    def _wrap_unary(self, method: Method, inner: Callable[..., Any]) -> Callable[..., Any]:
        async def answer(request: Any, context: Any) -> Any:
            call = self._begin(method, context)
            if method.sends_stream:
                request = RequestStream(request, call.look, confirm=lambda: context.send_initial_metadata(()))
            try:
                self._admit(call, request)
                response = await inner(request, context)
            except BaseException as error:  # noqa: BLE001 -- every outcome becomes a status, and cancellation goes on
                return await self._fail(call, error, request, context)
            self._end(call, "OK")
            return response

        return answer

    def _wrap_streaming(self, method: Method, inner: Callable[..., Any]) -> Callable[..., Any]:
        async def answer(request: Any, context: Any) -> AsyncIterator[Any]:
            call = self._begin(method, context)
            if method.sends_stream:
                request = RequestStream(request, call.look)
            try:
                self._admit(call, request)
                async for response in inner(request, context):
                    yield response
            except GeneratorExit:
                self._end(call, "CANCELLED")
                raise
            except BaseException as error:  # noqa: BLE001 -- as above
                await self._fail(call, error, request, context)
                return
            self._end(call, "OK")

        return answer

    def _begin(self, method: Method, context: Any) -> Call:
        metadata = _METADATA.get()
        request_id = begin_request(metadata)
        context.set_trailing_metadata(((REQUEST_ID_KEY, request_id),))
        bound = {"traceparent": str(metadata["traceparent"])[:64]} if "traceparent" in metadata else {}
        call = Call(method, caller(), request_id, begin_call(method.name, metadata))
        if call.caller.name:
            bound["caller"] = call.caller.name
        structlog.contextvars.bind_contextvars(request_id=request_id, **bound)
        return call

    def _admit(self, call: Call, request: Any) -> None:
        if isinstance(ADMITTED.get(), errors.AeencError):
            # No local name: it would tie the error to this frame, in a circle.
            raise ADMITTED.get()  # type: ignore[misc]
        if not self._readiness.answers and not call.method.always_answers:
            raise errors.Unavailable(f"the service is not ready: {self._readiness.reason}", retry_after_s=0.25)
        if isinstance(request, errors.AeencError):
            raise request
        if not call.method.sends_stream:
            call.look(request)

    def _end(self, call: Call, code: str) -> None:
        elapsed_s = time.perf_counter() - call.started
        self._metrics.observe(call.method.name, code, elapsed_s, call.caller.name)
        log.debug("call", method=call.method.name, code=code, elapsed_ms=round(elapsed_s * 1e3, 2))
        if call.method.changes and call.caller.name:
            log.info("audit", method=call.method.name, code=code, **call.about)
        end_call(call.span, code, call.request_id)

    async def _fail(self, call: Call, error: BaseException, request: Any, context: Any) -> None:
        """Ends the call with the error's status. Cancellation is raised again.

        Sets the status instead of calling `context.abort`: what that raises and the call's state refer to each other,
        some fifty objects that only the garbage collector frees, in tens of milliseconds at a time.
        """
        if isinstance(error, asyncio.CancelledError):
            self._end(call, "CANCELLED")
            raise error
        known = to_public_error(error, request_id(context))
        if known.code == "INTERNAL":
            log.error("call failed", method=call.method.name, exc_info=error)
        elif self._readiness.answers and known.code in {"UNAVAILABLE", "DATA_LOSS"}:
            log.warning("call refused", method=call.method.name, code=known.code, message=known.message)
        self._end(call, known.code)
        if call.method.sends_stream:
            await _linger(request)
        named = (REQUEST_ID_KEY, request_id(context))
        context.set_trailing_metadata((named, (status.DETAILS_KEY, status.details_of(known))))
        context.set_details(status.message_of(known))
        context.set_code(status.code_of(known))


def _pass_through(inner: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a handler of grpc itself, which sets its own status."""

    async def call(request: Any, context: Any) -> Any:
        if isinstance(request, errors.AeencError):
            await context.abort(status.code_of(request), request.message)
        return await inner(request, context)

    return call


def _make_decoder(decode: Callable[[bytes], Any], *, streaming: bool) -> Callable[[bytes], Any]:
    """Wraps `decode`: bytes that are not a message become InvalidArgument.

    For a single request the error is returned in place of the message, because grpc answers UNKNOWN to what is raised
    here. For a stream it is raised to the handler that reads.
    """

    def decode_or_refuse(data: bytes) -> Any:
        try:
            return decode(data)
        except Exception as error:  # each implementation of protobuf raises another class
            known = errors.InvalidArgument("the bytes sent are not a message of this method; send what its .proto says")
            if streaming:
                raise known from error
            return known

    return decode_or_refuse


def _make_encoder(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Wraps `encode`: a handler may have serialised its answer already, to know the size or off the event loop."""

    def encode_once(answer: Any) -> bytes:
        return answer if isinstance(answer, bytes) else encode(answer)

    return encode_once


async def _linger(requests: AsyncIterator[Any]) -> None:
    """Reads for a moment what a refused caller still sends.

    A gRPC client that cannot send its message reports an error of its own and never sees ours.
    """
    with contextlib.suppress(Exception):  # the call has failed already; nothing here may hide why
        async with asyncio.timeout(LINGER_S):
            async for _ in requests:
                pass


def to_public_error(error: BaseException, request_id: str = "") -> errors.AeencError:
    """Returns the error that a caller may see: ours as it is, a timeout or full disk by name, all else as INTERNAL."""
    if isinstance(error, errors.AeencError):
        return error
    if isinstance(error, TimeoutError):
        return errors.DeadlineExceeded("the call's time is over; allow more time")
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        return errors.Unavailable("the disk is full or a file-size limit is reached; free space and retry")
    return errors.AeencError(f"internal error; the service's log has it under this call's x-request-id {request_id}")

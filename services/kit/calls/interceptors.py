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
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry, Counter, Histogram

from aeenc import errors
from aeenc.transport import status
from services.kit.call import CALL, REQUEST_ID_KEY, Call
from services.kit.calls.bounds import CALL_BYTES, Bounds, HeldBytes
from services.kit.calls.grpcio_workarounds import RequestStream
from services.kit.convert import named_fields
from services.kit.credentials.gate import Caller, Gate
from services.kit.credentials.roles import REFLECTION_PREFIX, Role, role_for
from services.kit.logs import get
from services.kit.readiness import Readiness
from services.kit.tracing import begin_call, end_call

log = get(__name__)
LINGER_S = 0.5
ABOUT_CHARS = 256  # of each name in a line of the audit trail
HEALTH_BYTES = 1024  # of a request by anybody: the name of a service

_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

# What a disk may do to a call: callers can neither cause nor mend it, and operators must know what to look at.
_DISK = {
    **dict.fromkeys((errno.ENOSPC, errno.EFBIG, errno.EDQUOT), "is full or a file-size limit is reached; free space"),
    errno.EROFS: "is read-only; mount it for writing",
    errno.EACCES: "denies the service a file; correct its owner and permissions",
    errno.EPERM: "denies the service a file; correct its owner and permissions",
    errno.EIO: "fails to read or write; replace it, or restore a backup",
    **dict.fromkeys((errno.ENOENT, errno.ESTALE), "lacks a file that was there; look whether its volume is mounted,"),
}
_ARITY = {False: "unary", True: "stream"}
_WATCH_ENDS = "the service is shutting down; watch again (with from_seq, where there is one)"
_IDLE_ENDS = "the service is shutting down; send what was not answered again"
_WATCHERS = Caller("health watches", on_behalf=False)  # all together are one caller: nobody knows who they are


class Method:
    """The properties of a method, the same for all its calls.

    `changes` says that it changes something, and is audited; `always_answers`, that it does while the service is not
    ready, too; `is_open`, that it does so without credentials: a load balancer has none; `lasts`, that it streams;
    `watches`, that it does so without an end of its own.
    """

    def __init__(self, name: str, *, sends_stream: bool, gets_stream: bool) -> None:
        self.name = name  # /package.Service/Rpc
        self.sends_stream, self.gets_stream = sends_stream, gets_stream
        self.lasts = sends_stream or gets_stream
        self.watches = name.rpartition("/")[2].startswith("Watch")
        self.changes = role_for(name) > Role.READ
        self.is_open = name.startswith("/grpc.health.v1.")
        self.always_answers = name.endswith("/GetInfo") or name.startswith(REFLECTION_PREFIX)


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


class CallHandlers(grpc.GenericRpcHandler):
    """The handlers of a server, each wrapped. Servicers are added to it as to a server.

    It takes the place of an interceptor of grpc, which would be two more coroutines for each call.
    """

    def __init__(self, gate: Gate, readiness: Readiness, metrics: RpcMetrics, bounds: Bounds) -> None:
        self._gate = gate
        self._bounds = bounds
        self._readiness = readiness
        self._metrics = metrics
        self._added: list[grpc.GenericRpcHandler] = []
        self._wrapped: dict[str, tuple[Method, Any, Any]] = {}  # by name: for those who may call it, and for others
        self._logs_calls = log.is_enabled_for(logging.DEBUG)

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Adds the handlers of a service."""
        self._added += handlers

    def add_registered_method_handlers(self, _service: str, _handlers: Mapping[str, Any]) -> None:
        """Does nothing: generated code adds the same handlers by `add_generic_rpc_handlers`."""

    def service(self, handler_call_details: Any) -> Any:
        """Finds the handler of a call, which runs between admission and bookkeeping.

        Who may not call the method gets another, which refuses the call without parsing what was sent.
        """
        name = str(handler_call_details.method)
        wrapped = self._wrapped.get(name)
        if wrapped is None:
            found = (added.service(handler_call_details) for added in self._added)
            if (handler := next(filter(None, found), None)) is None:
                return None
            wrapped = self._wrapped[name] = self._wrap(name, handler)
        method, for_callers, for_others = wrapped
        if method.is_open:
            return for_callers
        metadata = dict(handler_call_details.invocation_metadata or ())  # converting it takes a while
        try:
            caller = self._gate.admit(name, str(metadata.get("authorization", "")))
        except errors.AeencError as error:
            CALL.set(Call(method, metadata, Caller(error.metadata.get("caller", "")), error))
            return for_others
        CALL.set(Call(method, metadata, caller))  # the handler runs in the same context
        return for_callers

    def _wrap(self, name: str, handler: Any) -> tuple[Method, Any, Any]:
        kind = f"{_ARITY[handler.request_streaming]}_{_ARITY[handler.response_streaming]}"
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        inner = getattr(handler, kind)
        method = Method(name, sends_stream=handler.request_streaming, gets_stream=handler.response_streaming)
        called = self._pass_through(method, inner) if method.is_open else self._wrap_steps(method, inner)
        decode = self._make_decoder(method, handler.request_deserializer)
        answer = _make_encoder(handler.response_serializer)
        return method, make(called, decode, answer), make(called, None, answer)

    def _wrap_steps(self, method: Method, inner: Callable[..., Any]) -> Callable[..., Any]:
        run = partial(_write_all, inner) if method.gets_stream else inner

        async def answer(request: Any, context: Any) -> Any:
            call = _begin(context)
            if method.sends_stream:
                confirm = None if method.gets_stream else partial(context.send_initial_metadata, ())
                request = RequestStream(request, partial(self._make_room, call), partial(_look, call), confirm)
            try:
                self._admit(call, request)
                with self._lasting(call) if method.lasts else contextlib.nullcontext():
                    response = await run(request, context)
            except BaseException as error:  # noqa: BLE001 -- every outcome becomes a status, and cancellation goes on
                return await self._fail(call, error, request, context)
            finally:
                self._release(call)
            self._end(call, "OK")
            return response

        return answer

    def _admit(self, call: Call, request: Any) -> None:
        if call.refusal is not None:
            raise call.take_refusal()
        if not self._readiness.answers and not call.method.always_answers:
            raise errors.Unavailable(f"the service is not ready: {self._readiness.reason}", retry_after_s=0.25)
        if isinstance(request, errors.AeencError):
            raise request
        if not call.method.sends_stream:
            _look(call, request)

    @contextlib.contextmanager
    def _lasting(self, call: Call) -> Iterator[None]:
        """Counts a stream; once its credential, or the service of a watch or an idle stream, ends, cancels this task.

        `call.refusal` then says why. Raises what has ended before, and Overloaded when there are too many.
        """
        task = asyncio.current_task()
        assert task is not None

        def check() -> None:
            if self._readiness.is_closing and (call.method.watches or call.is_idle):
                raise errors.Unavailable(_WATCH_ENDS if call.method.watches else _IDLE_ENDS, retry_after_s=0.25)
            call.caller = self._gate.check(call.method.name, str(call.metadata.get("authorization", "")))
            call.caller.check_corpora(filter(None, [call.about.get("corpus")]))

        def check_again() -> None:
            if call.refusal is not None:
                return
            try:
                check()
            except errors.AeencError as error:
                call.refusal = error
                task.cancel()

        with self._bounds.stream(call.caller), self._gate.watching(check_again):
            check()
            call.check_again = check_again
            try:
                yield
            finally:
                call.check_again = None  # else it and the call would refer to each other

    async def _make_room(self, call: Call) -> None:
        """Lets go of the last message of a stream, and waits until there is room for the next.

        A stream that is read whole keeps all, and does not wait: it might wait for itself.
        """
        if not call.reads_whole:
            self._release(call, 0)
            await self._bounds.messages.room()

    def _release(self, call: Call, held_bytes: int | None = None) -> None:
        self._held_with(call).release(call.held_bytes or 0)
        call.held_bytes = held_bytes

    def _held_with(self, call: Call) -> HeldBytes:
        return self._bounds.whole if call.reads_whole else self._bounds.messages

    def _end(self, call: Call, code: str) -> None:
        elapsed_s = time.perf_counter() - call.started
        self._metrics.observe(call.method.name, code, elapsed_s, call.caller.name)
        if self._logs_calls:
            log.debug("call", method=call.method.name, code=code, elapsed_ms=round(elapsed_s * 1e3, 2))
        if call.method.changes and call.caller.name:
            log.info("audit", method=call.method.name, code=code, **call.about)
        if call.span is not None:
            end_call(call.span, code, call.request_id)

    async def _fail(self, call: Call, error: BaseException, request: Any, context: Any) -> None:
        """Ends the call with the status of its refusal or else of the error. Raises what ends a lost caller's again."""
        if call.refusal is not None:
            error = call.take_refusal()
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
        if isinstance(error, asyncio.CancelledError | grpc.aio.InternalError):  # by a write, or a read
            self._end(call, "CANCELLED")
            raise error
        known = to_public_error(error, call.request_id)
        if known.code == "INTERNAL" or (known.code == "UNAVAILABLE" and known is not error):
            log.error("call failed", method=call.method.name, exc_info=error)
        elif self._readiness.healthy and known.code in {"UNAVAILABLE", "DATA_LOSS"}:
            log.warning("call refused", method=call.method.name, code=known.code, message=known.message)
        self._end(call, known.code)
        if call.method.sends_stream:
            await _linger(request)
        _set_status(context, known, (REQUEST_ID_KEY, call.request_id))

    def _pass_through(self, method: Method, inner: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a handler of grpc itself, which sets its own status."""

        async def call(request: Any, context: Any) -> Any:
            try:
                if isinstance(request, errors.AeencError):
                    raise request
                with self._bounds.stream(_WATCHERS) if method.lasts else contextlib.nullcontext():
                    return await inner(request, context)
            except errors.AeencError as error:
                _set_status(context, error)

        return call

    def _make_decoder(self, method: Method, decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        """Wraps `decode`: bytes are counted, too many become Overloaded, and what is no message InvalidArgument.

        For a single request the error is returned in place of the message, because grpc answers UNKNOWN to what is
        raised here. For a stream it is raised to the handler that reads.
        """

        def decode_or_refuse(data: bytes) -> Any:
            try:
                self._take(method, len(data))
                return decode(data)
            except errors.AeencError as error:
                known = error
            except Exception:  # noqa: BLE001 -- each implementation of protobuf raises another class
                known = errors.InvalidArgument(
                    "the bytes sent are not a message of this method; send what its .proto says"
                )
            if method.sends_stream:
                raise known
            return known

        return decode_or_refuse

    def _take(self, method: Method, size_bytes: int) -> None:
        """Counts a message for the call in work. Raises Overloaded or TooLarge."""
        if method.is_open and size_bytes > HEALTH_BYTES:
            raise errors.TooLarge(f"a health check of {size_bytes:,} bytes is over the limit of {HEALTH_BYTES:,}")
        call = CALL.get()
        if call is not None and call.held_bytes is not None:  # a read may outlast its call
            held_bytes = size_bytes + (0 if call.held_bytes else CALL_BYTES)
            self._held_with(call).take(held_bytes, call.held_bytes)
            call.held_bytes += held_bytes


async def _write_all(handle: Callable[..., AsyncIterator[Any]], request: Any, context: Any) -> None:
    """Writes what a handler yields. Were it handed to grpc, a write that is cancelled would end without a status."""
    async with contextlib.aclosing(handle(request, context)) as responses:  # type: ignore[type-var]
        async for response in responses:
            await context.write(response)


def _begin(context: Any) -> Call:
    call = CALL.get()
    assert call is not None
    call.started = time.perf_counter()
    call.span = begin_call(call.method.name, call.metadata)
    context.set_trailing_metadata(((REQUEST_ID_KEY, call.request_id),))
    return call


def _set_status(context: Any, error: errors.AeencError, *further: tuple[str, str]) -> None:
    """Sets the status that a call ends with.

    `context.abort` would raise what refers to the call's state, and that to it: some fifty objects that only the
    garbage collector frees, in tens of milliseconds at a time.
    """
    context.set_trailing_metadata((*further, (status.DETAILS_KEY, status.details_of(error))))
    context.set_details(status.message_of(error))
    context.set_code(status.code_of(error))


def _look(call: Call, message: Any) -> None:
    """Checks the corpora that a message names, and notes its names for the audit trail.

    Raises PermissionDenied for a corpus that is not open to the caller.
    """
    if not (call.caller.corpora or call.method.changes) or not isinstance(message, Message):
        return
    named = list(named_fields(message))
    call.about |= {name: value[:ABOUT_CHARS] for name, value in named if value}
    call.caller.check_corpora(value for name, value in named if name == "corpus")


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
    if isinstance(error, OSError) and error.errno in _DISK:
        return errors.Unavailable(f"the disk {_DISK[error.errno]} and retry; the service's log names the file")
    return errors.AeencError(f"internal error; the service's log has it under this call's x-request-id {request_id}")

"""One connection to one service: credentials, deadlines, errors and retries. The typed clients stand on it.

gRPC resolves `dns:///name:port` and spreads calls over the servers it finds; `spreading` does so for a list.
"""

from __future__ import annotations

import asyncio
import copy
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import grpc
from grpc.aio import AioRpcError, Metadata

from aeenc import errors
from aeenc.transport import status
from aeenc.transport.addresses import Address, is_local, proxy_of, resolve, split
from aeenc.transport.checks import (
    FIRST_CONNECTED,
    check_request_id,
    check_seconds,
    check_tls,
    credential,
    refuse_plain_token,
    tls_files,
)
from aeenc.transport.spreading import SpreadChannel, SpreadMethod
from aeenc.transport.tracing import name_of, traced

T = TypeVar("T")
_Metadata = list[tuple[str, str]]

MESSAGE_BYTES = 64 * 1024 * 1024  # the most that we accept; GetInfo says what a service accepts
MAX_BACKOFF_S = 2.0
HANDSHAKE_MS = 1000  # what a connection may take at least to come about; a server may stall for a moment
LAST_ATTEMPT_S = 2.0  # two handshakes: an attempt with less time that ends by its deadline hides the refusal before it
KEEPALIVE_S = 330.0  # of silence during a call, then a ping; gRPC's own default allows one in five minutes
KEEPALIVE_TIMEOUT_S = 60.0  # for its answer, before the connection counts as lost
HEDGE_SHARE = 1 / 3  # of a call's time: the most that passes before a silent server is given up
_UNKNOWN_METHOD = ("Method not found", "unknown service", "unknown method")  # how gRPC's servers say it
FOREVER_S = 365 * 24 * 3600.0  # gRPC takes no infinite deadline
AWAY = "AWAY"  # reason of the Unavailable that says: nothing answers at the target
PASSING = (errors.Unavailable, errors.Overloaded)  # the same call may succeed later
_FAILED_WRITE = "Internal error from Core"  # of a stream whose call has just ended; hides why: grpc/grpc#36066
_ROUND_ROBIN = '{"loadBalancingConfig": [{"round_robin": {}}]}'


@dataclass(frozen=True)
class Retry:
    """When a call that failed with UNAVAILABLE or RESOURCE_EXHAUSTED is made again: within its deadline, and after
    pauses that grow to 2 s or last as long as the service asks for.

    `attempts` (at least 1) limits the attempts of a call, the first included; None: only the deadline does. A target
    at which nothing answers is given up after `away_s`; a service that answers and is not ready yet is waited for.
    Where the target is a list of servers, a read whose server has answered nothing for `hedge_s`, or for a third of the
    call's time, is sent to another one, too, within the same attempt; None: it never is.
    """

    attempts: int | None = None
    away_s: float = 4.0
    hedge_s: float | None = 2.0

    def __post_init__(self) -> None:
        if self.attempts is not None and self.attempts < 1:
            raise errors.InvalidArgument.field("attempts", f"must be at least 1, got {self.attempts}")
        if self.hedge_s is not None and not self.hedge_s > 0:
            raise errors.InvalidArgument.field("hedge_s", f"must be positive, got {self.hedge_s}; None sends once")


PATIENT = Retry(away_s=math.inf)  # for programs that outlive restarts of the service, as the services themselves


class Channel:
    """A connection to the service at `target`: `host:port`, `unix:path`, `dns:///name:port` or `host:port,host:port`.

    Calls go round robin over the servers of a DNS name or of a list. A missing port is 443, with TLS alone.
    `token` travels as `authorization: Bearer …`; without TLS, to loopback addresses and unix sockets alone, unless
    `plain_token` is set, for a network that you trust. With `ca` the connection is TLS; `cert` and `key` add a client
    certificate; the server's must bear `tls_name`, by default the target's host. With `tls` alone it is TLS, too, and
    an authority of gRPC's own list must have signed the server's certificate: Mozilla's list, which comes with gRPC,
    not the system's, or the file that GRPC_DEFAULT_SSL_ROOTS_FILE_PATH names. `timeout_s` is the default deadline of a
    call. `retry` says when a failed call is made again; with False every failure is raised at once. `remedy` ends the
    error of a target at which nothing answers, or another service.
    A connection belongs to the event loop in which it is made or, made outside of any, to that in which a client of
    a service is first made with it.
    Raises InvalidArgument for half a key pair, for a pair without TLS, for `tls` without `ca` to a unix socket, for a
    file that cannot be used, for a malformed address, and for a token that would travel plain to another host.
    """

    def __init__(
        self,
        target: str,
        *,
        token: str | None = None,
        ca: Path | str | None = None,
        cert: Path | str | None = None,
        key: Path | str | None = None,
        tls: bool = False,
        plain_token: bool = False,
        timeout_s: float = 60.0,
        retry: Retry | bool = True,
        tls_name: str = "",
        remedy: str = "",
    ) -> None:
        FIRST_CONNECTED.refuse_child()
        is_tls = check_tls(target, tls=tls, ca=ca, cert=cert, key=key)
        self.target = target
        self.timeout_s = check_seconds(timeout_s)
        self.retry = _policy(retry)
        self._closed = asyncio.Event()  # one for all views of the connection
        self._metadata = credential(token)
        self._tls_name = tls_name
        self._options: dict[str, Any] = {"token": token, "ca": ca, "cert": cert, "key": key, "tls": is_tls}
        self._options |= {"plain_token": plain_token, "timeout_s": timeout_s, "retry": retry, "remedy": remedy}
        refuse_plain_token(target, **self._options)
        credentials = grpc.ssl_channel_credentials(*tls_files(ca, cert, key)) if is_tls else None
        self._line = _Line(split(target, tls=is_tls), credentials, tls_name)  # as `_closed`, one for all views

    @property
    def grpc(self) -> Any:
        """The gRPC channel, for stubs."""
        return self._line.channel

    def with_options(
        self, *, timeout_s: float | None = None, retry: Retry | bool | None = None, token: str | None = None
    ) -> Channel:
        """Makes a view of this connection with other options; None keeps this one's. To close either closes both."""
        changed = {"timeout_s": timeout_s, "retry": retry, "token": token}
        options = {**self._options, **{name: value for name, value in changed.items() if value is not None}}
        refuse_plain_token(self.target, **options)
        view = copy.copy(self)
        vars(view).update(
            _options=options,
            timeout_s=check_seconds(options["timeout_s"]),
            retry=_policy(options["retry"]),
            _metadata=credential(options["token"]),
        )
        return view

    def patient(self) -> Channel:
        """Makes a view of this connection that waits for a service that is away, as long as a call may last."""
        return self.with_options(retry=replace(self.retry, away_s=math.inf))

    def metadata(self, request_id: str = "") -> _Metadata:
        """Makes the metadata of one call: the credential, and the request id, by default a new one.

        Raises FailedPrecondition where no call can be made: after `close`, after a fork, and in another event loop.
        """
        self._refuse_unusable()
        return [
            *self._metadata,
            (status.REQUEST_ID_KEY, check_request_id(request_id or f"{random.getrandbits(128):032x}")),
        ]

    async def unary(
        self,
        method: Callable[..., Awaitable[T]],
        request: object,
        *,
        timeout_s: float | None = None,
        retry: bool = True,
        hedge: bool = False,
        request_id: str = "",
    ) -> T:
        """Calls a unary method within `timeout_s`, retrying UNAVAILABLE and RESOURCE_EXHAUSTED with growing pauses.

        All attempts have one `x-request-id`. Set `retry` to False for calls that must not run twice, and `hedge` to
        True for reads, which two servers may answer at once. Raises the class of `aeenc.errors` that the service
        raised.
        """
        metadata = self.metadata(request_id)
        hedge_s = self.retry.hedge_s if hedge and retry and self.retry.attempts != 1 else None

        async def attempt(left_s: float) -> T:
            if hedge_s is not None and isinstance(method, SpreadMethod):
                after_s = min(hedge_s, left_s * HEDGE_SHARE)
                answer: T = await method.hedged(request, after_s=after_s, left_s=left_s, metadata=metadata)
                return answer
            return await method(request, timeout=left_s, metadata=metadata)

        with traced(method, metadata):
            return await self._repeated(method, attempt, metadata, self._budget(timeout_s), retry)

    async def send_stream(
        self,
        method: Callable[..., Any],
        requests: Callable[[], AsyncIterator[Any]],
        *,
        timeout_s: float | None = None,
        retry: bool,
    ) -> Any:
        """Calls a client-streaming method; `requests` makes the stream of an attempt.

        With `retry`, failures are repeated as `unary` does: for messages that name the same request each time. Raises
        what the stream itself raises.
        """
        metadata = self.metadata()

        async def attempt(left_s: float) -> Any:
            sent = Sent(requests())
            try:
                return await method(sent.messages(), timeout=left_s, metadata=metadata)
            except asyncio.CancelledError:
                if sent.error is not None:
                    return sent  # past the retries, which would take an error of gRPC for one of this call
                if not self._is_cancelled():
                    raise _failed_write() from None
                raise

        with traced(method, metadata):
            answer = await self._repeated(method, attempt, metadata, self._budget(timeout_s), retry)
            if isinstance(answer, Sent):
                answer.reraise()
            return answer

    def _budget(self, timeout_s: float | None) -> float:
        return self.timeout_s if timeout_s is None else check_seconds(timeout_s)

    async def _repeated(
        self,
        method: Callable[..., Any],
        attempt: Callable[[float], Awaitable[T]],
        metadata: _Metadata,
        budget_s: float,
        retry: bool,
    ) -> T:
        """Makes attempts with the seconds that are left until one succeeds, or fails for good."""
        deadline = time.monotonic() + budget_s
        refusal: errors.AeencError | None = None
        away_since: float | None = None
        for number in range(self.retry.attempts or 1_000_000):
            left_s = deadline - (begun := time.monotonic())
            try:
                return await attempt(min(max(left_s, 0.001), FOREVER_S))
            except asyncio.CancelledError:
                self._refuse_closed()
                raise
            except AioRpcError as rpc_error:
                error = self._translate(rpc_error, method, metadata, budget_s)
                if refusal is not None and left_s < LAST_ATTEMPT_S and isinstance(error, errors.DeadlineExceeded):
                    raise refusal from None  # the last attempt had no time to say why
                refusal, wait_s = error, pause_s(number, error)
                away_since = (away_since or begun) if error.reason == AWAY else None
                give_up = min(deadline, (away_since or math.inf) + self.retry.away_s)
                is_last = not retry or number + 1 == self.retry.attempts
                if is_last or not isinstance(error, PASSING) or time.monotonic() + wait_s > give_up:
                    raise error from None
            await asyncio.sleep(wait_s)
            self._refuse_closed()
        raise AssertionError("unreachable")

    async def stream(
        self, method: Callable[..., Any], request: Any, *, timeout_s: float | None = None, retry: bool = False
    ) -> AsyncIterator[Any]:
        """Calls a method that answers a stream; `request` is a message, or an async iterator of messages.

        No default deadline: a watch may last as long as what it watches. With `retry`, for a message, what fails before
        the first answer is repeated as `unary` does.
        """
        sent = Sent(request) if isinstance(request, AsyncIterator) else None
        metadata = self.metadata()
        with traced(method, metadata):
            limit_s = None if timeout_s is None else min(check_seconds(timeout_s), FOREVER_S)

            async def begin(_: float) -> Any:
                begun = method(sent.messages() if sent else request, timeout=limit_s, metadata=metadata)
                if retry:
                    await begun.wait_for_connection()  # until the service answers anything
                return begun

            call = await (self._repeated(method, begin, metadata, self.timeout_s, retry) if retry else begin(0.0))
            try:
                async for response in call:
                    yield response
            except AioRpcError as rpc_error:
                raise self._translate(rpc_error, method, metadata, timeout_s) from None
            except asyncio.CancelledError:
                if sent is not None:
                    sent.reraise()
                    if not self._is_cancelled():
                        raise self._translate(_failed_write(), method, metadata) from None
                self._refuse_closed()
                raise
            finally:
                call.cancel()

    async def pages(self, method: Callable[..., Awaitable[Any]], request: Any, field: str) -> AsyncIterator[Any]:
        """Yields the items of a list, page after page; `field` of an answer holds them."""
        while True:
            page = await self.unary(method, request)
            for item in getattr(page, field):
                yield item
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    @asynccontextmanager
    async def conversation(self, method: Callable[..., Any]) -> AsyncIterator[Any]:
        """Opens a stream in both directions; write to the call and iterate over it in the body. No deadline.

        The call is cancelled at the end, which does nothing to one that has ended.
        """
        metadata = self.metadata()
        with traced(method, metadata):
            call = method(metadata=metadata)
            try:
                yield call
            except AioRpcError as rpc_error:
                raise self._translate(rpc_error, method, metadata) from None
            except asyncio.CancelledError:
                self._refuse_closed()
                raise
            finally:
                call.cancel()

    async def addresses(self) -> list[Address]:
        """Looks up the servers behind the target now. Raises Unavailable when its name cannot be resolved."""
        return await resolve(self.target, tls=self._options["tls"])

    def to(self, address: Address) -> Channel:
        """Makes a connection to one server, with the credentials of this one. Raises as `metadata` does."""
        self._refuse_unusable()
        return Channel(address.target, tls_name=address.name or self._tls_name, **self._options)

    async def close(self) -> None:
        """Closes the connection. Calls in flight and later ones raise FailedPrecondition."""
        self._closed.set()
        await self._line.close()

    def _refuse_unusable(self) -> None:
        self._refuse_closed()
        self._line.refuse_other_loop()

    def _refuse_closed(self) -> None:
        """Raises FailedPrecondition once the connection is closed, unless it is the task that is being cancelled."""
        task = asyncio.current_task()
        if self._closed.is_set() and not (task is not None and task.cancelling()):
            raise errors.FailedPrecondition(f"the connection to {self.target} is closed; connect again") from None

    def _is_cancelled(self) -> bool:
        """Whether the task or the connection has ended a call. Else grpc.aio has, whose last write came too late."""
        task = asyncio.current_task()
        return self._closed.is_set() or (task is not None and task.cancelling() > 0)

    def _translate(
        self,
        rpc_error: AioRpcError,
        method: Callable[..., Any],
        metadata: _Metadata,
        budget_s: float | None = None,
    ) -> errors.AeencError:
        """Makes the error of a call; also where no answer came, the service's log may have it under the request id."""
        error = status.from_rpc_error(rpc_error)
        if any(key == status.DETAILS_KEY for key, _ in rpc_error.trailing_metadata() or ()):
            return error  # one of ours, complete
        if error.message.startswith(_UNKNOWN_METHOD):  # no log has the call
            return errors.Unimplemented(
                f"{self.target} answers, but has no {name_of(method)}: another service or another release is there; "
                f"{self._options['remedy'] or 'is the address right?'}"
            )
        error = self._explained(error, budget_s)
        if error.reason != AWAY:
            error.request_id = error.request_id or dict(metadata)[status.REQUEST_ID_KEY]
        return error

    def _explained(self, error: errors.AeencError, budget_s: float | None) -> errors.AeencError:
        """Says in our words what gRPC itself reports."""
        if isinstance(error, errors.Unavailable):
            reason = "connection refused" if "refused" in error.message else error.message
            remedy = self._options["remedy"] or "is it running there?"
            proxy = proxy_of(self.target)
            way = f" by way of the proxy {proxy}, which no_proxy can except it from" if proxy else ""
            message = f"no service answers at {self.target}{way} ({reason}); {remedy}"
            return errors.Unavailable(message, reason=AWAY)
        if isinstance(error, errors.Overloaded) and "larger than max" in error.message:  # grpc's own check of sizes
            return errors.TooLarge(f"a message to or from {self.target} is too large ({error.message}); split the call")
        if isinstance(error, errors.Cancelled):  # not by us: grpc's core drops calls not accepted in time
            return errors.Unavailable(f"{self.target} has dropped the call, as a server with too many does; try later")
        if type(error) is errors.AeencError and error.message == _FAILED_WRITE:
            return errors.Unavailable(f"{self.target} ended the call while a message was being sent to it; try again")
        if isinstance(error, errors.DeadlineExceeded) and budget_s:
            return errors.DeadlineExceeded(f"{self.target} did not answer within {budget_s:.3g} s; allow more time")
        return error


class _Line:
    """A gRPC channel that a connection and its views share, and the event loop that it belongs to once it is open."""

    def __init__(self, targets: list[str], credentials: grpc.ChannelCredentials | None, tls_name: str) -> None:
        self._targets, self._credentials = targets, credentials
        self._options: list[tuple[str, str | int]] = [
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
            ("grpc.service_config", _ROUND_ROBIN),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", HANDSHAKE_MS),  # no pause, despite its name
            ("grpc.max_reconnect_backoff_ms", 2000),
            ("grpc.keepalive_time_ms", round(KEEPALIVE_S * 1000)),
            ("grpc.keepalive_timeout_ms", round(KEEPALIVE_TIMEOUT_S * 1000)),
            ("grpc.http2.ping_timeout_ms", round(KEEPALIVE_TIMEOUT_S * 1000)),  # else a shorter one has no effect
            ("grpc.http2.max_pings_without_data", 0),  # no limit: a watch may be silent for hours
        ]
        if all(map(is_local, targets)):  # a proxy of the environment is for other machines
            self._options.append(("grpc.enable_http_proxy", 0))
        if tls_name:
            self._options.append(("grpc.ssl_target_name_override", tls_name))
        self._loop: asyncio.AbstractEventLoop | None = None
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass  # made outside of any event loop, the channel waits for its first use
        else:
            _ = self.channel

    @cached_property
    def channel(self) -> Any:
        """The gRPC channel; one for each server of a list."""
        FIRST_CONNECTED.remember()
        channels = [self._opened(target) for target in self._targets]
        self._loop = getattr(channels[0], "_loop", None)  # grpc's choice where no loop runs
        return channels[0] if len(channels) == 1 else SpreadChannel(channels)

    def _opened(self, target: str) -> grpc.aio.Channel:
        if self._credentials is not None:
            return grpc.aio.secure_channel(target, self._credentials, options=self._options)
        return grpc.aio.insecure_channel(target, options=self._options)

    def refuse_other_loop(self) -> None:
        """Raises FailedPrecondition after a fork, and where another event loop runs than that of the channel."""
        FIRST_CONNECTED.refuse_child()
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise errors.FailedPrecondition(
                f"the connection to {', '.join(self._targets)} belongs to another event loop; connect in the coroutine "
                "that calls, once for each asyncio.run, or use the blocking aeenc.connect()"
            )

    async def close(self) -> None:
        """Closes the channel, if it has been opened."""
        if "channel" in vars(self):
            await self.channel.close()


class Sent:
    """The messages of one call. grpc.aio cancels a call whose messages raise, and hides what they raised."""

    def __init__(self, messages: AsyncIterator[Any]) -> None:
        self._messages = messages
        self.error: Exception | None = None

    async def messages(self) -> AsyncIterator[Any]:
        """Yields the messages, keeping what they raise."""
        try:
            async for message in self._messages:
                yield message
        except Exception as error:
            self.error = error
            raise

    def reraise(self) -> None:
        """Raises what the messages have raised, if anything."""
        if self.error is not None:
            raise self.error


def _failed_write() -> AioRpcError:
    return AioRpcError(grpc.StatusCode.INTERNAL, Metadata(), Metadata(), details=_FAILED_WRITE)


def _policy(retry: Retry | bool) -> Retry:
    if isinstance(retry, Retry):
        return retry
    return Retry() if retry else Retry(attempts=1, away_s=0.0)


def pause_s(attempt: int, error: errors.AeencError | None = None) -> float:
    """Returns how long to wait after the attempt of a number, counted from 0: as long as the error asks, if it does."""
    backoff_s: float = min(0.05 * 2.0 ** min(attempt, 10), MAX_BACKOFF_S)
    if error is not None and error.retry_after_s is not None:
        backoff_s = max(error.retry_after_s, 0.01)
    return backoff_s * random.uniform(0.8, 1.2)  # noqa: S311 -- spreads callers out, protects nothing

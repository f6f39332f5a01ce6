"""The gate of the gateway, the steps around every request.

request -> request id, credential -> body, up to its limit -> route -> answer, with the request id
                                               caller leaves: '-> cancelled, and with it the gRPC call

It answers a malformed credential and a foreign host itself; all other errors are answered behind it.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Set

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aeenc.adapters.http import HTTP_STATUS
from aeenc.errors import InvalidArgument, PermissionDenied, Unauthenticated
from aeenc.transport.addresses import is_loopback
from aeenc.transport.checks import REQUEST_ID, credential
from aeenc_gateway.fleet import CALLER, Caller
from aeenc_gateway.problems import respond

HEALTH = "/health"
WATCH_AFTER_S = 0.2  # a task that waits for a caller to leave costs a sixth of a short request


class Gate:
    """ASGI middleware. `token` is the credential of callers that send none; `body_bytes` limits a body.

    It answers to the names of loopback and to `allowed_hosts`: otherwise a web page could have its own name lead here,
    and read what the gateway answers. Health has no such secret, and whoever asks for it may know an address only.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, allowed_hosts: Set[str], body_bytes: int) -> None:
        self._app, self._token, self._body_bytes = app, token, body_bytes
        self._hosts = {host.lower() for host in allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        sent_id = headers.get(b"x-request-id", "")
        request_id = sent_id if REQUEST_ID.fullmatch(sent_id) else f"{random.getrandbits(128):032x}"
        CALLER.set(Caller(request_id=request_id))
        exchange = _Exchange(receive, send, self._body_bytes, request_id)
        try:
            self._check_host(headers.get(b"host", ""), scope["path"])
            CALLER.set(Caller(self._metadata(headers), request_id))
            await self._app(scope, exchange.receive, exchange.send)
        except (PermissionDenied, Unauthenticated) as error:
            await respond(error, scope["path"], HTTP_STATUS[error.code])(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            pass  # in the middle of the body: nobody waits for an answer
        except asyncio.CancelledError:
            if not exchange.leaving.is_set():
                raise
            exchange.task.uncancel()
        finally:
            exchange.end()

    def _check_host(self, host: str, path: str) -> None:
        """Raises PermissionDenied for a name that is not the gateway's."""
        name = re.sub(r":\d*$", "", host).strip("[]").lower()
        if name and path != HEALTH and not self._hosts & {name, "*"} and not is_loopback(name):
            raise PermissionDenied(f"the gateway does not answer to the host {host[:200]!r}; add --allowed-host for it")

    def _metadata(self, headers: dict[bytes, str]) -> tuple[tuple[str, str], ...]:
        """Returns what the gRPC calls carry on. Raises Unauthenticated for a token that gRPC cannot carry."""
        scheme, _, token = headers.get(b"authorization", "").partition(" ")
        try:
            metadata = credential(token.strip() if scheme.lower() == "bearer" else None) or credential(self._token)
        except InvalidArgument as error:
            raise Unauthenticated(error.message) from None
        if REQUEST_ID.fullmatch(trace := headers.get(b"traceparent", "")):
            metadata.append(("traceparent", trace))
        return tuple(metadata)


class _Exchange:
    """One request and its answer: counts the body's bytes, then looks whether the caller leaves, and cancels."""

    def __init__(self, receive: Receive, send: Send, body_bytes: int, request_id: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self._receive, self._send = receive, send
        self._left_bytes, self._limit = body_bytes, body_bytes
        self._request_id = request_id.encode()
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.Task[None] | None = None
        self.leaving = asyncio.Event()

    async def receive(self) -> Message:
        """Receives a part of the body; after the last, waits until the caller leaves. Raises HTTPException (413)."""
        if self._timer is not None:
            await self.leaving.wait()
            return {"type": "http.disconnect"}
        message = await self._receive()
        self._left_bytes -= len(message.get("body", b""))
        if self._left_bytes < 0:
            raise HTTPException(413, f"the body is over {self._limit:,} bytes; send less at once")
        if not message.get("more_body", False):
            self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._begin)
        return message

    async def send(self, message: Message) -> None:
        """Sends a part of the answer, the request id with the first."""
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self._request_id)]
        elif not message.get("more_body", False):
            self.end()  # before the server reports the end of the answer as if the caller had left
        await self._send(message)

    def end(self) -> None:
        """Stops waiting."""
        if self._timer is not None:
            self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()

    def _begin(self) -> None:
        self._watch = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        await self._receive()  # nothing but http.disconnect comes after the body
        self.leaving.set()
        self.task.cancel()

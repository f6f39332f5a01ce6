"""The gate of the gateway, the steps around every request.

request -> request id, credential -> body, up to its limit -> route -> answer, with the request id
                                               caller leaves: '-> cancelled, and with it the gRPC call

It answers a malformed credential itself; all other errors are answered behind it.
"""

from __future__ import annotations

import asyncio
import random
import re

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aeenc.errors import Unauthenticated
from aeenc_gateway.fleet import CALLER, Caller
from aeenc_gateway.problems import respond

WATCH_AFTER_S = 0.2  # a task that waits for a caller to leave costs a sixth of a short request
_VISIBLE = re.compile(r"[!-~]{1,8192}")
_REQUEST_ID = re.compile(r"[!-~]{1,64}")  # as the services accept it


class Gate:
    """ASGI middleware. `token` is the credential of callers that send none; `body_bytes` limits a body."""

    def __init__(self, app: ASGIApp, *, token: str | None, body_bytes: int) -> None:
        self._app, self._token, self._body_bytes = app, token, body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        sent_id = headers.get(b"x-request-id", "")
        request_id = sent_id if _REQUEST_ID.fullmatch(sent_id) else f"{random.getrandbits(128):032x}"
        CALLER.set(Caller(request_id=request_id))
        exchange = _Exchange(receive, send, self._body_bytes, request_id)
        try:
            CALLER.set(Caller(self._metadata(headers), request_id))
            await self._app(scope, exchange.receive, exchange.send)
        except Unauthenticated as error:
            await respond(error, scope["path"])(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            pass  # in the middle of the body: nobody waits for an answer
        except asyncio.CancelledError:
            if not exchange.leaving.is_set():
                raise
            exchange.task.uncancel()
        finally:
            exchange.end()

    def _metadata(self, headers: dict[bytes, str]) -> tuple[tuple[str, str], ...]:
        """Returns what the gRPC calls carry on. Raises Unauthenticated for a token that gRPC cannot carry."""
        scheme, _, token = headers.get(b"authorization", "").partition(" ")
        sent = token.strip() if scheme.lower() == "bearer" else ""
        if sent and not _VISIBLE.fullmatch(sent):
            raise Unauthenticated("the token is not 1 to 8,192 visible ASCII characters; correct it")
        metadata = []
        if credential := sent or self._token:
            metadata.append(("authorization", f"Bearer {credential}"))
        if _VISIBLE.fullmatch(trace := headers.get(b"traceparent", "")):
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

"""The connection to Milvus: calls that block, each with a time limit, and failures as the project's errors.

pymilvus blocks and turns answers into Python objects, so none of its calls runs in the event loop; searches run in the
link's threads. The link connects at the first call, and again after a failure. Starting the service does not wait for
Milvus.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from pymilvus import MilvusClient
from pymilvus.exceptions import MilvusException

from aeenc import errors
from services.kit import logs

log = logs.get(__name__)
RETRY_AFTER_S = 1.0
KEEPALIVE_MS = 60_000  # milvus-lite ends connections that ping every ten seconds, pymilvus's default
# Codes of Milvus (pkg/util/merr) and of its client.
_ABSENT = {100, 1600}  # collection, alias
_BUSY = {4, 8, 9}  # too many requests, rate limit, quota
_AWAY = {2, 3, 7, 11, 503, 901, 10000, 10001}  # no connection, memory, disk, clock, channel, node; cancelled, timed out
_UNLOADED = {101, 103}  # not, or not fully
_STATUSES = {  # of grpc, as codes of Milvus
    "UNAVAILABLE": 2,
    "DEADLINE_EXCEEDED": 2,
    "CANCELLED": 2,
    "UNAUTHENTICATED": 2,
    "PERMISSION_DENIED": 2,
    "RESOURCE_EXHAUSTED": 8,
}


class MilvusNotFound(errors.NotFound):
    """Milvus has no such collection or alias."""


class MilvusNotLoaded(errors.Unavailable):
    """Milvus has not loaded the collection; milvus-lite unloads all of them when it restarts."""


class MilvusLink:
    """Calls Milvus at `http://host:port`, or a path that milvus-lite opens in this process.

    `on_state` receives its problem in the event loop ("" once it answers again).
    """

    def __init__(
        self,
        uri: str,
        token: str = "",
        database: str = "",
        *,
        timeout_s: float = 10.0,
        threads: int = 16,
        on_state: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix="milvus")
        self._uri, self._token, self._database, self._timeout_s = uri, token, database, timeout_s
        self._on_state, self._problem = on_state, ""
        self._loop = asyncio.get_running_loop()
        self._connecting = threading.Lock()
        self._client: MilvusClient | None = None
        self._is_closed = False
        self._failed: tuple[float, Exception | None] = (0.0, None)
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs a traceback for every failed call

    def call(self, method: str, /, *, timeout_s: float | None = None, **arguments: Any) -> Any:
        """Calls a method of the client; it blocks. Raises MilvusNotFound, Overloaded, Unavailable or the unexpected."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            answer = getattr(self._connected(), method)(timeout=limit_s, **arguments)
        except Exception as error:
            foreseen = self._foreseen(error, method)
            if foreseen is None:
                raise
            if type(foreseen) is errors.Unavailable:
                self._report(foreseen.message)
            # pymilvus leaves a circle of errors and frames, which with ours would hold a generation's files
            raise foreseen from error.with_traceback(None)
        self._report("")
        return answer

    def _report(self, problem: str) -> None:
        """Tells the event loop of a change."""
        if problem != self._problem:
            self._problem = problem
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._on_state, problem)

    async def close(self) -> None:
        """Closes the connection; calls under way end with it."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        self._is_closed = True
        if self._client is not None:
            await asyncio.to_thread(self._client.close)

    def _connected(self) -> MilvusClient:
        waiting_since = time.monotonic()
        with self._connecting:
            if self._is_closed:  # ends what sends a generation
                raise errors.Unavailable("the index is shutting down; ask another one")
            if self._client is None:
                failed_at, failure = self._failed
                if failure is not None and failed_at > waiting_since:
                    raise failure  # of those who waited together, one has tried
                try:
                    self._client = self._connect()
                except Exception as error:
                    self._failed = time.monotonic(), error
                    raise
            return self._client

    def _connect(self) -> MilvusClient:
        return MilvusClient(
            self._uri,
            token=self._token,
            db_name=self._database,
            timeout=self._timeout_s,
            dedicated=True,  # a shared connection stays open after `close`, and pings
            grpc_options={"grpc.keepalive_time_ms": KEEPALIVE_MS},
        )

    def _foreseen(self, error: Exception, method: str) -> errors.AeencError | None:
        """Turns a failure that a sound call can meet into a project error; None for anything else, which is a bug."""
        code, said = _code_of(error)
        short = " ".join(said.split())[:200]
        if code in _ABSENT:
            return MilvusNotFound(f"Milvus has nothing of that name ({short}); ListGenerations shows what there is")
        if code in _UNLOADED:
            return MilvusNotLoaded(
                f"Milvus has not loaded a collection ({short}); try again", retry_after_s=RETRY_AFTER_S
            )
        if code in _BUSY:
            return errors.Overloaded(
                f"Milvus refuses {method} for now ({short}); come back later", retry_after_s=RETRY_AFTER_S
            )
        if code in _AWAY:
            return errors.Unavailable(
                f"Milvus at {self._uri} does not answer {method} ({short}); start it, or set "
                "AEENC_INDEX_MILVUS_URI and AEENC_INDEX_MILVUS_TOKEN to one that does",
                retry_after_s=RETRY_AFTER_S,
            )
        return None


def _code_of(error: Exception) -> tuple[int, str]:
    """Returns Milvus's code for an error, and its text; 0 for an unexpected one.

    A failed connection has a status of grpc: as the code of pymilvus's own error, or in an error of grpc that pymilvus
    lets through. Both are recognised by their shape, because the domain does not import grpc.
    """
    if isinstance(error, MilvusException):
        status, said = error.code, error.message
    elif isinstance(error, ConnectionError | TimeoutError):
        return 2, str(error)
    elif type(error).__module__.partition(".")[0] == "grpc" and callable(getattr(error, "code", None)):
        status, said = error.code(), getattr(error, "details", lambda: "")()  # type: ignore[attr-defined]
    else:
        return 0, str(error)
    if status == 1 and "not ready" in said:  # Milvus is starting; pymilvus and milvus-lite use 1 for anything
        return 2, said
    name = getattr(status, "name", "")
    if name in _STATUSES:
        return _STATUSES[name], f"{name}: {said}"
    return (status if isinstance(status, int) else 0), str(said)

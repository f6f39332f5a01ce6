"""A TCP relay before a server, as the network between two hosts: it can lose, delay or cut what passes.

client ──▶ relay (TLS ends here, if asked for) ──▶ server
            └─ passes | is silent, as in a partition | is slow | resets | loses answers
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from types import TracebackType
from typing import Self

CHUNK = 64 * 1024
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Relay:
    """Listens on a free port, of the loopback by default, for `host:port` or the path of a unix socket."""

    def __init__(self, target: str, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.delay_s = 0.0  # of each piece that passes
        self.loses_answers = False  # resets a connection in place of the next answer
        self.host, self.port = host, 0
        self._target, self._tls = target, tls
        self._passes = asyncio.Event()
        self._passes.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.host}:{self.port}"

    def silence(self) -> None:
        """Lets nothing pass, as a partition does: connections stay, and so do pieces until `heal`."""
        self._passes.clear()

    def heal(self) -> None:
        """Lets everything pass again."""
        self._passes.set()
        self.delay_s, self.loses_answers = 0.0, False

    def reset(self) -> None:
        """Ends all connections with RST."""
        for writer in self._writers:
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self.host, self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._passes.wait()
            if self._target.startswith("/"):
                back, forth = await asyncio.open_unix_connection(self._target)
            else:
                host, _, port = self._target.rpartition(":")
                back, forth = await asyncio.open_connection(host, int(port))
            self._writers.add(forth)
            try:
                await asyncio.gather(self._pump(reader, forth), self._pump(back, writer, answers=True))
            finally:
                self._writers.discard(forth)
                forth.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass  # the client sees the end of its connection
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool = False) -> None:
        while piece := await source.read(CHUNK):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            await self._passes.wait()
            if answers and self.loses_answers:
                self.reset()
                raise ConnectionResetError
            sink.write(piece)
            await sink.drain()
        raise ConnectionResetError  # one side has closed; so does the other

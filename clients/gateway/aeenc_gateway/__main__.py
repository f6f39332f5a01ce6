"""Starts the gateway: `aeenc-gateway`, or `python -m aeenc_gateway`."""

from __future__ import annotations

import gc
import sys

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from aeenc.errors import AeencError
from aeenc.transport.addresses import is_local
from aeenc.transport.checks import refuse_plain_token
from aeenc_gateway.app import make_app
from aeenc_gateway.settings import GatewaySettings

CALLERS = "a caller's"  # stands for the tokens that callers send
KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that none is closed under a request
HEAD_BYTES = 64 * 1024  # as uvicorn's other parser takes


class BoundedHeads(HttpToolsProtocol):
    """Ends a connection whose request has a head or trailers without end, all of which httptools would keep."""

    _got_on = False
    _bytes = 0  # since a message began, its head was complete or a part of its body came

    def on_message_begin(self) -> None:
        self._got_on = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._got_on = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._got_on = True
        super().on_body(body)

    def data_received(self, data: bytes) -> None:
        self._got_on = False
        super().data_received(data)
        self._bytes = 0 if self._got_on else self._bytes + len(data)
        if self._bytes > HEAD_BYTES:
            self.transport.close()


def main() -> None:
    """Reads the settings, listens, and serves until SIGTERM or Ctrl-C."""
    settings = GatewaySettings.from_command_line()
    targets = settings.targets("encoder", "index")
    for target in (targets.encoder, targets.index):
        try:
            refuse_plain_token(target, token=CALLERS, ca=targets.ca, tls=targets.tls, plain_token=targets.plain_token)
        except AeencError as error:
            sys.exit(f"aeenc-gateway: {error}")
        if targets.plain_token and not targets.are_tls and not is_local(target):
            sys.stderr.write(f"aeenc-gateway: tokens travel to {target} without TLS (plain_token)\n")

    def listening(url: str) -> None:
        behind = f"encoder {targets.encoder}, index {targets.index}"
        sys.stderr.write(f"aeenc-gateway: listening at {url} ({behind})\n")
        gc.collect()
        gc.freeze()  # the collector skips what is loaded by now, and has a look at calls less often
        gc.set_threshold(10_000, 50, 100)

    app = make_app(
        targets,
        token=settings.token,
        allowed_hosts=settings.allowed_host,
        timeout_s=settings.timeout_s,
        body_bytes=settings.body_bytes,
    )
    limits = {"timeout_keep_alive": KEEP_ALIVE_S, "timeout_graceful_shutdown": settings.drain_s}
    settings.serve(app, listening, log_level=settings.log_level, http=BoundedHeads, **limits)


if __name__ == "__main__":
    main()

"""Starts the gateway: `aeenc-gateway`, or `python -m aeenc_gateway`."""

from __future__ import annotations

import gc
import socket
import sys

import uvicorn

from aeenc.errors import AeencError
from aeenc.transport.addresses import is_local
from aeenc.transport.checks import refuse_plain_token
from aeenc.transport.targets import Targets
from aeenc_gateway.app import make_app
from aeenc_gateway.settings import GatewaySettings

CALLERS = "a caller's"  # stands for the tokens that callers send
KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that none is closed under a request


def main() -> None:
    """Reads the settings, listens, and serves until SIGTERM or Ctrl-C."""
    settings = GatewaySettings.from_command_line()
    try:
        targets = Targets.find(
            **settings.model_dump(include={"encoder", "index", "ca", "cert", "key"}),
            plain_token=settings.plain_token or None,
        )
        for service in ("encoder", "index"):
            targets.channel(service)  # refuses addresses and files here, not once the application starts
            target = getattr(targets, service)
            refuse_plain_token(target, token=CALLERS, ca=targets.ca, tls=targets.tls, plain_token=targets.plain_token)
            if targets.plain_token and not targets.are_tls and not is_local(target):
                sys.stderr.write(f"aeenc-gateway: tokens travel to {target} without TLS (plain_token)\n")
    except (AeencError, OSError) as error:
        sys.exit(f"aeenc-gateway: {error}")
    try:
        listening = listen(settings.host, settings.port)
    except OSError as error:
        sys.exit(f"aeenc-gateway: cannot listen on {settings.host}:{settings.port} ({error}); choose another --port")
    config = uvicorn.Config(
        make_app(
            targets,
            token=settings.token,
            allowed_hosts=settings.allowed_host,
            timeout_s=settings.timeout_s,
            body_bytes=settings.body_bytes,
        ),
        log_level=settings.log_level,
        access_log=False,
        server_header=False,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=settings.drain_s,
    )
    try:
        config.load()
    except OSError as error:
        sys.exit(f"aeenc-gateway: {settings.tls_cert} and {settings.tls_key} cannot be used ({error}); give PEM files")
    scheme = "https" if settings.tls_cert else "http"
    port = listening.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    behind = f"encoder {targets.encoder}, index {targets.index}"
    sys.stderr.write(f"aeenc-gateway: listening at {scheme}://{host}:{port} ({behind})\n")
    gc.collect()
    gc.freeze()  # the collector skips what is loaded by now, and has a look at calls less often
    gc.set_threshold(10_000, 50, 100)
    uvicorn.Server(config).run(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    """Opens the socket that the server accepts from. Raises OSError."""
    listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    # Accepted sockets inherit it. The server writes head and body apart: the second would wait 40 ms for the first.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


if __name__ == "__main__":
    main()

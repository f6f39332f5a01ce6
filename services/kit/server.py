"""The start and end of every service's process.

    bind, NOT_SERVING -> start hooks load, then say SERVING -> tune the interpreter -> answer calls
                                                                                          | SIGTERM, or a failed hook
stop hooks in reverse <- cancel tasks <- finish calls in flight <- delay <- DRAINING, NOT_SERVING

It knows no service: each `__main__` adds its servicers and hooks.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import ssl
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Container
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args
from wsgiref.simple_server import WSGIRequestHandler

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from prometheus_client import CollectorRegistry, Gauge, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

import aeenc
from aeenc import errors
from aeenc.transport.addresses import is_loopback
from aeenc.v1 import types_pb2
from services.kit import logs, tracing
from services.kit.calls import grpcio_workarounds
from services.kit.calls.bounds import SHARE, Bounds
from services.kit.calls.interceptors import CallHandlers, RpcMetrics
from services.kit.concurrency import cancel_all
from services.kit.convert import to_timestamp
from services.kit.credentials.gate import Gate
from services.kit.credentials.watched_files import WatchedFiles
from services.kit.limits import Limits
from services.kit.readiness import Readiness, State
from services.kit.settings import ServiceSettings

log = logs.get(__name__)
Settings = TypeVar("Settings", bound=ServiceSettings)
Hook = Callable[[], Awaitable[None]]

COLLECT_AFTER = 700  # new objects: a pass of 3 ms
COLLECT_OLDER = 500  # passes over new objects between two over older ones, which are calls in flight: 70 ms
REOPEN_S = 1.0  # between attempts
CALLER_PING_S = 5.0  # callers may ping as often; ten seconds are usual, grpc's default would be five minutes
LEAST_CALLS = 100  # on one connection at once: what HTTP/2 advises
SCRAPES = 16  # connections to the metrics port at once
SCRAPE_S = 5.0  # that one may be silent
SWITCH_S = 0.0005  # between threads; Python's default is ten times that


class MetricsEndpoint(ThreadingWSGIServer):
    """Serves a registry over HTTP until closed, in a thread for each connection, of which the last few stay open."""

    request_queue_size = 8 * SCRAPES

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        super().__init__((host, port), _MetricsHandler)
        self.set_app(make_wsgi_app(registry))
        self._scrapes: deque[socket.socket] = deque()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers a connection in a thread of its own; with too many, the one that has been open longest ends."""
        self._scrapes.append(request)
        if len(self._scrapes) > SCRAPES:
            with contextlib.suppress(OSError):  # it may have ended by itself
                self._scrapes.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of a caller who has gone."""

    def close(self) -> None:
        """Stops serving."""
        self.shutdown()
        self.server_close()


class _MetricsHandler(WSGIRequestHandler):
    timeout = SCRAPE_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the library's name
        """Leaves the log to what the service does."""


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """Answers grpc.health.v1 for the services of `names`, which may grow, and for "", the whole process.

    grpc's own servicer writes to watchers under a lock: one who reads nothing holds up all others, and the drain.
    """

    def __init__(self, readiness: Readiness, names: Container[str]) -> None:
        self._readiness, self._names = readiness, names

    async def Check(self, request: Any, _context: Any) -> health_pb2.HealthCheckResponse:
        """Answers the state. Raises NotFound for a service that is not here."""
        answer = self._answer(request.service)
        if answer.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            raise errors.NotFound("no service of that name is here; leave the name empty for all")
        return answer

    async def Watch(self, request: Any, context: Any) -> None:
        """Answers the state, and again whenever it changes, until the service closes."""
        told = None
        while True:
            changed, answer = self._readiness.changed, self._answer(request.service)
            if answer != told:
                await context.write(answer)
                told = answer
            if self._readiness.is_closing:
                return
            await changed.wait()

    def _answer(self, service: str) -> health_pb2.HealthCheckResponse:
        kinds = health_pb2.HealthCheckResponse
        if service and service not in self._names:
            return kinds(status=kinds.SERVICE_UNKNOWN)
        return kinds(status=kinds.SERVING if self._readiness.healthy else kinds.NOT_SERVING)


class Certificates:
    """The TLS files of a server. grpc asks before each handshake whether they have changed.

    Files that do not fit together, such as a new certificate whose key is still the old one, are passed over until
    they do. Raises InvalidArgument when they do not at the start.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None, prefix: str) -> None:
        self._cert, self._key, self._client_ca, self._prefix = cert, key, client_ca, prefix
        self._files = WatchedFiles(cert, key, client_ca)
        self._initial = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """Returns the credentials of a port; they follow the files."""
        wanted = self._client_ca is not None
        # grpc's documentation lets the function return None for no change; its types do not.
        return grpc.dynamic_ssl_server_credentials(self._initial, self._read_if_changed, wanted)  # type: ignore[arg-type]

    def _read_if_changed(self) -> grpc.ServerCertificateConfiguration | None:
        if not self._files.have_changed():
            return None
        try:
            configuration = self._read()
        except errors.InvalidArgument as error:
            if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, ssl.SSLError):
                self._files.forget()  # the disk's fault: the next handshake tries again
            log.warning("the new certificates are not used", reason=error.message)
            return None
        log.info("certificates were read again", cert=str(self._cert))
        return configuration

    def _read(self) -> grpc.ServerCertificateConfiguration:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._cert, self._key, password=lambda: "")  # grpc takes no encrypted key, either
            if self._client_ca is not None:
                context.load_verify_locations(self._client_ca)
            pair = (self._key.read_bytes(), self._cert.read_bytes())
            ca = self._client_ca.read_bytes() if self._client_ca else None
        except (OSError, ValueError) as error:
            names = {"TLS_CERT": self._cert, "TLS_KEY": self._key, "TLS_CLIENT_CA": self._client_ca}
            given = ", ".join(f"{self._prefix}{name}={path}" for name, path in names.items() if path)
            raise errors.InvalidArgument(
                f"{given} cannot be used ({error}); give PEM files, and the key of the certificate"
            ) from error
        return grpc.ssl_server_certificate_configuration([pair], ca)


class GrpcServer:
    """A gRPC server with health, reflection, credentials, metrics and drain.

    `add` servicers, register hooks, then `start` it, use it as an async context manager, or `run` it as a process.
    Raises InvalidArgument when it would listen beyond loopback without a token, or without the TLS that was asked for.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        check_exposure(settings)
        self.settings = settings
        if settings.plain_token and settings.peer_token and settings.peer_ca is None:
            log.warning("tokens travel to other hosts without TLS (PLAIN_TOKEN); give PEER_CA to end that")
        self.readiness = Readiness()
        self.metrics = CollectorRegistry()
        self.started_at = datetime.now(UTC)
        self.port = 0
        self.metrics_port: int | None = None
        self.gate = Gate(settings.token, settings.admin_token, path=settings.tokens_file, service=settings.service)
        self._names: list[str] = []
        self._on_start: list[Hook] = []
        self._on_stop: list[Hook] = []
        self._servicers: list[tuple[Callable[[Any, Any], None], Any]] = []
        self._health = Health(self.readiness, self._names)
        in_force = Gauge("aeenc_tokens_file_in_force", "0: the tokens file on disk is wrong", registry=self.metrics)
        in_force.set_function(lambda: not self.gate.problem)
        lost = Gauge("aeenc_log_lines_lost", "lines of the log that could not be written", registry=self.metrics)
        lost.set_function(lambda: logs.LogOutput.lost)
        state = Gauge("aeenc_state", "1 for the state that GetInfo reports", ["state"], registry=self.metrics)
        for name in get_args(State):
            state.labels(name).set_function(partial(self.readiness.is_in, name))
        self._calls = RpcMetrics(self.metrics)
        self._server: Any = None
        self._accepting: set[asyncio.Task[Any]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._end = asyncio.Event()
        self._failure: Exception | None = None  # of a start hook

    def add(self, register: Callable[[Any, Any], None], servicer: Any, name: str, *, admin: bool = False) -> None:
        """Adds a servicer by its generated `add_…_to_server` under its full name, such as `aeenc.v1.EncoderService`."""
        self._servicers.append((register, servicer))
        self._names.append(name)
        if admin:
            self.gate.admin_services.add(name)

    def on_start(self, hook: Hook) -> None:
        """Runs `hook` after the port is bound; load models there, then call `readiness.serving()`."""
        self._on_start.append(hook)

    def on_stop(self, hook: Hook) -> None:
        """Runs `hook` after the calls in flight have ended; hooks run in reverse order."""
        self._on_stop.append(hook)

    async def start(self) -> int:
        """Binds, starts answering and runs the start hooks in the background. Returns the port."""
        self._open_metrics()  # first: no caller is served before all ports are there
        await self._open()
        self._spawn(self._keep_open())
        self._spawn(self.gate.follow())
        self._spawn(self._load())
        log.info("listening", address=self.settings.address, port=self.port)
        return self.port

    def _open_metrics(self) -> None:
        host, port = self.settings.host, self.settings.metrics_port
        if port is None:
            return
        host = "127.0.0.1" if host.startswith("unix:") else host
        try:
            endpoint = MetricsEndpoint(self.metrics, host, port)
        except OSError as error:
            name = f"{prefix_of(self.settings)}METRICS_PORT={port}"
            raise errors.Unavailable(f"{name} cannot be opened on {host} ({error.strerror}); choose another") from error
        self.metrics_port = endpoint.server_port
        self._on_stop.insert(0, partial(asyncio.to_thread, endpoint.close))  # the last to run

    async def _open(self) -> None:
        """Makes, binds and starts a gRPC server, on the port of the one before if there was one."""
        ping_ms = round(self.settings.ping_s * 1000)
        options = [
            ("grpc.max_receive_message_length", self.settings.message_bytes),
            ("grpc.so_reuseport", int(self.settings.worker_processes > 1)),
            ("grpc.keepalive_time_ms", ping_ms),  # grpc's default is two hours
            ("grpc.keepalive_timeout_ms", ping_ms),
            ("grpc.http2.ping_timeout_ms", ping_ms),  # the default is a minute
            ("grpc.http2.min_ping_interval_without_data_ms", round(CALLER_PING_S * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.max_concurrent_streams", max(self.settings.max_streams // SHARE, LEAST_CALLS)),  # of a connection
            ("grpc.max_allowed_incoming_connections", self.settings.max_connections),
            *self._ageing(),
        ]
        bounds = Bounds(self.settings.max_streams, self.settings.max_request_bytes)
        handlers = CallHandlers(self.gate, self.readiness, self._calls, bounds)
        for register, servicer in self._servicers:
            register(servicer, handlers)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, handlers)
        names = [*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflected = reflection.aio.ReflectionServicer(names)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, handlers)
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((handlers,))
        self.port = self._bind()
        self._accepting = await grpcio_workarounds.start(self._server)

    def _ageing(self) -> list[tuple[str, int]]:
        """Options by which connections end: no new calls on an old one, and those in flight go on for the grace.

        Callers look their names up when a connection ends. grpc spreads the ages by a tenth, so that not all end at
        once.
        """
        age_s, grace_s = self.settings.connection_age_s, self.settings.connection_grace_s
        if not age_s:
            return []
        grace = [("grpc.max_connection_age_grace_ms", round(grace_s * 1000))] if grace_s else []
        return [("grpc.max_connection_age_ms", round(age_s * 1000)), *grace]

    async def _keep_open(self) -> None:
        """Opens again when grpc ends by itself (`grpcio_workarounds`)."""
        while await grpcio_workarounds.end_of(self._accepting):
            if self.readiness.is_closing:
                return
            log.error("the gRPC server ended by itself; opening another")
            with contextlib.suppress(Exception):  # raises again what ended it
                await self._server.stop(0)
            await self._open_again()

    async def _open_again(self) -> None:
        """Opens until it succeeds: certificates may be half replaced just now, or somebody may have the port."""
        port = self.port
        while not self.readiness.is_closing:
            try:
                await self._open()
                return
            except errors.AeencError as error:
                log.warning("the gRPC server cannot open again; trying on", reason=error.message)
                self.port = port
                await asyncio.sleep(REOPEN_S)

    async def stop(self, grace_s: float | None = None, *, delay_s: float = 0.0) -> None:
        """Says NOT_SERVING, takes calls for `delay_s`, finishes them within `grace_s`, then runs the stop hooks."""
        self.readiness.draining()
        await asyncio.sleep(delay_s)
        self.readiness.closing()
        self.gate.check_open()
        if self._server is not None:
            await self._server.stop(self.settings.drain_s if grace_s is None else grace_s)
        await cancel_all(list(self._tasks))
        for hook in reversed(self._on_stop):
            await hook()

    async def serve_until_signal(self) -> None:
        """Serves until SIGTERM or SIGINT, or until a start hook fails, which it raises."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._end.set)
        await self.start()
        await self._end.wait()
        delay_s = 0.0 if self._failure else self.settings.drain_delay_s
        log.info("draining", delay_s=delay_s, seconds=self.settings.drain_s)
        await self.stop(delay_s=delay_s)
        if self._failure is not None:
            raise self._failure
        log.info("stopped")

    async def __aenter__(self) -> GrpcServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop(0.5)

    def _bind(self) -> int:
        settings = self.settings
        address = settings.address_at(self.port or settings.port)
        try:
            if settings.tls_cert is None or settings.tls_key is None:
                return int(self._server.add_insecure_port(address))
            files = Certificates(settings.tls_cert, settings.tls_key, settings.tls_client_ca, prefix_of(settings))
            return int(self._server.add_secure_port(address, files.credentials()))
        except RuntimeError as error:
            raise cannot_listen(settings) from error

    async def _load(self) -> None:
        try:
            for hook in self._on_start:
                await hook()
        except Exception as error:  # a failed start ends the process with its reason
            log.exception("start failed")
            self._failure = error
            self._end.set()

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def to_service_info(server: GrpcServer, limits: Limits) -> types_pb2.ServiceInfo:
    """Returns the part of GetInfo's answer that all services share."""
    return types_pb2.ServiceInfo(
        software_version=aeenc.__version__,
        instance=server.settings.instance,
        state=f"SERVICE_STATE_{server.readiness.state}",
        state_reason="; ".join(filter(None, (server.readiness.reason, server.gate.problem))),
        started_at=to_timestamp(server.started_at),
        limits=types_pb2.Limits(**asdict(limits)),
    )


def check_exposure(settings: ServiceSettings) -> None:
    """Raises InvalidArgument for a service that would be more open than its settings say.

    It would listen beyond loopback without a token, has half a key pair, or asks for client certificates without TLS.
    """
    prefix = prefix_of(settings)
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise errors.InvalidArgument(f"{prefix}TLS_CERT and {prefix}TLS_KEY belong together; set both or neither")
    if settings.tls_client_ca is not None and settings.tls_cert is None:
        raise errors.InvalidArgument(
            f"{prefix}TLS_CLIENT_CA alone would open a port without TLS; set {prefix}TLS_CERT and {prefix}TLS_KEY, too"
        )
    is_guarded = settings.token or settings.tokens_file
    if settings.host.startswith("unix:") or is_guarded or settings.allow_insecure or is_loopback(settings.host):
        return
    raise errors.InvalidArgument(
        f"{prefix}HOST={settings.host} is reachable from other machines and no token is set; set {prefix}TOKEN or "
        f"{prefix}TOKENS_FILE, or {prefix}ALLOW_INSECURE=true if you mean it"
    )


def cannot_listen(settings: ServiceSettings) -> errors.Unavailable:
    """Makes the error of a service that cannot bind its address. grpc tells the reason on stderr alone."""
    return errors.Unavailable(
        f"cannot listen on {settings.address}: another process has the port, or this machine does not have the "
        "address; choose another --port or --host"
    )


def prefix_of(settings: ServiceSettings) -> str:
    """Returns what the names of a service's settings begin with in the environment."""
    return str(settings.model_config.get("env_prefix") or "AEENC_")


async def tune_interpreter() -> None:
    """Tunes this process for many short calls beside threads that compute: the last start hook.

    The garbage collector skips what is loaded by now. A thread that returns from computing gets the interpreter from a
    busy event loop sooner.
    """
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, COLLECT_OLDER, 2)


def run(build: Callable[[Settings], GrpcServer], settings: Settings) -> None:
    """Runs a service as a process: logging, uvloop, signals, drain. Exit status 0 after a drain, 1 when it failed."""

    async def main() -> None:
        logs.configure(**settings.logging())
        server = build(settings)
        server.on_start(tune_interpreter)
        async with contextlib.AsyncExitStack() as afterwards:
            if settings.trace_endpoint:
                flush = tracing.configure(
                    settings.trace_endpoint,
                    settings.trace_share,
                    service=settings.service,
                    instance=settings.instance,
                    version=aeenc.__version__,
                )
                afterwards.push_async_callback(asyncio.to_thread, flush)  # of runs and jobs, too, which stop hooks end
            await server.serve_until_signal()

    try:
        uvloop.run(main())
    except errors.AeencError as error:
        raise SystemExit(f"the service stopped: {error.message}") from None

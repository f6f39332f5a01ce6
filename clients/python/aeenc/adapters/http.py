"""What the servers of HTTP before the services share: settings, where they listen, TLS, errors. Two stand on it.

`clients/gateway` and `clients/workbench` bring what it needs: pydantic-settings, starlette and uvicorn.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, ClassVar, Self

from pydantic import Field, FilePath, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from aeenc.adapters.settings import read_settings
from aeenc.errors import AeencError, FieldViolation, InvalidArgument, NotFound, TooLarge, Unimplemented
from aeenc.transport.targets import Targets

HTTP_STATUS = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "FAILED_PRECONDITION": 412,  # not 409, on which OpenAI's client repeats the call
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,  # nginx's number: the caller has gone
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
PROBLEM = "application/problem+json"
MAX_FAULTS = 100  # of a body that are named: to write a million of them would hold up all others
_OF_HTTP: dict[int, type[AeencError]] = {404: NotFound, 405: Unimplemented, 413: TooLarge}
Respond = Callable[[Any, AeencError, int], Any]  # request, error, status of HTTP -> response


class HttpSettings(BaseSettings):
    """Where a server listens, and how it reaches the services. `program` names it and, in capitals, its variables."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)
    program: ClassVar[str]

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(0, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    index: str | None = Field(None, description="address of the index; default: AEENC_INDEX, else the local fleet")
    ca: FilePath | None = Field(
        None, description="CA (PEM) of the services; default: AEENC_CA; none: plain, unless AEENC_TLS"
    )
    cert: FilePath | None = Field(
        None, description="client certificate (PEM) that the services ask for; default: AEENC_CERT"
    )
    key: FilePath | None = Field(None, description="private key (PEM) of `cert`; default: AEENC_KEY")
    plain_token: bool = Field(
        False, description="send tokens to services on another host without `ca`, too: in a network that you trust"
    )
    tls_cert: FilePath | None = Field(None, description="certificate chain (PEM) of this server")
    tls_key: FilePath | None = Field(None, description="private key (PEM) of this server")

    @model_validator(mode="after")
    def _has_a_whole_pair(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together; give both or neither")
        return self

    @classmethod
    def from_command_line(cls, arguments: list[str] | None = None) -> Self:
        """Reads flags (`--port 8080`) and the environment. A wrong value ends the process: its name, status 2."""
        return read_settings(cls, arguments, cli_prog_name=cls.program, cli_implicit_flags=True)

    def address(self, port: int) -> str:
        """Returns the URL by which it is reached here."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_cert else 'http'}://{host}:{port}"

    def targets(self, *services: str, **given: Any) -> Targets:
        """Finds the services. Ends the process where addresses, files or plain tokens are refused, not a call later."""
        given |= self.model_dump(include={*services, "ca", "cert", "key"})
        try:
            found = Targets.find(**given, plain_token=self.plain_token or None)
            for service in services:
                found.channel(service)
        except (AeencError, OSError) as error:
            sys.exit(f"{self.program}: {error}")
        return found

    def serve(self, app: Any, listening: Callable[[str], None], *, server: Any = None, **options: Any) -> None:
        """Serves until SIGTERM or Ctrl-C; `listening` gets the URL. `options` are uvicorn's, `server` its class.

        Ends the process where it cannot listen.
        """
        import uvicorn

        try:
            opened = listen(self.host, self.port)
        except OSError as error:
            sys.exit(f"{self.program}: cannot listen on {self.host}:{self.port} ({error}); choose another --port")
        options |= {"ssl_certfile": self.tls_cert, "ssl_keyfile": self.tls_key}
        # no log of addresses: one may hold a link that signs in; and a parser that limits the head of a request
        config = uvicorn.Config(app, access_log=False, server_header=False, **{"http": "h11", **options})
        try:
            config.load()
        except OSError as error:
            sys.exit(f"{self.program}: {self.tls_cert} and {self.tls_key} cannot be used ({error}); give PEM files")
        listening(self.address(opened.getsockname()[1]))
        (server or uvicorn.Server)(config).run(sockets=[opened])


def listen(host: str, port: int) -> socket.socket:
    """Opens the socket that a server accepts from. Raises OSError."""
    listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    # Accepted sockets inherit it. The server writes head and body apart: the second would wait 40 ms for the first.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def problem_of(error: AeencError, status: int) -> dict[str, Any]:
    """Returns the members of problem details (RFC 9457)."""
    title = HTTPStatus(status).phrase if status != HTTP_STATUS["CANCELLED"] else "Client Closed Request"
    members = {"detail": error.message, "code": error.code, "reason": error.reason}
    return {"type": "about:blank", "title": title, "status": status} | members


def error_handlers(respond: Respond) -> Mapping[Any, Callable[[Any, Any], Awaitable[Any]]]:
    """Returns the handlers of an application: every error that is no bug is one of ours, with a status of HTTP."""
    from starlette.exceptions import HTTPException

    async def on_error(request: Any, error: AeencError) -> Any:
        return respond(request, error, HTTP_STATUS.get(error.code, 500))

    async def on_http_error(request: Any, error: Any) -> Any:
        """What the framework refuses: unknown paths and methods, bodies that cannot be read."""
        kind = _OF_HTTP.get(error.status_code, InvalidArgument)
        refusal = kind(f"{request.method} {request.url.path}: {error.detail}")
        response = respond(request, refusal, error.status_code)
        response.headers.update(error.headers or {})
        return response

    async def on_invalid_body(request: Any, error: ValidationError) -> Any:
        """A body that does not fit its schema: each wrong field by its name, unless there are very many."""
        if error.error_count() > MAX_FAULTS:
            problem = f"has {error.error_count():,} faults; compare it with what the call takes, and correct its shape"
            return respond(request, InvalidArgument.field("body", problem), 400)
        violations = [
            FieldViolation(_path(one["loc"]), one["msg"])
            for one in error.errors(include_url=False, include_input=False)
        ]
        detail = "; ".join(f"{one.field}: {one.description}" for one in violations[:4])
        return respond(request, InvalidArgument(detail, violations=violations), 400)

    return {AeencError: on_error, HTTPException: on_http_error, ValidationError: on_invalid_body}


def _path(parts: tuple[int | str, ...]) -> str:
    steps = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts]
    return "".join(steps).lstrip(".") or "body"

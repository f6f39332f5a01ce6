"""Settings of the gateway: laptop defaults, from `AEENC_GATEWAY_<FIELD>` and from flags, which win."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, FilePath, ValidationError, model_validator
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsConfigDict

from aeenc.transport.addresses import is_loopback
from aeenc.transport.checks import bare_token

PREFIX = "AEENC_GATEWAY_"


class GatewaySettings(BaseSettings):
    """Where the gateway listens, where the services are, and its limits."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8080, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    encoder: str | None = Field(
        None, description="address of the encoder; default: AEENC_ENCODER, else the local fleet"
    )
    index: str | None = Field(None, description="address of the index; default: AEENC_INDEX, else the local fleet")
    ca: FilePath | None = Field(
        None, description="CA (PEM) of the services; default: AEENC_CA; none: plain, unless AEENC_TLS"
    )
    cert: FilePath | None = Field(
        None, description="client certificate (PEM) that the services ask for; default: AEENC_CERT"
    )
    key: FilePath | None = Field(None, description="private key (PEM) of `cert`; default: AEENC_KEY")
    token: Annotated[str, AfterValidator(bare_token)] | None = Field(
        None, description="bearer token for callers that send none; default: they have none"
    )
    plain_token: bool = Field(
        False, description="send tokens to services on another host without `ca`, too: in a network that you trust"
    )
    allow_insecure: bool = Field(False, description="listen beyond loopback without TLS, or with a token of its own")
    tls_cert: FilePath | None = Field(None, description="certificate chain (PEM) of the gateway")
    tls_key: FilePath | None = Field(None, description="private key (PEM) of the gateway")
    allowed_host: list[str] = Field(
        [], description="names in the header Host that it answers to besides those of loopback; *: any"
    )
    timeout_s: float = Field(60.0, gt=0, description="seconds that a call to a service may take")
    body_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="largest body of a request, in bytes")
    drain_s: int = Field(10, ge=0, description="seconds that requests in flight may take after SIGTERM")
    log_level: Literal["debug", "info", "warning", "error"] = Field("warning", description="least level that is logged")

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together; give both or neither")
        is_open = self.tls_cert is None or self.token is not None
        if is_open and not self.allow_insecure and not is_loopback(self.host):
            raise ValueError(
                f"{self.host} is not loopback: tokens would travel in the clear, or others would use the gateway's "
                "own; give tls_cert and tls_key and no token, or set allow_insecure"
            )
        return self

    @classmethod
    def from_command_line(cls, arguments: list[str] | None = None) -> Self:
        """Reads flags (`--port 8080`) and the environment. A wrong value ends the process: its name, status 2."""
        flags: CliSettingsSource[Any] = CliSettingsSource(
            cls,
            cli_prog_name="aeenc-gateway",
            cli_parse_args=sys.argv[1:] if arguments is None else arguments,
            cli_kebab_case=True,
            cli_implicit_flags=True,
        )
        try:
            return cls(_cli_settings_source=flags)  # type: ignore[call-arg]
        except ValidationError as error:
            for problem in error.errors():
                name = str(problem["loc"][0]) if problem["loc"] else ""
                setting = f"{PREFIX}{name.upper()} (--{name.replace('_', '-')})" if name else "aeenc-gateway"
                sys.stderr.write(f"{setting}: {problem['msg']}\n")
            raise SystemExit(2) from None

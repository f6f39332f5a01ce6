"""Settings of the gateway: laptop defaults, from `AEENC_GATEWAY_<FIELD>` and from flags, which win."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import SettingsConfigDict

from aeenc.adapters.http import HttpSettings
from aeenc.transport.addresses import is_loopback
from aeenc.transport.checks import bare_token


class GatewaySettings(HttpSettings):
    """Where the gateway listens, where the services are, and its limits."""

    model_config = SettingsConfigDict(env_prefix="AEENC_GATEWAY_")
    program = "aeenc-gateway"

    port: int = Field(8080, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    encoder: str | None = Field(
        None, description="address of the encoder; default: AEENC_ENCODER, else the local fleet"
    )
    token: Annotated[str, AfterValidator(bare_token)] | None = Field(
        None, description="bearer token for callers that send none; default: they have none"
    )
    allow_insecure: bool = Field(False, description="listen beyond loopback without TLS, or with a token of its own")
    allowed_host: list[str] = Field(
        [], description="names in the header Host that it answers to besides those of loopback; *: any"
    )
    timeout_s: float = Field(60.0, gt=0, description="seconds that a call to a service may take")
    body_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="largest body of a request, in bytes")
    drain_s: int = Field(10, ge=0, description="seconds that requests in flight may take after SIGTERM")
    log_level: Literal["debug", "info", "warning", "error"] = Field("warning", description="least level that is logged")

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        is_open = self.tls_cert is None or self.token is not None
        if is_open and not self.allow_insecure and not is_loopback(self.host):
            raise ValueError(
                f"{self.host} is not loopback: tokens would travel in the clear, or others would use the gateway's "
                "own; give tls_cert and tls_key and no token, or set allow_insecure"
            )
        return self

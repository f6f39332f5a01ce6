"""The services behind the gateway. Each call carries the credential and request id of the HTTP request it is part of.

The gateway keeps no caller's token: it stands in a context variable for as long as the request lasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from aeenc import Channel, Encoded, EncoderClient, IndexClient
from aeenc.errors import Unavailable, VersionNotLoaded
from aeenc.transport.targets import Targets

PREMISE = "premise"  # the model that stands for the space's own encoder of premises
HEALTH_S = 3.0


@dataclass(frozen=True)
class Caller:
    """Metadata of all gRPC calls for one HTTP request."""

    metadata: tuple[tuple[str, str], ...] = ()
    request_id: str = ""


CALLER: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039 -- frozen


class CallerChannel(Channel):
    """A connection that many callers share, each with its own credential."""

    def metadata(self, request_id: str = "") -> list[tuple[str, str]]:
        caller = CALLER.get()
        return [*super().metadata(request_id or caller.request_id), *caller.metadata]


@dataclass
class Fleet:
    """Encoder and index. Failures are raised at once: callers know better whether to repeat a call."""

    encoder: EncoderClient
    index: IndexClient
    _versions: set[str] = field(default_factory=set)  # names of models that turned out to be versions

    @classmethod
    def connect(cls, targets: Targets, *, timeout_s: float) -> Fleet:
        """Connects, inside the event loop that serves; none of the services need be there yet."""

        def channel(target: str) -> CallerChannel:
            identity: dict[str, Any] = {"ca": targets.ca, "cert": targets.cert, "key": targets.key, "tls": targets.tls}
            return CallerChannel(target, **identity, timeout_s=timeout_s, retry=False)

        return cls(EncoderClient(channel(targets.encoder)), IndexClient(channel(targets.index)))

    async def close(self) -> None:
        """Closes the connections."""
        await self.encoder.channel.close()
        await self.index.channel.close()

    async def encode(self, texts: Sequence[str], model: str = "", **options: Any) -> Encoded:
        """Embeds texts by `model`: a label, or else a version; "premise"; or "" for the encoder's own choice."""
        if model == PREMISE:
            return await self.encoder.encode(texts, role="premise", **options)
        if model in self._versions:
            return await self.encoder.encode(texts, version=model, **options)
        try:
            return await self.encoder.encode(texts, label=model or None, **options)
        except VersionNotLoaded as no_label:
            try:
                encoded = await self.encoder.encode(texts, version=model, **options)
            except VersionNotLoaded:
                raise no_label from None
        self._versions.add(model)
        return encoded

    async def check(self) -> None:
        """Raises Unavailable unless the encoder says that it serves. Needs no credential, unlike GetInfo."""
        channel = self.encoder.channel
        method = channel.grpc.unary_unary("/grpc.health.v1.Health/Check")
        answer: bytes = await channel.unary(method, b"", timeout_s=min(HEALTH_S, channel.timeout_s))
        if answer != b"\x08\x01":  # HealthCheckResponse{status: SERVING}
            raise Unavailable(f"the encoder at {channel.target} is not ready; ask again", retry_after_s=1.0)

"""One object for all four services. `aeenc.connect_async()` makes it; `aeenc.connect()` its blocking twin."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aeenc.encoder import EncoderClient
from aeenc.index import IndexClient
from aeenc.people import PeopleClient
from aeenc.registry import RegistryClient
from aeenc.sampler import SamplerClient
from aeenc.trainer import TrainerClient
from aeenc.transport.channel import Channel
from aeenc.transport.targets import ENCODER, INDEX, SAMPLER, TRAINER


class AsyncClient:
    """The clients of the four services, of human queues and of the registry. Connects at the first call.

    `token` is the credential of all calls, `admin_token` of those that change what is served (default: `token`).
    Calls that fail transiently (UNAVAILABLE, RESOURCE_EXHAUSTED) are retried within `timeout_s`, unless `retry` is
    False.
    """

    def __init__(
        self,
        *,
        encoder: str = ENCODER,
        index: str = INDEX,
        sampler: str = SAMPLER,
        trainer: str = TRAINER,
        token: str | None = None,
        admin_token: str | None = None,
        ca: Path | str | None = None,
        cert: Path | str | None = None,
        key: Path | str | None = None,
        timeout_s: float = 60.0,
        retry: bool = True,
    ) -> None:
        def channel(target: str, credential: str | None) -> Channel:
            opened = Channel(target, token=credential, ca=ca, cert=cert, key=key, timeout_s=timeout_s, retry=retry)
            self._channels.append(opened)
            return opened

        self._channels: list[Channel] = []
        admin = admin_token or token
        self.encoder = EncoderClient(channel(encoder, token))
        self.index = IndexClient(channel(index, token), channel(index, admin))
        self.sampler = SamplerClient(channel(sampler, token), channel(sampler, admin))
        self.people = PeopleClient(self.sampler.channel)
        self.trainer = TrainerClient(channel(trainer, token), channel(trainer, admin))
        self.registry = RegistryClient(channel(trainer, admin))

    async def close(self) -> None:
        """Closes all connections."""
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

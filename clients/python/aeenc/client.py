"""One object for all four services. `aeenc.connect_async()` makes it; `aeenc.connect()` its blocking twin."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING, Unpack

from aeenc.transport.targets import SERVICES, ConnectOptions, Targets

if TYPE_CHECKING:  # a service's client is loaded when it is first used
    from collections.abc import Mapping

    from aeenc.encoder import EncoderClient
    from aeenc.index import IndexClient
    from aeenc.people import PeopleClient
    from aeenc.registry import RegistryClient
    from aeenc.sampler import SamplerClient
    from aeenc.trainer import TrainerClient
    from aeenc.transport.channel import Channel, Retry


class AsyncClient:
    """The clients of the four services, of human queues and of the registry. Connects at the first call.

    An awaiting client belongs to the event loop in which it is made or, made outside of any, to that in which
    one of its services (`client.index`) is first used. In another loop its calls raise FailedPrecondition.

    `encoder`, `index`, `sampler` and `trainer` are addresses. What is not given, or None, comes from the environment
    (AEENC_INDEX, AEENC_TOKEN, AEENC_TIMEOUT_S, …), else from `.aeenc/fleet.json` of a local fleet, else it is the
    default: the ports 50051 to 50054 of this machine, 60 s.
    `token` is the credential of all calls, `admin_token` of those that change what is served (default: `token`).
    Connections are TLS with `ca`, the authority's certificate, or with `tls`: for servers that a public authority has
    certified, one of gRPC's own list (Mozilla's; GRPC_DEFAULT_SSL_ROOTS_FILE_PATH names another), not the system's.
    Without TLS, credentials travel within this machine alone, unless `plain_token` is set: for a network you trust.
    `timeout_s` is the deadline of a call, its retries included. `retry` says when a call is made again that failed with
    UNAVAILABLE or RESOURCE_EXHAUSTED; by default a service that is away is given up after 4 s. False: never.
    Raises InvalidArgument for a malformed fleet file, timeout or address, for half a key pair, or one without TLS, and
    for a credential that would travel plain to another host.
    """

    def __init__(
        self,
        *,
        retry: Retry | bool = True,
        **options: Unpack[ConnectOptions],
    ) -> None:
        targets = Targets.find(**options)
        plain = {name: targets.channel(name, retry=retry) for name in SERVICES}
        admin = {name: targets.channel(name, retry=retry, admin=True) for name in SERVICES if name != "encoder"}
        self._open(plain, admin)

    def with_options(
        self,
        *,
        timeout_s: float | None = None,
        retry: Retry | bool | None = None,
        token: str | None = None,
        admin_token: str | None = None,
    ) -> AsyncClient:
        """Makes a client with other options on the same connections: `client.with_options(timeout_s=5).index.info()`.

        None keeps this client's option. A new `token` replaces the admin credential as well, unless there is an
        `admin_token`. To close either client closes both.
        """
        changed = object.__new__(AsyncClient)
        changed._open(
            {
                name: channel.with_options(timeout_s=timeout_s, retry=retry, token=token)
                for name, channel in self._plain.items()
            },
            {
                name: channel.with_options(timeout_s=timeout_s, retry=retry, token=admin_token or token)
                for name, channel in self._admin.items()
            },
        )
        return changed

    def _open(self, plain: Mapping[str, Channel], admin: Mapping[str, Channel]) -> None:
        self._plain, self._admin = plain, admin

    @cached_property
    def encoder(self) -> EncoderClient:
        """The encoder: texts in, vectors out; a query and premises in, scores out."""
        from aeenc.encoder import EncoderClient

        return EncoderClient(self._plain["encoder"])

    @cached_property
    def index(self) -> IndexClient:
        """The index: premises for texts or vectors, and builds of generations."""
        from aeenc.index import IndexClient

        return IndexClient(self._plain["index"], self._admin["index"])

    @cached_property
    def sampler(self) -> SamplerClient:
        """The sampler: runs, their pairs and trees."""
        from aeenc.sampler import SamplerClient

        return SamplerClient(self._plain["sampler"], self._admin["sampler"])

    @cached_property
    def people(self) -> PeopleClient:
        """The sampler's queues for people: tasks, leases and verdicts."""
        from aeenc.people import PeopleClient

        return PeopleClient(self._plain["sampler"])

    @cached_property
    def trainer(self) -> TrainerClient:
        """The trainer: jobs, evaluations and checkpoints."""
        from aeenc.trainer import TrainerClient

        return TrainerClient(self._plain["trainer"], self._admin["trainer"])

    @cached_property
    def registry(self) -> RegistryClient:
        """The registry: which version each label names. The trainer serves it."""
        from aeenc.registry import RegistryClient

        return RegistryClient(self._admin["trainer"])

    async def close(self) -> None:
        """Closes all connections."""
        await asyncio.gather(*(channel.close() for channel in (*self._plain.values(), *self._admin.values())))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

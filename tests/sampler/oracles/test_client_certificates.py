"""An oracle behind TLS that wants to see the sampler's certificate: shown, it answers; without it or to others, not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from aeenc import errors
from aeenc.v1 import oracle_pb2_grpc, types_pb2
from services.sampler.__main__ import build
from support.certificates import certify, needs_openssl
from support.worlds.sampler_world import FakeOracle, SamplerWorld, brute_force, failed, finish, pair_set


class Noting(FakeOracle):
    """Notes the credentials of its callers."""

    async def Judge(self, request: Any, context: Any) -> Any:
        self.asked_by = dict(context.invocation_metadata())["authorization"]
        return await super().Judge(request, context)


@asynccontextmanager
async def strict(oracle: FakeOracle, cert: Path, key: Path, clients: Path) -> AsyncIterator[int]:
    """An oracle behind TLS, for callers whose certificate is `clients`."""
    pair = (await asyncio.to_thread(key.read_bytes), await asyncio.to_thread(cert.read_bytes))
    known = await asyncio.to_thread(clients.read_bytes)
    server = grpc.aio.server()
    oracle_pb2_grpc.add_OracleServiceServicer_to_server(oracle, server)
    port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([pair], known, require_client_auth=True))
    await server.start()
    yield port
    await server.stop(0)


@needs_openssl
async def test_an_oracle_is_shown_the_samplers_certificate_and_answers_nobody_else(world: SamplerWorld, tmp_path: Path):
    made = [await asyncio.to_thread(certify, tmp_path, name) for name in ("oracle", "sampler", "stranger")]
    (cert, key), (mine, my_key), (other, other_key) = made
    oracle, stranger = Noting(), {"cert": str(other), "key": str(other_key)}
    async with strict(oracle, cert, key, mine) as port:
        settings: dict[str, Any] = {"target": f"localhost:{port}", "ca": str(cert), "token": "secret"}
        own = {**settings, "cert": str(mine), "key": str(my_key)}
        for wrong in (settings, {**own, **stranger}, {**own, "ca": str(other)}):
            async with world.sampler(oracle=wrong) as client:
                run = await failed(client, f"localhost:{port}")
                assert await pair_set(client, run.id) == set()
        assert oracle.calls == 0
        async with world.sampler(oracle=own) as client:
            run = await finish(client)
            assert run.state == types_pb2.WORK_STATE_SUCCEEDED
            assert await pair_set(client, run.id) == brute_force()
    assert oracle.asked_by == "Bearer secret"


@pytest.mark.parametrize(
    ("given", "told"),
    [(("cert",), "belong together"), (("ca", "key"), "belong together"), (("cert", "key"), "needs TLS")],
)
def test_half_an_identity_stops_the_start(world: SamplerWorld, tmp_path: Path, given: tuple[str, ...], told: str):
    (tmp_path / "some.pem").write_text("")
    settings = world.configure(oracle=dict.fromkeys(given, str(tmp_path / "some.pem")))
    with pytest.raises(errors.InvalidArgument, match=f"oracle 'fake': .*{told}"):
        build(settings)

"""Every RPC against every credential: the suite's matrix over stand-ins, and the same over running services.

`tests/kit/test_authorisation.py` knows what docs/operations.md says and tries it on the services' own wiring. Here it
is run, and its expectations are held against real processes with TLS, client certificates and both tokens. An answer,
be it a refusal of an empty request, bears the service's request id; a connection that fails does not.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

import grpc
from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from kit.test_authorisation import NEEDS_ADMIN_TOKEN, NEEDS_THE_ORACLES_TOKEN, NEEDS_TOKEN, kind_of, methods, names

from aeenc import Channel
from benchmarks.harness.rows import ROOT, Rows
from benchmarks.promises.findings import run_tests
from benchmarks.promises.fleet import SERVICES, describe_fleet
from support.certificates import certify
from support.service_process import RedisProcess, ServiceProcess
from support.worlds.sampler_world import FakeOracle
from support.worlds.trainer_world import make_space

SUITE = "tests/kit/test_authorisation.py"
TOKENS = {"no token": None, "wrong token": "wrong", "token": "common", "admin token": "admin"}
WATCH_S = 3.0  # a caller who may not watch is told at once
ANSWERED, CLOSED = "answered", "UNAVAILABLE"
REFUSED = {"no token": "UNAUTHENTICATED", "wrong token": "UNAUTHENTICATED", "token": ANSWERED, "admin token": ANSWERED}
SERVED_BY = {
    "EncoderService": "encoder",
    "IndexService": "index",
    "IndexAdminService": "index",
    "PeopleService": "sampler",
    "SamplerService": "sampler",
    "TrainerService": "trainer",
    "RegistryAdminService": "trainer",
    "SamplerAdminService": "sampler",
    "TrainerAdminService": "trainer",
}


async def authorisation(rows: Rows) -> None:
    """One row a credential, one for RPCs without an expectation, one for what operations.md names, one a test."""
    expected = names(NEEDS_TOKEN) | names(NEEDS_ADMIN_TOKEN) | names(NEEDS_THE_ORACLES_TOKEN)
    unlisted = sorted(expected ^ set(methods()))
    rows.add("RPCs without an expectation", len(unlisted), "RPCs", "= 0", not unlisted, unlisted or len(expected))
    page = (ROOT / "docs" / "operations.md").read_text()
    unnamed = [one for one in NEEDS_ADMIN_TOKEN if f"`{one.removeprefix('aeenc.v1.')}`" not in page]
    rows.add("admin services that operations.md does not name", len(unnamed), "services", "= 0", not unnamed, unnamed)
    outcomes, said = run_tests([SUITE])
    bad = {node: words for node, words in outcomes.items() if set(words) != {"passed"}}
    rows.add(
        f"tests of {SUITE}", len(outcomes) - len(bad), "tests", "all", bool(outcomes) and not bad, bad or said[-80:]
    )
    await _running(rows)


async def _running(rows: Rows) -> None:
    """The matrix over running processes that need client certificates and both tokens."""
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        home = Path(scratch)
        cert, key = certify(home, "server")
        pairs = {"known": certify(home, "known"), "another CA's": certify(home, "stranger"), "no": (None, None)}
        tls = {"tls_cert": cert, "tls_key": key, "tls_client_ca": pairs["known"][0], "host": "localhost"}
        settings = {service: {**tls, "token": "common", "admin_token": "admin"} for service in SERVICES}
        space = make_space(home / "space")
        redis = RedisProcess(home / "redis")
        counts = dict.fromkeys(SERVICES, 1)
        fleet = describe_fleet(
            home, redis, space, FakeOracle(), "localhost:1", counts=counts, settings=settings, environment={}
        )
        try:
            for process in fleet.all():
                process.start()
            for process in fleet.all():
                process.wait_listening()
            processes = {service: one for service, [one] in fleet.processes.items()}
            for certificate, (shown, its_key) in pairs.items():
                secret = (its_key.read_bytes(), shown.read_bytes()) if shown and its_key else (None, None)
                credentials = grpc.ssl_channel_credentials(cert.read_bytes(), *secret)
                await _matrix(rows, processes, f"{certificate} client certificate", credentials, certificate == "known")
            await _matrix(rows, processes, "plaintext on a TLS port", None, is_let_in=False)
        finally:
            await fleet.stop()
            redis.stop()


async def _matrix(
    rows: Rows,
    processes: Mapping[str, ServiceProcess],
    how: str,
    credentials: grpc.ChannelCredentials | None,
    is_let_in: bool,
) -> None:
    faults, calls = [], 0
    for service, process in processes.items():
        target = f"localhost:{process.target.rpartition(':')[2]}"
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = (
            grpc.aio.insecure_channel(target, options)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options)
        )
        async with channel:
            for name, method in methods().items():
                owner = method.containing_service.name
                if SERVED_BY.get(owner) != service:
                    continue
                for sent, token in TOKENS.items():
                    calls += 1
                    wanted = REFUSED[sent] if is_let_in else CLOSED
                    if is_let_in and sent == "token" and name in names(NEEDS_ADMIN_TOKEN):
                        wanted = "PERMISSION_DENIED"
                    if (found := await outcome(channel, method, token)) != wanted:
                        faults.append(f"{owner}.{method.name} with {sent}: {found}, not {wanted}")
            faults += await _health_and_reflection(channel, service, is_let_in=is_let_in)
            calls += 3
    rows.add(
        f"{how}: calls answered otherwise than expected", len(faults), "calls", "= 0", not faults, faults[:3] or calls
    )


async def outcome(channel: grpc.aio.Channel, method: MethodDescriptor, token: str | None, request: bytes = b"") -> str:
    """`answered`, also by a refusal of what was asked; else the status that kept the call out."""
    call = getattr(channel, kind_of(method))(f"/{method.containing_service.full_name}/{method.name}")
    metadata = [("x-request-id", uuid.uuid4().hex), *([("authorization", f"Bearer {token}")] if token else [])]
    timeout_s = WATCH_S if method.server_streaming else 10.0
    answer = call(iter([request]) if method.client_streaming else request, metadata=metadata, timeout=timeout_s)
    try:
        if method.server_streaming:
            async for _ in answer:
                break
            answer.cancel()
        else:
            await answer
    except grpc.aio.AioRpcError as error:
        code = str(error.code().name)
        if method.server_streaming and code == "DEADLINE_EXCEEDED":
            return ANSWERED  # it follows what happens, and nothing does
        reached = "x-request-id" in dict(error.trailing_metadata() or ())
        return ANSWERED if reached and code not in {"UNAUTHENTICATED", "PERMISSION_DENIED"} else code
    return ANSWERED


async def _health_and_reflection(channel: grpc.aio.Channel, service: str, *, is_let_in: bool) -> list[str]:
    """Health needs no token, reflection does."""
    reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
    wanted = reflection_pb2.ServerReflectionRequest(list_services="")
    tried = {
        "health": (
            lambda: _code(health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)),
            "OK",
        ),
        "reflection": (lambda: _first(reflect(iter([wanted]), timeout=10)), "UNAUTHENTICATED"),
        "reflection with the token": (
            lambda: _first(reflect(iter([wanted]), timeout=10, metadata=Channel(":1", token="common").metadata())),
            "OK",
        ),
    }
    found = {name: (await call(), code if is_let_in else CLOSED) for name, (call, code) in tried.items()}
    return [f"{service} {name}: {code}, not {wanted}" for name, (code, wanted) in found.items() if code != wanted]


async def _code(call: grpc.aio.UnaryUnaryCall) -> str:
    return str((await call.code()).name)


async def _first(call: grpc.aio.StreamStreamCall) -> str:
    try:
        async for _ in call:
            return "OK"
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "no answer"

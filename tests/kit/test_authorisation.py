"""Who may call what: every RPC of every service against every credential, as docs/operations.md says.

The servers are wired by the services' own `__main__`; only their servicers are stand-ins that answer everything.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor

import aeenc.v1
from aeenc.oracle import Oracle, OracleServer
from services.encoder import __main__ as encoder
from services.encoder.settings import EncoderSettings
from services.index import __main__ as index
from services.index.settings import IndexSettings
from services.kit.credentials.credential_file import Credential, HashedToken, hash_of, render
from services.kit.server import GrpcServer
from services.sampler import __main__ as sampler
from services.sampler.settings import SamplerSettings
from services.trainer import __main__ as trainer
from services.trainer.settings import TrainerSettings
from support.certificates import certify, needs_openssl

# Every RPC stands here, under what it needs. A new one fails the first test until somebody has decided.
NEEDS_TOKEN = {
    "aeenc.v1.EncoderService": "Encode EncodeStream GetInfo Score",
    "aeenc.v1.IndexService": "GetInfo GetPremises ListCorpora ListPremises Retrieve Search",
    "aeenc.v1.PeopleService": "Adjudicate AmendVerdicts CloseTask GetAgreement GetTree LeaseTask ListChanges "
    "ListQueues ListTasks ReleaseTask RenewLease RetrieveAgain SubmitVerdicts UndoVerdicts WatchTasks WatchTree",
    "aeenc.v1.SamplerService": "CancelRun ExportTrees GetInfo GetRun ImportPairs ListPairs ListRuns ResumeRun StartRun "
    "WatchRun",
    "aeenc.v1.TrainerService": "CancelJob Evaluate GetCheckpoint GetInfo GetJob ListCheckpoints ListJobs ResumeJob "
    "StartJob WatchJob",
}
NEEDS_ADMIN_TOKEN = {
    "aeenc.v1.IndexAdminService": "ActivateGeneration BuildGeneration DeleteGeneration HoldGeneration ListGenerations "
    "PutExplanations ReleaseGeneration VerifyGeneration",
    "aeenc.v1.SamplerAdminService": "CollectGarbage DeleteRun",
    "aeenc.v1.RegistryAdminService": "DeleteLabel ListLabels ListRollouts Publish Rollback SetLabel",
    "aeenc.v1.TrainerAdminService": "CollectGarbage DeleteCheckpoint DeleteJob",
}
NEEDS_THE_ORACLES_TOKEN = {"aeenc.v1.OracleService": "Judge"}

# The same for named credentials: what a role needs beyond `read`. All other RPCs above need `read`.
NEEDS_ROLE = {
    "annotate": {
        "aeenc.v1.PeopleService": "AmendVerdicts CloseTask LeaseTask ReleaseTask RenewLease RetrieveAgain "
        "SubmitVerdicts UndoVerdicts"
    },
    "adjudicate": {"aeenc.v1.PeopleService": "Adjudicate ListChanges"},
    "admin": {
        "aeenc.v1.SamplerService": "CancelRun ImportPairs ResumeRun StartRun",
        "aeenc.v1.TrainerService": "CancelJob ResumeJob StartJob",
        **NEEDS_ADMIN_TOKEN,
    },
}
ROLES = ("read", "annotate", "adjudicate", "admin")

SENT = {"none": None, "wrong": "wrong", "token": "common", "admin": "admin"}
COMMON = {"none": "UNAUTHENTICATED", "wrong": "UNAUTHENTICATED", "token": "OK", "admin": "OK"}
ADMIN = {**COMMON, "token": "PERMISSION_DENIED"}
ORACLE = {**COMMON, "admin": "UNAUTHENTICATED"}  # an oracle knows one token


def methods() -> dict[str, MethodDescriptor]:
    """All RPCs of the protos, by full name."""
    found = {}
    for module in pkgutil.iter_modules(aeenc.v1.__path__):
        if module.name.endswith("_pb2"):
            services = importlib.import_module(f"aeenc.v1.{module.name}").DESCRIPTOR.services_by_name.values()
            found |= {method.full_name: method for service in services for method in service.methods}
    return found


def names(services: dict[str, str]) -> set[str]:
    return {f"{service}.{rpc}" for service, rpcs in services.items() for rpc in rpcs.split()}


def register_stand_in(service: str) -> Any:
    """A `register` for `GrpcServer.add` whose servicer answers an empty message to every RPC."""

    async def answer(_request: Any, _context: Any) -> bytes:
        return b""

    async def answers(_request: Any, _context: Any) -> AsyncIterator[bytes]:
        yield b""

    def register(_servicer: Any, server: Any) -> None:
        handlers = {}
        for method in methods().values():
            if method.containing_service.full_name == service:
                make = getattr(grpc, f"{kind_of(method)}_rpc_method_handler")
                handlers[method.name] = make(answers if method.server_streaming else answer, bytes, bytes)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    return register


def kind_of(method: MethodDescriptor) -> str:
    arity = {False: "unary", True: "stream"}
    return f"{arity[method.client_streaming]}_{arity[method.server_streaming]}"


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Builds the servers of all services by their own wiring, without their servicers and hooks."""
    add = GrpcServer.add

    def add_stand_in(self: GrpcServer, _register: Any, servicer: Any, name: str, *, admin: bool = False) -> None:
        add(self, register_stand_in(name), servicer, name, admin=admin)

    monkeypatch.setattr(GrpcServer, "add", add_stand_in)
    monkeypatch.setattr(GrpcServer, "on_start", lambda *_: None)
    monkeypatch.setattr(GrpcServer, "on_stop", lambda *_: None)

    def make(**fields: Any) -> list[GrpcServer]:
        fields = {"host": "localhost", "port": 0, "artifacts_dir": tmp_path, **fields}
        keeping = {**fields, "redis_url": f"unix://{tmp_path}/none", "state_dir": tmp_path}
        return [
            encoder.build(EncoderSettings(**keeping)),
            index.build(IndexSettings(**fields)),
            sampler.build(SamplerSettings(**{name: keeping[name] for name in keeping if name != "state_dir"})),
            trainer.build(TrainerSettings(**keeping)),
        ]

    return make


@asynccontextmanager
async def serving(servers: list[GrpcServer]) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(server)
            server.readiness.serving()
        yield


async def outcome(channel: grpc.aio.Channel, method: MethodDescriptor, token: str | None) -> str:
    """The status of a call with a token."""
    call = getattr(channel, kind_of(method))(f"/{method.containing_service.full_name}/{method.name}")
    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    request = iter([b""]) if method.client_streaming else b""
    answer = call(request, metadata=metadata, timeout=20)
    try:
        if method.server_streaming:
            async for _ in answer:
                pass
        else:
            await answer
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


async def outcomes(
    server: GrpcServer, credentials: grpc.ChannelCredentials | None = None, tokens: dict[str, str | None] = SENT
) -> dict[str, dict[str, str]]:
    """What every RPC of a server answers to every token."""
    target = f"localhost:{server.port}"
    options = [("grpc.use_local_subchannel_pool", 1)]
    made = (
        grpc.aio.insecure_channel(target, options)
        if credentials is None
        else grpc.aio.secure_channel(target, credentials, options)
    )
    async with made as channel:
        mine = {name: one for name, one in methods().items() if one.containing_service.full_name in server._names}
        return {
            name: {sent: await outcome(channel, method, token) for sent, token in tokens.items()}
            for name, method in mine.items()
        }


async def all_outcomes(servers: list[GrpcServer], credentials: Any = None) -> dict[str, dict[str, str]]:
    return {name: found for server in servers for name, found in (await outcomes(server, credentials)).items()}


def expected(common: dict[str, str], admin: dict[str, str]) -> dict[str, dict[str, str]]:
    return {**dict.fromkeys(names(NEEDS_TOKEN), common), **dict.fromkeys(names(NEEDS_ADMIN_TOKEN), admin)}


def test_every_rpc_has_an_expectation() -> None:
    assert names(NEEDS_TOKEN) | names(NEEDS_ADMIN_TOKEN) | names(NEEDS_THE_ORACLES_TOKEN) == set(methods())


ANYBODY, ONE_TOKEN = dict.fromkeys(SENT, "OK"), {**COMMON, "admin": "UNAUTHENTICATED"}
BOTH = {"token": "common", "admin_token": "admin"}


@pytest.mark.parametrize(
    ("tokens", "has_file", "common", "admin"),
    [
        pytest.param(BOTH, False, COMMON, ADMIN, id="both, of which others than admin services take either"),
        pytest.param(BOTH, True, COMMON, ADMIN, id="both, beside a file of credentials"),
        pytest.param({"token": "common"}, False, ONE_TOKEN, ONE_TOKEN, id="no admin token: the common one opens all"),
        pytest.param({}, False, ANYBODY, ANYBODY, id="none: on loopback all is open"),
        pytest.param(
            {"admin_token": "admin"}, False, ANYBODY, {**COMMON, "token": "UNAUTHENTICATED"}, id="an admin token alone"
        ),
    ],
)
async def test_the_tokens_of_the_settings_open_what_the_page_says(
    build: Any, tmp_path: Path, tokens: dict[str, str], has_file: bool, common: dict[str, str], admin: dict[str, str]
) -> None:
    (tmp_path / "tokens.toml").touch()
    servers = build(**tokens, **({"tokens_file": tmp_path / "tokens.toml"} if has_file else {}))
    async with serving(servers):
        assert await all_outcomes(servers) == expected(common, admin)


@needs_openssl
async def test_with_client_certificates_nobody_else_is_let_in_and_the_tokens_are_needed_as_well(
    build: Any, tmp_path: Path
) -> None:
    cert, key = certify(tmp_path, "server")
    known, stranger = certify(tmp_path, "known"), certify(tmp_path, "stranger")
    tls = {"tls_cert": cert, "tls_key": key, "tls_client_ca": known[0]}
    servers = build(token="common", admin_token="admin", **tls)

    def credentials(pair: tuple[Path, Path] | None) -> grpc.ChannelCredentials:
        shown = (pair[1].read_bytes(), pair[0].read_bytes()) if pair else (None, None)
        return grpc.ssl_channel_credentials(cert.read_bytes(), *shown)

    refused = dict.fromkeys(SENT, "UNAVAILABLE")
    async with serving(servers):
        assert await all_outcomes(servers, credentials(known)) == expected(COMMON, ADMIN)
        for others in (credentials(stranger), credentials(None), None):
            assert await all_outcomes(servers, others) == expected(refused, refused)


def role_of(rpc: str) -> str:
    """The least role that may call an RPC."""
    return next((role for role, services in NEEDS_ROLE.items() if rpc in names(services)), "read")


async def test_a_named_credential_opens_what_its_role_and_its_services_cover(build: Any, tmp_path: Path) -> None:
    path, tokens = tmp_path / "tokens.toml", {name: name for name in (*ROLES, "of the index", "expired")}
    hashes = {name: [HashedToken(sha256=hash_of(name))] for name in tokens}
    past = datetime(2020, 1, 1, tzinfo=UTC)
    made = [Credential(name=role, role=role, hashes=hashes[role]) for role in ROLES]
    made += [Credential(name="index", role="admin", services=("index",), hashes=hashes["of the index"])]
    made += [Credential(name="expired", role="admin", expires=past, hashes=hashes["expired"])]
    path.write_text("".join(map(render, made)))
    servers = build(tokens_file=path, token="common", admin_token="admin-token-of-settings")
    async with serving(servers):
        for server in servers:
            found = await outcomes(server, tokens=tokens)
            at_index = server.settings.service == "index"
            wanted = {
                rpc: {
                    **{
                        role: "OK" if ROLES.index(role) >= ROLES.index(role_of(rpc)) else "PERMISSION_DENIED"
                        for role in ROLES
                    },
                    "of the index": "OK" if at_index else "PERMISSION_DENIED",
                    "expired": "UNAUTHENTICATED",
                }
                for rpc in found
            }
            assert found == wanted


class Silent(Oracle):
    """Refuses all."""

    def judge(self, task: Any) -> list[str]:
        del task
        return []


@pytest.fixture(params=["plain", pytest.param("tls", marks=needs_openssl)])
def oracle_tls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path] | None:
    return certify(tmp_path, "oracle") if request.param == "tls" else None


async def test_an_oracle_needs_its_token_and_with_tls_refuses_plaintext(oracle_tls: tuple[Path, Path] | None) -> None:
    cert, key = oracle_tls or (None, None)
    server: OracleServer = await Silent().start("localhost:0", token="common", cert=cert, key=key)
    target, (method,) = f"localhost:{server.port}", [methods()[name] for name in names(NEEDS_THE_ORACLES_TOKEN)]
    try:
        if cert is not None:
            secure = grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(cert.read_bytes()))
            async with secure as channel:
                assert {sent: await outcome(channel, method, token) for sent, token in SENT.items()} == ORACLE
        async with grpc.aio.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            found = {sent: await outcome(channel, method, token) for sent, token in SENT.items()}
        assert found == (ORACLE if cert is None else dict.fromkeys(SENT, "UNAVAILABLE"))
    finally:
        await server.stop()

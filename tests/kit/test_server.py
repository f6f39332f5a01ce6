"""The bootstrap of all services, through a real socket: health, reflection, credentials, errors, drain."""

from __future__ import annotations

import asyncio
import errno
import gc
import math
import re
import socket
import types
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry
from pydantic import ValidationError
from pydantic_settings import SettingsConfigDict

from aeenc import Channel, EncoderClient, errors, vectors
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc
from services.kit import server as server_module
from services.kit.calls.interceptors import RpcMetrics
from services.kit.convert import request_id
from services.kit.logs import name_call
from services.kit.server import GrpcServer
from services.kit.settings import ServiceSettings
from services.trainer.settings import TrainerSettings


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="AEENC_TEST_")
    service = "test"


class Servicer(encoder_pb2_grpc.EncoderServiceServicer):
    """Does what its first text says."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.waiting = 0  # calls

    async def Encode(self, request: encoder_pb2.EncodeRequest, context: Any) -> encoder_pb2.EncodeResponse:
        match request.texts[0]:
            case "overloaded":
                raise errors.Overloaded("the queue is full", retry_after_s=30.0)
            case "many":
                raise errors.InvalidArgument(
                    "bad", violations=[errors.FieldViolation(f"texts[{n}]", "x" * 500) for n in range(999)]
                )
            case "bug":
                raise ZeroDivisionError("secret path /etc/shadow")
            case "id":
                return encoder_pb2.EncodeResponse(model_version=request_id(context))
            case "disk":
                raise OSError(getattr(errno, request.texts[1]), "the disk says no", "/etc/shadow")
            case "wait":
                self.waiting += 1
                await self.release.wait()
        return encoder_pb2.EncodeResponse(model_version="v1", embeddings=vectors.to_proto(np.ones((1, 2), np.float32)))

    async def EncodeStream(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[encoder_pb2.EncodeStreamResponse]:
        async for request in request_iterator:
            yield encoder_pb2.EncodeStreamResponse(batch_seq=request.batch_seq)

    async def GetInfo(self, request: Any, context: Any) -> encoder_pb2.EncoderServiceGetInfoResponse:
        return encoder_pb2.EncoderServiceGetInfoResponse(default_space_id="s1")


def build(**fields: Any) -> tuple[GrpcServer, Servicer]:
    server, servicer = GrpcServer(Settings(**fields)), Servicer()
    server.add(encoder_pb2_grpc.add_EncoderServiceServicer_to_server, servicer, "aeenc.v1.EncoderService")
    return server, servicer


async def ready(server: GrpcServer) -> EncoderClient:
    server.readiness.serving()
    return EncoderClient(Channel(f"127.0.0.1:{server.port}", timeout_s=5))


async def health_of(port: int, service: str) -> str:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


async def test_a_service_waits_for_another_that_is_away():
    channel = Channel("127.0.0.1:1", **Settings().peer())
    assert channel.retry.away_s == math.inf
    await channel.close()


async def test_health_says_not_serving_until_the_service_is_ready_and_calls_are_refused_with_the_reason() -> None:
    server, _ = build()
    async with server:
        server.readiness.starting("waiting for label stable")
        assert await health_of(server.port, "aeenc.v1.EncoderService") == "NOT_SERVING"
        client = EncoderClient(Channel(f"127.0.0.1:{server.port}", retry=False))
        with pytest.raises(errors.Unavailable, match="waiting for label stable"):
            await client.encode(["a"])
        assert (await client.info()).default_space_id == "s1"
        server.readiness.serving()
        await asyncio.sleep(0.05)
        assert await health_of(server.port, "aeenc.v1.EncoderService") == "SERVING"
        assert await health_of(server.port, "") == "SERVING"
        assert (await client.encode(["a"])).model_version == "v1"


async def id_and_trailer(call: Any) -> tuple[str, str]:
    """The model version that a call answers, or its error's message, and the id in its trailing metadata."""
    try:
        answered = (await call).model_version
    except grpc.aio.AioRpcError as error:
        answered = error.details()
    return answered, dict(await call.trailing_metadata())["x-request-id"]


async def test_a_call_has_one_id_in_servicer_log_and_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    server, _ = build(token="open-sesame")
    sesame = ("authorization", "Bearer open-sesame")
    async with server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        server.readiness.serving()
        stub = encoder_pb2_grpc.EncoderServiceStub(channel)
        ask = encoder_pb2.EncodeRequest(texts=["id"])
        generated, told = await id_and_trailer(stub.Encode(ask, metadata=[sesame]))
        assert (generated, len(generated)) == (told, 32)
        assert (await id_and_trailer(stub.Encode(ask, metadata=[sesame])))[1] != told
        for sent, kept in ((["mine"], True), (["one", "two"], True), (["x" * 64], True), (["x" * 65], False),
                           (["a b"], False), ([""], False)):  # fmt: skip
            ids = [("x-request-id", one) for one in sent]
            seen, told = await id_and_trailer(stub.Encode(ask, metadata=[sesame, *ids]))
            assert seen == told
            assert told == sent[-1] if kept else len(told) == 32
        bug = encoder_pb2.EncodeRequest(texts=["bug"])
        with structlog.testing.capture_logs([name_call]) as logs:
            message, told = await id_and_trailer(stub.Encode(bug, metadata=[sesame]))
        assert message.endswith(f"x-request-id {told}")
        assert [line["request_id"] for line in logs if line["event"] == "call failed"] == [told]
        assert len((await id_and_trailer(stub.Encode(ask)))[1]) == 32, "a refused call has one, too"
        stream = stub.EncodeStream(iter([encoder_pb2.EncodeStreamRequest(batch=ask)]), metadata=[sesame])
        assert [answer.batch_seq async for answer in stream] == [0]
        assert len(dict(await stream.trailing_metadata())["x-request-id"]) == 32


async def test_a_message_of_a_caller_without_a_valid_token_is_not_parsed() -> None:
    parsed: list[bytes] = []

    def register(servicer: Any, to: Any) -> None:
        def parse(data: bytes) -> bytes:
            parsed.append(data)
            return data

        async def answer(_request: Any, _context: Any) -> bytes:
            return b""

        async def answers(requests: Any, _context: Any) -> AsyncIterator[bytes]:
            async for request in requests:
                yield request

        handlers = {
            "Encode": grpc.unary_unary_rpc_method_handler(answer, request_deserializer=parse),
            "EncodeStream": grpc.stream_stream_rpc_method_handler(answers, request_deserializer=parse),
        }
        to.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", handlers),))

    server = GrpcServer(Settings(token="open-sesame"))
    server.add(register, None, "test.Service")
    async with server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        server.readiness.serving()
        encode = channel.unary_unary("/test.Service/Encode")
        stream = channel.stream_stream("/test.Service/EncodeStream")
        for metadata in ([], [("authorization", "Bearer wrong")]):
            with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                await encode(b"large", metadata=metadata)
            with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                await anext(aiter(stream(iter([b"large"] * 3), metadata=metadata)))
        assert parsed == []
        sesame = [("authorization", "Bearer open-sesame")]
        await encode(b"1", metadata=sesame)
        assert [answer async for answer in stream(iter([b"2"]), metadata=sesame)] == [b"2"]
        assert parsed == [b"1", b"2"]


async def test_a_refused_call_leaves_nothing_for_the_garbage_collector() -> None:
    server, _ = build(token="open-sesame")
    sesame = ("authorization", "Bearer open-sesame")
    async with server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        server.readiness.serving()
        stub = encoder_pb2_grpc.EncoderServiceStub(channel)
        await stub.Encode(encoder_pb2.EncodeRequest(texts=["a"]), metadata=[sesame])
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.disable()
        try:
            for _ in range(20):
                with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
                    await stub.Encode(encoder_pb2.EncodeRequest(texts=["overloaded"]), metadata=[sesame])
                with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                    await stub.Encode(encoder_pb2.EncodeRequest(texts=["a"]))
            gc.collect()
            left = [thing for thing in gc.garbage if isinstance(thing, (types.FrameType, BaseException))]
        finally:
            gc.enable()
            gc.set_debug(0)
            gc.garbage.clear()
    assert not left, "frames and exceptions that refer to each other make pauses when many calls are refused"


@pytest.mark.parametrize(
    ("texts", "kind", "said", "with_it"),
    [
        (["overloaded"], errors.Overloaded, "queue is full", {"retry_after_s": 30.0, "reason": "OVERLOADED"}),
        (["many"], errors.InvalidArgument, "bad", {"code": "INVALID_ARGUMENT"}),
        (["bug"], errors.AeencError, "internal error", {"code": "INTERNAL"}),
        (["x" * 10_000], errors.TooLarge, "split the call", {}),
        (["disk", "ENOSPC"], errors.Unavailable, "the disk is full", {}),
        (["disk", "EDQUOT"], errors.Unavailable, "the disk is full", {}),
        (["disk", "EFBIG"], errors.Unavailable, "a file-size limit is reached", {}),
        (["disk", "EROFS"], errors.Unavailable, "the disk is read-only; mount it", {}),
        (["disk", "EACCES"], errors.Unavailable, "denies the service a file; correct its owner", {}),
        (["disk", "EIO"], errors.Unavailable, "fails to read or write; replace it", {}),
        (["disk", "ENOENT"], errors.Unavailable, "lacks a file that was there; look whether its volume is mounted", {}),
        (["disk", "ESTALE"], errors.Unavailable, "lacks a file that was there; look whether its volume is mounted", {}),
    ],
)
async def test_an_error_reaches_the_caller_as_its_class_without_internals_and_the_process_goes_on(
    texts: list[str], kind: type[errors.AeencError], said: str, with_it: dict[str, object]
) -> None:
    server, _ = build(message_bytes=4096)
    async with server:
        client = EncoderClient((await ready(server)).channel.with_options(retry=False))
        with structlog.testing.capture_logs() as logs, pytest.raises(kind, match=said) as caught:
            await client.encode(texts)
        if texts[0] in {"bug", "disk"}:
            assert [log["exc_info"] for log in logs if log["event"] == "call failed"], "the log has what it hides"
        assert {name: getattr(caught.value, name) for name in with_it} == with_it
        assert "shadow" not in caught.value.message
        if texts == ["many"]:
            assert len(caught.value.violations) == 16, "a thousand do not fit into a trailer"
            assert caught.value.metadata["violations"] == "999"
        assert (await client.encode(["a"])).model_version == "v1"


async def test_a_stranger_lists_services_by_reflection() -> None:
    server, _ = build()
    async with server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)

        async def ask() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
            yield reflection_pb2.ServerReflectionRequest(list_services="")

        names = [s.name async for r in stub.ServerReflectionInfo(ask()) for s in r.list_services_response.service]
    assert {"aeenc.v1.EncoderService", "grpc.health.v1.Health"} <= set(names)


async def test_a_token_is_needed_everywhere_but_for_health() -> None:
    server, _ = build(token="open-sesame")
    async with server:
        server.readiness.serving()
        target = f"127.0.0.1:{server.port}"
        with pytest.raises(errors.Unauthenticated, match="no token was sent"):
            await EncoderClient(Channel(target)).encode(["a"])
        with pytest.raises(errors.Unauthenticated, match="unknown token"):
            await EncoderClient(Channel(target, token="wrong")).encode(["a"])
        assert (await EncoderClient(Channel(target, token="open-sesame")).encode(["a"])).model_version == "v1"
        await asyncio.sleep(0.05)
        assert await health_of(server.port, "") == "SERVING"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "192.0.2.1", "example.org"])
def test_a_service_refuses_to_listen_beyond_loopback_without_a_token(host: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="AEENC_TEST_TOKEN"):
        build(host=host)
    build(host=host, token="t")
    build(host=host, allow_insecure=True)


async def test_a_server_that_ended_by_itself_is_opened_until_that_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "REOPEN_S", 0.01)
    running, _ = build()  # not started: grpc ends the process if a server is stopped twice
    running.port, refused = 7, [1, 2]

    async def half_replaced() -> None:
        assert running.port == 7, "callers know this one"
        if refused:
            running.port = 0
            raise errors.InvalidArgument(f"the certificate has another key ({refused.pop()})")

    monkeypatch.setattr(running, "_open", half_replaced)
    await running._open_again()
    assert not refused


async def test_a_port_that_is_taken_or_an_address_of_another_machine_is_named() -> None:
    first, _ = build()
    async with first:
        for fields, told in (
            ({"port": first.port}, f":{first.port}: another process has the port"),
            ({"host": "192.0.2.1", "token": "t"}, r"192\.0\.2\.1:0: .* this machine does not have the address"),
        ):
            with pytest.raises(errors.Unavailable, match=told):
                await build(**fields)[0].start()


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_a_service_listens_on_the_loopback_of_ipv6_in_either_spelling(host: str) -> None:
    server, _ = build(host=host, metrics_port=0)
    async with server:
        server.readiness.serving()
        channel = Channel(f"[::1]:{server.port}", timeout_s=5)
        assert (await EncoderClient(channel).encode(["a"])).model_version == "v1"
        await channel.close()


async def test_a_metrics_port_that_is_taken_is_named_before_callers_are_served(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server, _ = build(host=f"unix:{tmp_path}/test.sock", metrics_port=port)
        with pytest.raises(errors.Unavailable, match=f"AEENC_TEST_METRICS_PORT={port} .*in use"):
            await server.start()
    assert not server.port, "its own port is not open yet"


async def test_beside_a_socket_of_this_machine_metrics_are_on_loopback(tmp_path: Path) -> None:
    server, _ = build(host=f"unix:{tmp_path}/test.sock", metrics_port=0)
    async with server:
        with socket.create_connection(("127.0.0.1", server.metrics_port)):
            pass


def test_settings_come_from_flags_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AEENC_TEST_PORT", "1111")
    monkeypatch.setenv("AEENC_TEST_DRAIN_S", "3")
    settings = Settings.from_command_line(["--port", "2222"])
    assert (settings.port, settings.drain_s) == (2222, 3.0)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("AEENC_TEST_PORT", "many", "integer"),
        *(("AEENC_TEST_DRAIN_S", value, "is .*; give at most 1,000,000,000") for value in ("inf", "1e300")),
        ("AEENC_TEST_DRAIN_S", "nan", "greater than or equal to 0"),
        *((f"AEENC_TEST_{name}", "3e6", "less than") for name in ("PING_S", "CONNECTION_AGE_S", "CONNECTION_GRACE_S")),
        *((f"AEENC_TEST_{name}", "3000000000", "less than or equal") for name in ("MESSAGE_BYTES", "TEXT_BYTES")),
        *(
            (f"AEENC_TEST_{name}", "3000000000", "is 3,000,000,000; give at most 2,147,483,647")
            for name in ("MAX_ITEMS", "MAX_STREAMS", "MAX_CONNECTIONS")
        ),
        ("AEENC_TEST_MAX_REQUEST_BYTES", "9" * 19, "is 9,999,.*; give at most"),
        ("AEENC_TEST_LOG_FILE_BYTES", "100", "greater than or equal to 4096"),
        ("AEENC_TRAINER_DATA_SETS", "not JSON", "cannot be read; give JSON"),
        *((f"AEENC_TRAINER_{name}", '{"a": " "}', "at least 1 character") for name in ("BASE_MODELS", "LOSSES")),
        ("AEENC_TRAINER_LEASE_S", "0.0001", "greater than or equal"),
    ],
)
def test_a_wrong_setting_stops_the_start_with_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as caught:
        (TrainerSettings if "TRAINER" in name else Settings).from_command_line([])
    assert caught.value.code == 2
    assert re.match(rf"{name} \(--[a-z-]+\): .*{said}", capsys.readouterr().err)


def test_a_flag_that_is_no_json_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        TrainerSettings.from_command_line(["--data-sets", "nonsense"])
    assert "AEENC_TRAINER_DATA_SETS (--data-sets): cannot be read; give JSON" in capsys.readouterr().err


def test_a_misspelt_setting_is_named_with_the_nearest_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AEENC_TEST_DRIAN_S", "3")
    monkeypatch.setenv("AEENC_TEST_SERVICE_PORT_GRPC", "50051")  # what Kubernetes tells of a service `aeenc-test`
    assert Settings.from_command_line([]).drain_s == Settings.model_fields["drain_s"].default
    assert capsys.readouterr().err == (
        "AEENC_TEST_DRIAN_S is not a setting and is ignored; did you mean AEENC_TEST_DRAIN_S?\n"
    )


def test_calls_are_counted_by_method_code_and_caller_and_timed_by_method() -> None:
    registry = CollectorRegistry()
    metrics = RpcMetrics(registry)
    for code, elapsed_s, caller in [("OK", 0.001, ""), ("OK", 0.0011, "ann"), ("INTERNAL", 100.0, "ann")]:
        metrics.observe("/a.B/C", code, elapsed_s, caller)
    of = registry.get_sample_value
    bounds = {le: of("aeenc_rpc_seconds_bucket", {"method": "/a.B/C", "le": le}) for le in ("0.001", "0.0025", "60.0")}
    assert bounds == {"0.001": 1, "0.0025": 2, "60.0": 2}
    assert of("aeenc_rpc_seconds_bucket", {"method": "/a.B/C", "le": "+Inf"}) == 3
    assert of("aeenc_rpc_seconds_count", {"method": "/a.B/C"}) == 3
    assert of("aeenc_rpc_seconds_sum", {"method": "/a.B/C"}) == pytest.approx(100.0021)
    assert of("aeenc_rpc_total", {"method": "/a.B/C", "code": "OK"}) == 2
    assert of("aeenc_caller_calls_total", {"caller": "ann", "code": "OK"}) == 1
    assert of("aeenc_caller_calls_total", {"caller": "ann", "code": "INTERNAL"}) == 1


def test_a_token_may_stand_in_a_file_which_says_something_and_stands_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    monkeypatch.setenv("AEENC_TEST_TOKEN_FILE", str(file))
    assert (Settings().token, Settings().admin_token) == ("secret", None)
    with pytest.raises(ValidationError, match="TOKEN and TOKEN_FILE exclude each other"):
        Settings(token="other")
    file.write_text(" \n")
    with pytest.raises(ValidationError, match="is empty; write the token"):
        Settings()
    file.write_bytes(b"\xff")
    with pytest.raises(ValidationError, match=r"cannot be read \(not UTF-8\); name another"):
        Settings()
    monkeypatch.setenv("AEENC_TEST_TOKEN_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(ValidationError, match="nowhere cannot be read"):
        Settings()

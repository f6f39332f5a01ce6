"""TLS of all services: certificates that change, and callers that show one of their own."""

from __future__ import annotations

import asyncio
import errno
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from kit.test_server import Settings
from prometheus_client import CollectorRegistry
from pydantic import ValidationError
from structlog.testing import capture_logs

from aeenc import Channel, EncoderClient, errors
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc
from services.kit import healthcheck
from services.kit.server import Certificates, GrpcServer
from services.sampler.oracles.gateway import OracleGateway, OracleMetrics
from services.sampler.settings import OracleSettings
from support.certificates import certify, needs_openssl
from support.worlds.index_world import HashedEncoder


def build(**fields: Any) -> GrpcServer:
    server = GrpcServer(Settings(**fields))
    server.add(encoder_pb2_grpc.add_EncoderServiceServicer_to_server, HashedEncoder(), "aeenc.v1.EncoderService")
    return server


@needs_openssl
async def test_a_service_reaches_another_that_asks_for_client_certificates_and_so_does_its_health_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cert, key), (own_cert, own_key) = certify(tmp_path, "server"), certify(tmp_path, "index")
    server = build(host="localhost", tls_cert=cert, tls_key=key, tls_client_ca=own_cert)
    async with server:
        server.readiness.serving()
        target = f"localhost:{server.port}"

        async def encodes(timeout_s: float, **peer: Path) -> bool:
            channel = Channel(target, **Settings(peer_ca=cert, **peer).peer(), timeout_s=timeout_s)
            try:
                return (await EncoderClient(channel).encode(["ice"])).vectors.shape == (1, 32)
            except (errors.Unavailable, errors.DeadlineExceeded):
                return False
            finally:
                await channel.close()

        assert await encodes(20, peer_cert=own_cert, peer_key=own_key)
        assert not await encodes(1)

        async def exit_status(*words: object) -> int:
            monkeypatch.setattr(sys, "argv", ["healthcheck", target, "--ca", *map(str, words)])
            with pytest.raises(SystemExit) as ended:
                await asyncio.to_thread(healthcheck.main)
            return int(str(ended.value.code))

        assert await exit_status(cert, "--cert", own_cert, "--key", own_key) == 0
        variables = {"PORT": server.port, "TLS_CERT": own_cert, "TLS_KEY": own_key, "PEER_CA": cert}
        for name, value in variables.items():
            monkeypatch.setenv(f"AEENC_INDEX_{name}", str(value))
        assert await asyncio.to_thread(healthcheck.service_serves, "index")
        monkeypatch.setenv("AEENC_INDEX_TLS_CERT", "")
        assert not await asyncio.to_thread(healthcheck.service_serves, "index"), "it shows no certificate"
        assert await exit_status(cert) == 1


@pytest.mark.parametrize("fields", [("peer_cert",), ("peer_key", "peer_ca"), ("peer_cert", "peer_key")])
def test_half_a_client_certificate_is_refused(fields: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "one.pem").touch()
    with pytest.raises(ValidationError, match="PEER_CERT and PEER_KEY belong together and need PEER_CA"):
        Settings(**dict.fromkeys(fields, tmp_path / "one.pem"))


def test_a_file_of_a_peer_that_is_not_there_stops_the_start_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        Settings.from_command_line(["--peer-ca", str(tmp_path / "none.pem")])
    assert "AEENC_TEST_PEER_CA (--peer-ca): Path does not point to a file" in capsys.readouterr().err


def test_client_certificates_without_tls_are_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match="AEENC_TEST_TLS_CLIENT_CA alone would open a port without TLS"):
        build(tls_client_ca=tmp_path / "ca.pem")


@needs_openssl
async def test_certificates_are_read_again_when_they_have_changed(tmp_path: Path) -> None:
    files = {"tls_cert": tmp_path / "server.pem", "tls_key": tmp_path / "server.key"}
    certify(tmp_path, "server")
    old = files["tls_cert"].read_bytes()
    server = build(**files, host="localhost")

    async def serves(ca: bytes) -> bool:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(
            f"localhost:{server.port}", grpc.ssl_channel_credentials(ca), options
        ) as channel:
            stub = encoder_pb2_grpc.EncoderServiceStub(channel)
            try:
                await stub.GetInfo(encoder_pb2.EncoderServiceGetInfoRequest(), timeout=5)
            except grpc.aio.AioRpcError as error:
                return error.code() is not grpc.StatusCode.UNAVAILABLE
            return True

    async with server:
        assert await serves(old)
        cert, key = certify(tmp_path, "new")
        cert.replace(files["tls_cert"])
        new = files["tls_cert"].read_bytes()
        assert (await serves(old), await serves(new)) == (True, False), "its key is not there yet"
        key.replace(files["tls_key"])
        assert (await serves(old), await serves(new)) == (False, True)


@needs_openssl
async def test_certificates_that_do_not_fit_together_stop_the_start_with_their_names(tmp_path: Path) -> None:
    cert, _ = certify(tmp_path, "one")
    _, key = certify(tmp_path, "other")
    server = build(tls_cert=cert, tls_key=key)
    with pytest.raises(errors.InvalidArgument, match=r"AEENC_TEST_TLS_CERT=.*one\.pem, .*cannot be used"):
        await server.start()


@pytest.mark.parametrize("who", ["service", "oracle"])
async def test_a_service_sends_a_token_to_another_host_by_tls_alone_unless_its_settings_say_so(who: str) -> None:
    def reach(**fields: Any) -> Any:
        if who == "oracle":
            metrics = OracleMetrics(CollectorRegistry())
            return OracleGateway("theirs", OracleSettings(target="10.0.0.1:1", token="t", **fields), metrics)
        settings = Settings(peer_token="t", **fields)
        GrpcServer(settings)
        return Channel("10.0.0.1:1", **settings.peer())

    with capture_logs() as lines, pytest.raises(errors.InvalidArgument, match=r"10.0.0.1:1, .*PLAIN_TOKEN"):
        reach()
    assert not lines
    with capture_logs() as lines:
        reach(plain_token=True)
    assert [line["log_level"] for line in lines] == ["warning"]
    assert "without TLS" in lines[0]["event"]


@needs_openssl
def test_a_passing_error_of_the_disk_loses_no_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates = Certificates(*certify(tmp_path, "server"), None, "AEENC_TEST_")
    certify(tmp_path, "server")

    def fails(path: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", fails)
        assert certificates._read_if_changed() is None
    assert certificates._read_if_changed() is not None, "the next handshake tries again"
    assert certificates._read_if_changed() is None

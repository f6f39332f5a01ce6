"""Where commands look for the services: options before environment before the local fleet's file before defaults."""

import asyncio
import errno
import json
import os
from pathlib import Path

import grpc
import pytest

from aeenc.errors import FailedPrecondition, InvalidArgument
from aeenc.transport.targets import Targets, read_fleet
from aeenc.v1 import index_pb2_grpc
from support.certificates import certify, needs_openssl
from support.worlds.sampler_world import FakeIndex


@pytest.fixture
async def filled(aeenc, fleet, monkeypatch):
    """A fleet with a corpus, which commands do not find by themselves."""
    await aeenc.json("corpus", "build", "science", "--facts", "-", typed="ice is cold\n")
    for name in ("ENCODER", "INDEX", "TRAINER"):
        monkeypatch.delenv(f"AEENC_{name}")
    return fleet


def write_fleet(folder, **targets):
    folder.mkdir(exist_ok=True)
    (folder / "fleet.json").write_text(json.dumps({"format_version": 1, "targets": targets}))


async def test_the_fleet_file_of_the_directory_is_found_or_that_of_aeenc_home(aeenc, filled, tmp_path, monkeypatch):
    write_fleet(tmp_path / "cwd" / ".aeenc", index=filled.index)
    assert (await aeenc("retrieve", "science", "ice")).code == 0
    write_fleet(tmp_path / "elsewhere", index="127.0.0.1:1")
    monkeypatch.setenv("AEENC_HOME", str(tmp_path / "elsewhere"))
    ended = await aeenc("--timeout", 0.2, "retrieve", "science", "ice")
    assert (ended.code, "127.0.0.1:1" in ended.stderr) == (3, True)
    monkeypatch.setenv("AEENC_INDEX", filled.index)
    assert (await aeenc("retrieve", "science", "ice")).code == 0, "the environment goes before the file"
    monkeypatch.setenv("AEENC_INDEX", "127.0.0.1:2")
    ended = await aeenc("--timeout", 0.2, "retrieve", "science", "ice")
    assert (ended.code, "127.0.0.1:2" in ended.stderr) == (3, True)
    assert (await aeenc("--index", filled.index, "retrieve", "science", "ice")).code == 0, "an option before both"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{\n,", ":2: not JSON"),
        ("[" * 100_000, ": nested too deeply"),
        ('{"targets": ' + "9" * 5_000 + "}", ": a number has too many digits"),
        ('{"targets": {}, "targets": {}}', ": 'targets' is there twice"),
        ("[]", ":1: format_version must be 1"),
        ('{"format_version": 2, "targets": {}}', ":1: format_version must be 1"),
        ('{"format_version": 1}', ":1: `targets`"),
        ('{"format_version": 1, "targets": {"index": 50052}}', ":1: `targets`"),
        *(
            (json.dumps({"format_version": 1, "targets": {"index": target}}), f":1: index is at {target!r}")
            for target in (
                "192.0.2.2:52095",
                "example.org:443",
                "dns:///example.org:443",
                "dns://127.0.0.1/localhost:1",
                "127.0.0.1:1,192.0.2.2:1",
                "vsock:1:2",
                "",
            )
        ),
    ],
)
async def test_a_malformed_fleet_file_is_named(aeenc, tmp_path, content, words):
    folder = tmp_path / "cwd" / ".aeenc"
    folder.mkdir()
    (folder / "fleet.json").write_text(content)
    with pytest.raises(InvalidArgument):
        read_fleet(folder)
    ended = await aeenc("retrieve", "science", "ice")
    assert ended.code == 2
    assert f"fleet.json{words}" in ended.stderr
    assert (await aeenc("--help")).code == 0


async def test_the_fleet_file_of_another_account_is_named_unless_all_addresses_are_given(aeenc, tmp_path, monkeypatch):
    def refused(path, *_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    write_fleet(tmp_path / "cwd" / ".aeenc", index="127.0.0.1:1")
    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(FailedPrecondition, match=r"fleet\.json is another account's; run as .*AEENC_ENCODER, AEENC_"):
        Targets.find(encoder="e:1", index="i:1", sampler="s:1")
    assert Targets.find(encoder="e:1", index="i:1", sampler="s:1", trainer="t:1").index == "i:1"
    ended = await aeenc("retrieve", "science", "ice")
    assert ended.code == 4
    assert ".aeenc/fleet.json is another account's" in ended.stderr


@pytest.mark.parametrize("switch", ["--plain-token", "--tls", "AEENC_PLAIN_TOKEN", "AEENC_TLS"])
async def test_a_token_travels_to_another_host_where_a_flag_or_a_variable_says_so(aeenc, monkeypatch, switch):
    words = ["--index", "192.0.2.1:1", "--token", "t", "--timeout", 0.2, "retrieve", "science", "ice"]
    refused = await aeenc(*words)
    assert (refused.code, "plain_token: is off" in refused.stderr) == (2, True)
    if switch.startswith("AEENC"):
        monkeypatch.setenv(switch, "true")
    tried = await aeenc(*([switch] if switch.startswith("--") else []), *words)
    assert tried.code == 3, tried.stderr


@needs_openssl
async def test_a_ca_that_was_found_leads_every_command_to_its_services_by_tls(aeenc, tmp_path, monkeypatch):
    cert, key = await asyncio.to_thread(certify, tmp_path, "server")
    server = grpc.aio.server()
    index_pb2_grpc.add_IndexServiceServicer_to_server(FakeIndex(), server)
    identity = grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())])
    at = f"localhost:{server.add_secure_port('localhost:0', identity)}"
    await server.start()
    assert (await aeenc("--ca", cert, "--index", at, "retrieve", "science", "ice")).code == 0
    monkeypatch.setenv("AEENC_CA", str(cert))
    assert (await aeenc("--index", at, "retrieve", "science", "ice")).code == 0
    assert Targets.find(**Targets.find(ca="").options()).options() == Targets.find(ca="").options()
    await server.stop(0)

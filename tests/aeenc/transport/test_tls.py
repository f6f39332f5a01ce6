"""TLS by public authorities, `tls`: what it contradicts, and a server that such an authority has certified."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import aeenc
from aeenc import Channel, errors
from aeenc.adapters.premises import PremiseRetriever
from aeenc.oracles.remote import RemoteOracle
from aeenc.transport.checks import key_pair
from aeenc.transport.targets import Targets
from support.certificates import certify, needs_openssl
from support.worlds.index_world import RunningEncoder

_ASK = """
import sys, aeenc
with aeenc.connect(encoder=sys.argv[1], token="t", tls=True, timeout_s=5, retry=False) as client:
    print(len(client.encoder.encode(["ice"]).vectors))
"""


@needs_openssl
async def test_a_server_that_a_public_authority_has_certified_needs_no_ca(tmp_path: Path) -> None:
    pair = await asyncio.to_thread(certify, tmp_path, "server")
    other, _ = await asyncio.to_thread(certify, tmp_path, "other")
    async with RunningEncoder("localhost:0", pair) as encoder:

        async def asked(roots: Path) -> subprocess.CompletedProcess[str]:
            environment = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(roots), "PYTHONPATH": ":".join(sys.path)}
            words = [sys.executable, "-c", _ASK, encoder.target]
            return await asyncio.to_thread(subprocess.run, words, env=environment, capture_output=True, text=True)

        refused = await asked(other)
        assert (refused.returncode, "Unavailable" in refused.stderr) == (1, True)
        assert not encoder.servicer.tokens
        ended = await asked(pair[0])
        assert (ended.stdout, encoder.servicer.tokens) == ("1\n", {"Bearer t"}), ended.stderr


@needs_openssl
def test_a_key_pair_that_is_replaced_while_it_is_read_is_a_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certify(tmp_path, "old")
    new_cert, new_key = certify(tmp_path, "new")
    new = new_key.read_bytes(), new_cert.read_bytes()
    read_bytes = Path.read_bytes

    def replaced_behind(path: Path) -> bytes:
        content = read_bytes(path)
        if path == key and new_key.exists():
            new_key.replace(key)
            new_cert.replace(cert)
        return content

    monkeypatch.setattr(Path, "read_bytes", replaced_behind)
    assert key_pair(cert, key) == new


async def test_a_token_may_travel_to_another_host_by_tls_of_public_authorities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    away = dict.fromkeys(("encoder", "index", "sampler", "trainer"), "example.org")
    await Channel("example.org", token="t", tls=True).close()
    await aeenc.connect_async(**away, token="t", tls=True).close()
    PremiseRetriever("science", index="example.org", token="t", tls=True).retrieve  # noqa: B018
    RemoteOracle("example.org", token="t", tls=True)
    monkeypatch.setenv("AEENC_TLS", "true")
    await aeenc.connect_async(**away, token="t").close()
    monkeypatch.setenv("AEENC_TLS", "perhaps")
    with pytest.raises(errors.InvalidArgument, match="tls: must be true or false, got 'perhaps'; see also AEENC_TLS"):
        Targets.find()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"index": "unix:/run/a.sock", "tls": True}, r"tls: is on, and unix:/run/a\.sock is a socket"),
        ({"index": "a:1,unix:/run/a.sock", "tls": True}, "tls: is on, and a:1,unix:"),
        ({"tls": True, "ca": ""}, "tls: is on, and ca '' makes connections plain"),
        ({"tls": False, "ca": "ca.pem"}, r"tls: is off, and ca 'ca\.pem' makes connections TLS"),
        ({"tls": False, "cert": "a.pem", "key": "a.key"}, "cert: needs TLS"),
        ({"cert": "a.pem", "key": "a.key", "token": "secret"}, "cert: needs TLS, .*give ca, too .*or AEENC_CA"),
        ({"ca": "ca.pem", "cert": "a.pem"}, "cert and key belong together"),
        ({"ca": "missing.pem"}, r"ca: 'missing\.pem' cannot be read \(No such file or directory\)"),
    ],
)
def test_options_that_contradict_tls_are_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=f"^{said}"):
        aeenc.connect(**options)


@needs_openssl
def test_certificate_files_that_cannot_be_used_are_refused_by_name(tmp_path: Path) -> None:
    cert, key = certify(tmp_path, "one")
    _, foreign = certify(tmp_path, "other")
    (text := tmp_path / "text.pem").write_text("no certificate")
    for pair in ((cert, foreign), (text, key), (cert, text)):
        with pytest.raises(errors.InvalidArgument, match=r"^cert .*\.pem and key .* cannot be used \("):
            aeenc.connect(ca=cert, cert=pair[0], key=pair[1])
    (der := tmp_path / "text.pem.der").write_bytes(ssl.PEM_cert_to_DER_cert(cert.read_text()))
    for wrong in (text, der):
        with pytest.raises(errors.InvalidArgument, match=r"^ca: '.*text\.pem.* cannot be used \(.*\); give a PEM file"):
            aeenc.connect(ca=wrong)
    (commented := tmp_path / "commented.pem").write_text(f"# Autorité\n{cert.read_text()}")
    aeenc.connect(ca=commented, cert=cert, key=key).close()


def test_a_key_pair_of_the_environment_needs_tls_too_unless_a_plain_connection_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CERT", "KEY"):
        monkeypatch.setenv(f"AEENC_{name}", f"{name}.pem")
    with pytest.raises(errors.InvalidArgument, match="cert: needs TLS"):
        aeenc.connect()
    monkeypatch.setenv("AEENC_CA", "CA.pem")
    aeenc.connect(ca="").close()
    with pytest.raises(errors.InvalidArgument, match="cert: needs TLS"):
        aeenc.connect(ca="", cert="cert.pem", key="key.pem")


async def test_a_plain_connection_that_is_asked_for_ignores_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AEENC_TLS", "true")
    await aeenc.connect_async(index="unix:/run/a.sock", ca="").close()
    assert not Targets.find(tls=False).are_tls
    assert Targets.find(ca="ca.pem").are_tls, "both are TLS"

"""Several servers behind one target: a static list or a DNS name; calls go round, the dead are passed over."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aeenc
from aeenc import Channel, EncoderClient, errors
from aeenc.transport.addresses import Address, is_local, proxy_of, resolve, split
from aeenc.transport.targets import Targets
from support.certificates import certify, needs_openssl
from support.waiting import until
from support.worlds.index_world import RunningEncoder, raises, vector_of

TEXTS = [f"fact {n}" for n in range(200)]


@pytest.fixture
async def encoders() -> AsyncIterator[list[RunningEncoder]]:
    """Two encoders on one port of two addresses, as the hosts behind a name are."""
    async with RunningEncoder() as first, RunningEncoder(first.target.replace("127.0.0.1", "127.0.0.2")) as second:
        first.servicer.pause_s = second.servicer.pause_s = 0.005
        yield [first, second]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Host names that resolve as the test says; there is no name server to ask here."""
    known: dict[str, list[str]] = {}

    def look_up(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("a:1", ["a:1"]),
        ("a:1, b:2,a:1", ["a:1", "b:2"]),
        ("ipv4:10.0.0.1:1,10.0.0.2:1", ["ipv4:10.0.0.1:1", "ipv4:10.0.0.2:1"]),
        ("ipv6:[::1]:1", ["ipv6:[::1]:1"]),
        ("dns:///a:1", ["dns:///a:1"]),
        ("unix:/run/a.sock", ["unix:/run/a.sock"]),
        ("unix:///run/a.sock", ["unix:///run/a.sock"]),
        ("[::1]:1", ["[::1]:1"]),
        ("a:1,ipv4:10.0.0.1:1", ["a:1", "ipv4:10.0.0.1:1"]),
        ("dns://10.0.0.53:53/a:1", ["dns://10.0.0.53:53/a:1"]),
        ("dns:a:1", ["dns:a:1"]),
    ],
)
def test_a_target_is_one_server_or_a_list(target: str, parts: list[str]) -> None:
    assert split(target) == parts


HERE = [
    *("127.0.0.1:1", "127.8.0.1:1", "localhost:1", "LOCALHOST:1", "[::1]:1", "ipv6:[::1]:1", "ipv4:127.0.0.1:1"),
    *("dns:///localhost:1", "dns:localhost:1", "unix:/run/a.sock", "unix-abstract:a", "127.0.0.1:1,localhost:2"),
]
ELSEWHERE = [
    *("10.0.0.1:1", "a:1", "localhost.evil.example:1", "[fe80::1]:1", "dns:///encoder:1", "0.0.0.0:1"),
    *("dns://10.0.0.53/localhost:1", "127.0.0.1:1,10.0.0.1:1", "ipv4:127.0.0.1:1,10.0.0.1:1", "vsock:3:1"),
]


@pytest.mark.parametrize("target", HERE)
async def test_a_token_travels_within_this_machine_without_tls(target: str) -> None:
    assert is_local(target)
    await Channel(target, token="secret").close()


@pytest.mark.parametrize("target", ELSEWHERE)
async def test_a_token_travels_to_another_host_by_tls_or_when_asked_for(target: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"plain_token: is off, so no token travels to .*give ca"):
        Channel(target, token="secret")
    await Channel(target, token="secret", tls=True).close()
    await Channel(target, token="secret", plain_token=True).close()
    plain = Channel(target)
    with pytest.raises(errors.InvalidArgument, match="plain_token"):
        plain.with_options(token="secret")
    await plain.close()


@pytest.mark.parametrize("switch", ["true", "1", True])
async def test_all_clients_can_be_told_to_send_tokens_plain(
    monkeypatch: pytest.MonkeyPatch, switch: str | bool
) -> None:
    away = dict.fromkeys(("encoder", "index", "sampler", "trainer"), "10.0.0.1:1")
    for tokens in ({"token": "t"}, {"admin_token": "t"}):
        with pytest.raises(errors.InvalidArgument, match="plain_token"):
            aeenc.connect_async(**away, **tokens)
    await aeenc.connect_async(**away, token="t", plain_token=True).close()
    monkeypatch.setenv("AEENC_PLAIN_TOKEN", str(switch))
    await aeenc.connect_async(**away, token="t").close()
    with pytest.raises(errors.InvalidArgument, match="plain_token"):
        aeenc.connect_async(**away, token="t", plain_token=False)
    with pytest.raises(errors.InvalidArgument, match="true or false, got 'perhaps'"):
        Targets.find(plain_token="perhaps")


@pytest.mark.parametrize("target", ["", "a:1,", ",a:1", "a:1,,b:1", "ipv4:"])
def test_an_empty_address_is_refused(target: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="empty address"):
        Channel(target)


@pytest.mark.parametrize(
    "target",
    [
        *("50099", "localhost", "localhost:", "localhost:index", "localhost:99999", "localhost:0", "a b:1"),
        *("http://localhost:50052", "https://localhost:50052/", "::1", "::1:50052", "dns:///a", "ipv4:10.0.0.1"),
    ],
)
def test_a_malformed_address_is_refused_by_its_name(target: str) -> None:
    for given in (target, f"a:1,{target}"):
        with pytest.raises(errors.InvalidArgument, match=r"HOST:PORT|dns:///name:port") as refused:
            aeenc.connect(index=given)
        assert f"{target.removeprefix('ipv4:')}' is not an address" in refused.value.message
    if target not in {"localhost", "dns:///a"}:  # by TLS these may lack their port
        with pytest.raises(errors.InvalidArgument, match="is not an address"):
            split(target, tls=True)


@pytest.mark.parametrize("target", ["a", "10.0.0.1", "[::1]", "dns:///a", "a,b:1"])
def test_by_tls_an_address_may_lack_its_port(target: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="is not an address"):
        Channel(target)
    assert Channel(target, tls=True).target == target


async def test_a_dns_name_stands_for_all_its_addresses(names: dict[str, list[str]]) -> None:
    names["encoders.test"] = ["10.0.0.1", "10.0.0.2"]
    name = "encoders.test"
    assert await resolve(f"dns:///{name}:50051") == [
        Address("ipv4:10.0.0.1:50051", name),
        Address("ipv4:10.0.0.2:50051", name),
    ]
    assert await resolve(f"dns:///{name}", tls=True) == [
        Address("ipv4:10.0.0.1:443", name),
        Address("ipv4:10.0.0.2:443", name),
    ]
    assert await resolve("encoders.test:50051,b:1") == [Address("encoders.test:50051"), Address("b:1")]
    await raises(errors.Unavailable, resolve("dns:///unknown.test:1"), "'unknown.test' cannot be resolved")
    await raises(errors.InvalidArgument, resolve("dns:///encoders.test"), "dns:///name:port")


async def test_a_name_that_the_lookup_itself_refuses_is_named() -> None:
    for host in ("a..b", "a" * 64):
        await raises(errors.Unavailable, resolve(f"dns:///{host}:1"), f"'{host}' cannot be resolved (no such name)")


async def test_bulk_work_is_spread_over_the_addresses_of_a_name(
    encoders: list[RunningEncoder], names: dict[str, list[str]]
) -> None:
    names["encoders.test"] = ["127.0.0.1", "127.0.0.2"]
    port = encoders[0].target.rpartition(":")[2]
    client = EncoderClient(Channel(f"dns:///encoders.test:{port}", timeout_s=5))
    batches = [batch.vectors async for batch in client.encode_all(TEXTS, role="premise", batch=8)]
    assert np.array_equal(np.concatenate(batches), np.stack([vector_of(text) for text in TEXTS]))
    assert min(len(encoder.servicer.batches) for encoder in encoders) > 5
    await client.channel.close()


async def test_a_name_that_moves_is_looked_up_again(
    encoders: list[RunningEncoder], names: dict[str, list[str]]
) -> None:
    names["encoders.test"] = ["127.0.0.1"]
    port = encoders[0].target.rpartition(":")[2]
    client = EncoderClient(Channel(f"dns:///encoders.test:{port}", timeout_s=5))
    stream = client.encode_all(TEXTS, role="premise", batch=8, patience_s=5)
    first = [await anext(stream)]
    names["encoders.test"] = ["127.0.0.2"]
    await encoders[0].stop()
    batches = first + [batch async for batch in stream]
    assert sum(len(batch.vectors) for batch in batches) == len(TEXTS)
    assert len(encoders[1].servicer.batches) > 5
    await client.channel.close()


@needs_openssl
async def test_certificates_are_checked_against_the_name_of_each_server(
    tmp_path: Path, names: dict[str, list[str]]
) -> None:
    names["encoders.test"] = ["127.0.0.1"]
    hosts = "DNS:encoders.test,DNS:localhost"
    pair = await asyncio.to_thread(certify, tmp_path, "server", hosts=hosts)
    async with RunningEncoder(pair=pair) as encoder:
        port = encoder.target.rpartition(":")[2]

        async def bulk(target: str) -> int:
            channel = Channel(target, ca=pair[0], token="t", timeout_s=1)
            try:
                stream = EncoderClient(channel).encode_all(TEXTS, role="premise", patience_s=1.0)
                return sum([len(batch.vectors) async for batch in stream])
            finally:
                await channel.close()

        assert await bulk(f"dns:///encoders.test:{port}") == len(TEXTS)
        assert encoder.servicer.tokens == {"Bearer t"}
        await raises(errors.Unavailable, bulk(f"127.0.0.1:{port}"), "127.0.0.1")
        listed = Channel(f"localhost:{port},127.0.0.1:{port}", ca=pair[0], timeout_s=5)
        for _ in range(3):
            await EncoderClient(listed).encode(["ice"])
        await listed.close()
    await until(lambda: encoder.servicer.open_streams == 0)


@pytest.mark.parametrize(
    ("variable", "excepted", "led"),
    [
        ("no_proxy", ".example.org", ["127.0.0.1:9", ""]),
        ("no_grpc_proxy", "example.com, 192.0.2.1", ["", "127.0.0.1:9"]),
    ],
)
def test_a_proxy_leads_to_no_host_that_the_environment_excepts(monkeypatch, variable, excepted, led):
    for name, value in {"no_proxy": "", "no_grpc_proxy": "", "http_proxy": "127.0.0.1:9", variable: excepted}.items():
        monkeypatch.setenv(name, value)
    assert [proxy_of(target) for target in ("192.0.2.1:50051", "dns:///a.lab.example.org:1")] == led

"""Ways to reach a Redis: addresses, passwords, TLS, Sentinel. No password is ever shown."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from aeenc import errors
from services.launcher.private_redis import PrivateRedis, start_private_redis
from services.sampler.settings import SamplerSettings
from services.store.redis import address, connect, unavailable_if_down
from support.certificates import certify, needs_openssl
from support.relay import Relay
from support.servers.replicated_redis import ReplicatedRedis


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[PrivateRedis]:
    """A private Redis with a user."""
    made = start_private_redis(tmp_path / "redis")
    redis = connect(made.url)
    await redis.execute_command("ACL", "SETUSER", "aeenc", "on", ">first", "~*", "+@all")
    await redis.aclose()
    yield made
    made.stop()


async def _ping(url: str, **options: object) -> bool:
    redis = connect(url, **options)  # type: ignore[arg-type]
    try:
        async with unavailable_if_down("ping"):
            return bool(await redis.ping())
    finally:
        await redis.aclose()


@pytest.mark.parametrize(
    "url",
    [
        "http://u:secret@host",
        "redis+sentinel://u:secret@host:26379",
        "redis+sentinel://u:secret@/main/0",
        "redis+sentinel://u:secret@host:port/main/0",
        "redis://u:secret@host:port/0",
        "redis://u:secret@host/0?retries=3",
        "redis+sentinel://u:secret@host/main/0?retries=3",
    ],
)
def test_a_wrong_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="Redis URL '") as refused:
        connect(url)
    assert "secret" not in refused.value.message


async def test_a_database_that_the_server_does_not_have_is_named(server: PrivateRedis) -> None:
    with pytest.raises(errors.Unavailable, match="DB index is out of range; correct the number at the end of REDIS"):
        await _ping(f"{server.url}?db=99")


def test_addresses_are_shown_without_user_password_and_options() -> None:
    assert address("rediss://u:p%40@h:1/0?password=p") == "rediss://h:1/0"
    assert address("unix://u:p@/run/redis.sock?db=1") == "unix:///run/redis.sock"
    assert address("redis+sentinel://:p@h:1,g:2/main/0") == "redis+sentinel://h:1,g:2/main/0"


def test_passwords_are_not_shown_with_the_settings_and_only_one_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hidden")
    settings = SamplerSettings(redis_password=SecretStr("hidden"), redis_sentinel_password=SecretStr("hidden"))
    assert "hidden" not in repr(settings)
    assert settings.redis()["password"] == settings.redis()["sentinel_password"] == "hidden"
    with pytest.raises(ValueError, match="exclude each other") as refused:
        SamplerSettings(redis_password=SecretStr("hidden"), redis_password_file=file)
    assert "hidden" not in str(refused.value)
    with pytest.raises(ValueError, match="belong together"):
        SamplerSettings(redis_cert=file)


async def test_a_password_in_a_file_may_change_while_connections_are_made(server: PrivateRedis, tmp_path: Path) -> None:
    url, file = server.url.replace("://", "://aeenc@"), tmp_path / "password"
    file.write_text("first\n")
    redis = connect(url, password_file=file)
    assert await redis.ping()
    admin = connect(server.url)
    await admin.execute_command("ACL", "SETUSER", "aeenc", ">second", "<first")
    await redis.connection_pool.disconnect()
    with pytest.raises(errors.Unavailable, match="REDIS_PASSWORD_FILE") as refused:
        async with unavailable_if_down("ping"):
            await redis.ping()
    assert "first" not in refused.value.message
    file.write_text("second")
    assert await redis.ping()
    file.write_bytes(b"\xff")
    await redis.connection_pool.disconnect()
    with pytest.raises(errors.Unavailable, match="password cannot be read \\(not UTF-8\\)"):
        async with unavailable_if_down("ping"):
            await redis.ping()
    file.unlink()
    with pytest.raises(errors.Unavailable, match="password cannot be read \\(No such file"):
        async with unavailable_if_down("ping"):
            await redis.ping()
    await redis.aclose()
    await admin.aclose()


@needs_openssl
async def test_by_tls_both_sides_show_the_certificates_that_the_other_expects(
    server: PrivateRedis, tmp_path: Path
) -> None:
    cert, key = certify(tmp_path, "server")
    own, own_key = certify(tmp_path, "client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(own)
    async with Relay(server.url.removeprefix("unix://"), tls=context) as relay:
        url = f"rediss://aeenc@localhost:{relay.port}/0"
        own_side = {"password": "first", "cert": own, "key": own_key}
        assert await _ping(url, ca=cert, **own_side)
        for wrong in ({"ca": own, **own_side}, {"ca": cert, "password": "first"}, own_side):
            with pytest.raises(errors.Unavailable, match="ping") as refused:
                await _ping(url, **wrong)
            assert "first" not in refused.value.message


async def test_sentinel_names_the_master_and_its_absence(tmp_path: Path) -> None:
    group = ReplicatedRedis(tmp_path, replicas=0, sentinels=1)
    try:
        sentinel, url = group.sentinels[0], f"redis+sentinel://127.0.0.1:1,127.0.0.1:{group.sentinels[0].port}"
        with group.nodes[0].client() as admin, sentinel.client() as asked:
            admin.execute_command("ACL", "SETUSER", "aeenc", "on", ">first", "~*", "+@all")
            asked.execute_command("ACL", "SETUSER", "default", "resetpass", ">guard")
        guarded = {"password": "first", "sentinel_password": "guard"}
        assert await _ping(f"{url.replace('://', '://aeenc@')}/main/0", **guarded)
        with pytest.raises(errors.Unavailable, match="Sentinel knows no master now"):
            await _ping(f"{url}/other/0", sentinel_password="guard")
        with pytest.raises(errors.Unavailable) as refused:
            await _ping(f"{url}/main/0", sentinel_password="wrong-guard")
        assert "guard" not in refused.value.message
    finally:
        group.stop()

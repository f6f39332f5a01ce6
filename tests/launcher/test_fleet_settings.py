"""The settings that a fleet passes to its services."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.launcher.fleet import Fleet, Options
from services.launcher.private_redis import start_private_redis
from services.store.redis import connect
from support.waiting import until

TARGETS = dict.fromkeys(("encoder", "index", "sampler", "trainer"), "127.0.0.1:1")


def test_curves_of_jobs_lie_in_the_home_unless_another_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("AEENC_TRAINER_TENSORBOARD_DIR", raising=False)
    fleet = Fleet(tmp_path)
    told = fleet._settings("trainer", Options(), TARGETS, "redis://127.0.0.1:1/0")
    assert told["tensorboard_dir"] == str(tmp_path.resolve() / "tensorboard")
    for named in ("/elsewhere", ""):
        monkeypatch.setenv("AEENC_TRAINER_TENSORBOARD_DIR", named)
        assert "tensorboard_dir" not in fleet._settings("trainer", Options(), TARGETS, "redis://127.0.0.1:1/0")


def test_named_credentials_go_to_every_service_beside_the_tokens_and_are_kept(tmp_path: Path):
    fleet = Fleet(tmp_path, token="common", admin_token="admin")
    for service in ("encoder", "index", "sampler", "trainer"):
        told = fleet._settings(service, Options(tokens_file="/run/tokens.toml"), TARGETS, "redis://127.0.0.1:1/0")
        assert (told["tokens_file"], told["peer_token"]) == ("/run/tokens.toml", "common")
        assert "tokens_file" not in fleet._settings(service, Options(), TARGETS, "redis://127.0.0.1:1/0")
    fleet._write(Options(tokens_file="/run/tokens.toml"), TARGETS, {}, "")
    assert fleet.options() == Options(tokens_file="/run/tokens.toml")


async def test_the_log_of_a_private_redis_stays_bounded_by_its_data(tmp_path: Path) -> None:
    server = start_private_redis(tmp_path)
    redis = connect(server.url)
    try:
        for _ in range(12):  # a little more than is kept; what comes during the rewriting would stay until the next
            await redis.set("again", "x" * 100_000)
        await until(lambda: sum(path.stat().st_size for path in tmp_path.rglob("*.aof")) < 500_000)
    finally:
        await redis.aclose()
        server.stop()
    assert (tmp_path / "redis.log").stat().st_size < 1000, "every rewrite is told"

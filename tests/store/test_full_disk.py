"""A disk that is full (a file size limit stands for it): callers are told, and nothing acknowledged is lost."""

from __future__ import annotations

import resource
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aeenc import errors
from services.launcher.private_redis import find_redis_server, start_private_redis
from services.store.redis import connect
from services.store.registry import CheckpointRow, Registry

LIMIT_BYTES = 64 * 1024


def row(number: int) -> CheckpointRow:
    return CheckpointRow(f"q{number}", "s", False, "", "j" * 200, 0.0, "m" * 64, datetime.now(UTC), 1, 32)


async def test_redis_on_a_full_disk_answers_unavailable_and_keeps_what_it_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    popen = subprocess.Popen

    def limited(*arguments: object, **options: object) -> object:
        options["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))
        return popen(*arguments, **options)  # type: ignore[call-overload]

    assert find_redis_server()
    with monkeypatch.context() as patch:
        patch.setattr("services.launcher.private_redis.subprocess.Popen", limited)
        full = start_private_redis(tmp_path)
    redis = connect(full.url)
    registry, acknowledged = Registry(redis, "n"), []
    reason = ""
    for number in range(2000):
        try:
            await registry.checkpoints.add(row(number))
        except errors.Unavailable as error:
            reason = error.message
            break
        acknowledged.append(f"q{number}")
    await redis.aclose()
    full.stop()
    assert len(acknowledged) > 50
    assert "cannot reach the registry" in reason
    assert "disk not full" in reason

    free = start_private_redis(tmp_path)
    redis = connect(free.url)
    found = {checkpoint.version for checkpoint in await Registry(redis, "n").checkpoints.all()}
    await redis.aclose()
    free.stop()
    assert set(acknowledged) <= found

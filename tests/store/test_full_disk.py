"""A disk that is full (a file size limit stands for it): callers are told, and nothing acknowledged is lost."""

from __future__ import annotations

import resource
from datetime import UTC, datetime
from pathlib import Path

from aeenc import errors
from services.launcher.private_redis import start_private_redis
from services.store.redis import connect
from services.store.registry import CheckpointRow, Registry

LIMIT_BYTES = 64 * 1024


def row(number: int) -> CheckpointRow:
    return CheckpointRow(f"q{number}", "s", False, "", "j" * 200, 0.0, "m" * 64, datetime.now(UTC), 1, 32)


async def test_redis_on_a_full_disk_answers_unavailable_and_keeps_what_it_acknowledged(tmp_path: Path):
    full = start_private_redis(tmp_path)
    resource.prlimit(full.process.pid, resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))
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
    full.process.kill()  # asked to end, it would stay: it cannot write what it has
    full.process.wait()
    assert len(acknowledged) > 50
    assert "cannot reach the registry" in reason
    assert "disk not full" in reason

    free = start_private_redis(tmp_path)
    redis = connect(free.url)
    found = {checkpoint.version for checkpoint in await Registry(redis, "n").checkpoints.all()}
    await redis.aclose()
    free.stop()
    assert set(acknowledged) <= found

"""Backups of a fleet that runs, people answer, jobs train and publications replace: nothing acknowledged is missing."""

from __future__ import annotations

import pytest

from benchmarks.fleet.backups import measured

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]


async def test_what_was_acknowledged_before_a_backup_under_load_is_there_after_its_restore_elsewhere():
    told = await measured(rounds=2)
    for one in told:
        assert one.acknowledged > 20
        assert (one.missing, one.dangling, one.visible, one.failed, one.stopped) == ([], [], [], [], [])
    assert sum(one.kills for one in told) >= 1

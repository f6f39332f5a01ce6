"""The key that signs sessions: made whole or not at all, by one of several processes, and refused where it is not."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from aeenc_workbench.settings import WorkbenchSettings
from aeenc_workbench.sign_in import Links, Person
from pydantic import ValidationError

from aeenc.errors import FailedPrecondition

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("content", [b"", b"  \n", b"short", b"\xff" * 64])
def test_a_file_without_a_whole_key_is_refused_by_its_path(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(FailedPrecondition, match=r"key holds no whole key; remove it"):
        Links(tmp_path)


def test_a_key_that_could_not_be_written_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            Links(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert len(Links(tmp_path).key) >= 32


def test_several_processes_that_start_at_once_have_one_key_that_its_owner_alone_reads(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: Links(tmp_path).key, range(32)))
    assert len(keys) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert Links(tmp_path).use(Links(tmp_path).make(Person("ann"))) == Person("ann")


def test_blank_secrets_stop_the_start(tmp_path: Path) -> None:
    for token in (" ", "se cret"):
        with pytest.raises(ValidationError, match="is blank"):
            WorkbenchSettings(token=token)
    (tmp_path / "secret").write_text("\n")
    settings = WorkbenchSettings(
        oidc_issuer="https://id.example",
        oidc_client_id="workbench",
        oidc_client_secret_file=tmp_path / "secret",
        url="https://workbench.example",
    )
    with pytest.raises(FailedPrecondition, match="secret is empty"):
        _ = settings.provider

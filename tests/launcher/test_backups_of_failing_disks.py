"""Backups where a disk fails: what cannot be read is named and all else saved; what cannot be written is none."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import pytest

from aeenc import errors
from services.corpus.active import MOVES, read_active
from services.corpus.generation import folder_of
from services.launcher.backups import archive, making, restoring
from services.launcher.backups.archive import MANIFEST
from services.launcher.backups.keys import put
from services.launcher.backups.restoring import restore
from services.launcher.fleet import RESTORING
from services.store.artifacts import ArtifactStore, Hold
from support.torn_disk import TornDisk, full_disk
from support.waiting import until
from support.worlds.backup_world import CORPUS, Deployment, here, names, opened, other_redis_url, there

__all__ = ["here", "other_redis_url", "there"]

LARGE = "x" * 3 * 1024 * 1024


async def test_what_lacks_files_already_is_named_and_all_else_is_saved(here: Deployment, tmp_path: Path):
    lost, kept = await here.register("lost"), await here.register("kept")
    generation = here.activate("premises")
    shutil.rmtree(here.store.path("checkpoints", lost.id))
    (here.store.path(folder_of(CORPUS), generation) / "vectors.npy").write_text("tampered")
    made = await here.back_up(tmp_path / "backup.tar")
    assert made.damaged == (
        f"checkpoints/{lost.id} has no files, though checkpoint {lost.id} is registered",
        f"{folder_of(CORPUS)}/{generation}/vectors.npy does not have the sha256 recorded for it",
    )
    assert f"artifacts/checkpoints/{kept.id}/{MANIFEST}" in opened(tmp_path / "backup.tar").files


async def test_a_manifest_that_is_not_the_registered_one_is_named_and_all_else_comes_back(
    here: Deployment, there: Deployment, tmp_path: Path
):
    made, generation = await here.register("one"), here.activate("premises")
    manifest = here.store.path("checkpoints", made.id) / MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "created_at": "2020-01-01T00:00:00+00:00"}))
    backup = await here.back_up(tmp_path / "backup.tar")
    assert backup.damaged == (f"checkpoints/{made.id}/{MANIFEST} does not have the sha256 recorded for it",)
    await restore(there.redis, there.store, opened(tmp_path / "backup.tar"))
    assert read_active(there.store, CORPUS) == generation


@pytest.mark.parametrize("record", [".explanations/000000000002-a.json", f"{MOVES}/000000000042.json"])
async def test_a_record_of_a_corpus_that_cannot_be_read_is_named_and_all_else_is_saved(
    here: Deployment, tmp_path: Path, record: str
):
    here.activate("premises")
    unreadable = here.store.root / folder_of(CORPUS) / record
    unreadable.parent.mkdir(exist_ok=True)
    unreadable.symlink_to(unreadable)
    made = await here.back_up(tmp_path / "backup.tar")
    assert made.damaged[0] == f"{folder_of(CORPUS)}/{record} cannot be read ({os.strerror(errno.ELOOP)})"
    assert made.damaged[1:] == (
        (f"corpus {CORPUS}: its records cannot be read ({os.strerror(errno.ELOOP)})",) if MOVES in record else ()
    )
    assert f"artifacts/{folder_of(CORPUS)}/{MOVES}/000000000001.json" in opened(tmp_path / "backup.tar").files


class Source(io.FileIO):
    """A file whose disk is slow or breaks: `at_read` gets the place of each read first."""

    at_read: Callable[[int], None]

    def read(self, size: int | None = -1, /) -> bytes:
        self.at_read(self.tell())
        return super().read(size) or b""


def replace_source(patch: pytest.MonkeyPatch, name: str, at_read: Callable[[int], None]) -> None:
    """Makes a file of the store such a source."""
    open_held, open_path = Hold.open, Path.open

    def source(file: IO[bytes]) -> Source:
        with file:
            made = Source(os.dup(file.fileno()))
        made.at_read = at_read
        return made

    def held(hold: Hold, of: str) -> IO[bytes]:
        file = open_held(hold, of)
        return cast("IO[bytes]", source(file)) if str(hold._manifest.with_name(of)).endswith(f"/{name}") else file

    def any_path(path: Path, *arguments: Any, **options: Any) -> Any:
        file = open_path(path, *arguments, **options)
        return source(file) if str(path).endswith(f"here/{name}") else file

    patch.setattr(Hold, "open", held)
    patch.setattr(Path, "open", any_path)


def breaking_at(place: int) -> Callable[[int], None]:
    def at_read(now: int) -> None:
        if now >= place:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    return at_read


@pytest.mark.parametrize(("broken", "place"), [("vectors.npy", 1), (MANIFEST, 0)])
async def test_a_file_that_breaks_in_the_middle_is_named_and_all_else_comes_back(
    here: Deployment, there: Deployment, tmp_path: Path, broken: str, place: int
):
    checkpoint, generation = await here.register(LARGE), here.activate("premises")
    with pytest.MonkeyPatch.context() as patch:
        replace_source(patch, f"checkpoints/{checkpoint.id}/{broken}", breaking_at(place))
        made = await here.back_up(tmp_path / "backup.tar")
    assert made.damaged == (f"checkpoints/{checkpoint.id}/{broken} cannot be read (Input/output error)",)
    backup = opened(tmp_path / "backup.tar")
    assert f"artifacts/checkpoints/{checkpoint.id}/{broken}" not in backup.files
    await restore(there.redis, there.store, backup)
    assert read_active(there.store, CORPUS) == generation
    assert there.store.open(folder_of(CORPUS), generation)
    assert [row.version for row in await there.registry.checkpoints.all()] == [checkpoint.id]


async def test_a_journal_that_breaks_in_the_middle_is_named(here: Deployment, tmp_path: Path):
    journal = here.store.root / folder_of(CORPUS) / ".builds/0123" / "premises.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text(LARGE)
    with pytest.MonkeyPatch.context() as patch:
        replace_source(patch, f"{folder_of(CORPUS)}/.builds/0123/premises.jsonl", breaking_at(1))
        made = await here.back_up(tmp_path / "backup.tar")
    [said] = made.damaged
    assert said.endswith(".builds/0123/premises.jsonl cannot be read (Input/output error)")
    assert set(opened(tmp_path / "backup.tar").files) == {making.KEYS}


async def test_a_backup_without_room_is_none_and_blames_no_source(here: Deployment, tmp_path: Path):
    await here.register(LARGE)
    said = r"backup.tar cannot be written \(File too large\); make room"
    with full_disk(len(LARGE) // 2), pytest.raises(errors.FailedPrecondition, match=said):
        await here.back_up(tmp_path / "backup.tar")
    assert names(tmp_path) == ["here"]


@pytest.mark.parametrize("name", ["file/backup", "x" * 255])
async def test_a_place_that_cannot_be_written_to_is_named(here: Deployment, tmp_path: Path, name: str):
    (tmp_path / "file").touch()
    with pytest.raises(errors.FailedPrecondition, match=rf"{name} cannot be written \(.*; .*name another place"):
        await here.back_up(tmp_path / name)
    assert names(tmp_path) == ["file"]


async def test_a_disk_without_room_for_a_name_is_named(
    here: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    own = Path.open

    def full(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == ".backup.tar.unfinished":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return own(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(errors.FailedPrecondition, match=r"backup.tar cannot be written \(No space left"):
        await here.back_up(tmp_path / "backup.tar")
    assert names(tmp_path) == []


async def test_a_cancelled_backup_copies_nothing_more_and_leaves_nothing(
    here: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made, reads = await here.register(LARGE), list[int]()

    def slowly(place: int) -> None:
        reads.append(place)
        time.sleep(0.02)

    replace_source(monkeypatch, f"checkpoints/{made.id}/vectors.npy", slowly)
    monkeypatch.setattr(archive, "BLOCK_BYTES", 16 * 1024)
    working = asyncio.create_task(here.back_up(tmp_path / "backup.tar"))
    await until(lambda: len(reads) > 2)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    read = len(reads)
    await asyncio.sleep(0.2)
    assert len(reads) == read < len(LARGE) // (16 * 1024) // 2
    assert names(tmp_path) == ["here"]


async def test_a_power_cut_at_any_moment_of_a_restore_loses_nothing_and_starts_nothing_half(
    here: Deployment, there: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def put_and_promise(*arguments: Any) -> int:
        stored = await put(*arguments)
        disk.promise("keys")
        return stored

    new, old = await here.register("new"), await there.register("old")
    await here.back_up(tmp_path / "backup.tar")
    monkeypatch.setattr(restoring, "put", put_and_promise)
    with TornDisk(there.store.root) as disk:
        await restore(there.redis, there.store, opened(tmp_path / "backup.tar"), force=True)
        disk.promise("restored")
    for number, state in enumerate(disk.states()):
        state.lay_out(root := tmp_path / f"state{number}")
        aside = [one / "checkpoints" for one in root.glob(".before-restore-*")]
        known = [one.name for place in (root / "checkpoints", *aside) for one in place.glob(f"{old.id}*")]
        assert known == [old.id], "what stood there is lost"
        if (root / RESTORING).exists():
            assert "restored" not in state.promises, "`aeenc up` refuses what was restored"
        else:
            wanted = new if "keys" in state.promises else old
            assert ArtifactStore(root).open("checkpoints", wanted.id), "`aeenc up` would start without its files"

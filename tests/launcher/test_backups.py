"""Backups: what was acknowledged comes back, and what is damaged, newer or in the way is named."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
from redis.asyncio import Redis
from typer.testing import CliRunner

from aeenc import errors
from aeenc.cli.main import app
from services.corpus.active import latest_move, note_change, read_active
from services.corpus.generation import folder_of
from services.corpus.moves import MoveRequest
from services.launcher.backups import archive, making, store_files
from services.launcher.backups.archive import MANIFEST, Backup
from services.launcher.backups.keys import Key, pattern, put
from services.launcher.backups.restoring import check, restore
from services.launcher.fleet import RESTORING, Fleet, Options
from services.store.artifacts import ArtifactStore
from services.store.files import try_lock
from services.store.formats import NewerFormat
from support.worlds.backup_world import CORPUS, Deployment, here, names, opened, other_redis_url, there

__all__ = ["here", "other_redis_url", "there"]

SECRET = "a-token-that-nobody-may-see"


async def test_what_is_backed_up_comes_back_elsewhere(here: Deployment, there: Deployment, tmp_path: Path):
    checkpoint, generation = await here.register("one"), here.activate("premises")
    explanations = here.store.root / folder_of(CORPUS) / ".explanations/000000000002-a.json"
    explanations.parent.mkdir()
    explanations.write_text("{}")
    prefix = f"aeenc:{here.namespace}:1:"
    await here.redis.hset(f"{prefix}hash", mapping={"a": "é", "b": "2"})
    await here.redis.zadd(f"{prefix}sorted", {"a": 0.1, "b": 1e300})
    await here.redis.xadd(f"{prefix}stream", {"n": "1"}, id="7-0")
    await here.redis.set(f"{prefix}lease", "owner", px=60_000)
    for content in ("damaged", "7", "[]", "{}"):
        await here.redis.set(f"{prefix}checkpoint:{content}", content)
    await here.redis.set("others:key", SECRET)
    made = await here.back_up(tmp_path / "backup.tar")
    assert (made.keys, made.artifacts, made.corpora, made.damaged) == (11, 2, 1, ())
    restored = await restore(there.redis, there.store, opened(tmp_path / "backup.tar"))
    assert (restored.keys, restored.artifacts) == (11, 2)
    assert await there.keys() == await here.keys()
    assert await there.redis.hgetall(f"{prefix}hash") == {"a": "é", "b": "2"}
    assert await there.redis.zrange(f"{prefix}sorted", 0, -1, withscores=True) == [("a", 0.1), ("b", 1e300)]
    assert await there.redis.xrange(f"{prefix}stream") == [("7-0", {"n": "1"})]
    assert 0 < await there.redis.pttl(f"{prefix}lease") <= 60_000
    row = await there.registry.checkpoints.get(checkpoint.id)
    assert there.store.open("checkpoints", checkpoint.id, expected_manifest_sha256=row.manifest_sha256)
    assert read_active(there.store, CORPUS) == generation
    assert there.store.open(folder_of(CORPUS), generation)
    assert (there.store.root / folder_of(CORPUS) / ".explanations/000000000002-a.json").read_text() == "{}"
    assert not (there.store.root / RESTORING).exists()
    assert await there.redis.get("others:key") is None


async def test_a_registered_checkpoint_without_files_is_named_whatever_its_row_has(here: Deployment, tmp_path: Path):
    whole, damaged = await here.register("one"), await here.register("two")
    key = f"aeenc:{here.namespace}:1:checkpoint:{damaged.id}"
    row = json.loads(await here.redis.get(key))
    del row["manifest_sha256"]
    await here.redis.set(key, json.dumps(row))
    for one in (whole, damaged):
        shutil.rmtree(one.path)
    made = await here.back_up(tmp_path / "backup.tar")
    named = (f"checkpoints/{one} has no files, though checkpoint {one} is registered" for one in (whole.id, damaged.id))
    assert sorted(made.damaged) == sorted(named)
    check(opened(tmp_path / "backup.tar"))


async def test_a_lease_that_has_run_out_is_free_after_the_restore(here: Deployment, there: Deployment, tmp_path: Path):
    key = f"aeenc:{here.namespace}:1:run:r:lease"
    await here.redis.set(key, "owner", px=1)
    dump = Key(key, await here.redis.execute_command("DUMP", key, NEVER_DECODE=[]) or b"", 1)
    await here.redis.set(key, "owner")
    dump = Key(key, await here.redis.execute_command("DUMP", key, NEVER_DECODE=[]), 1)
    await put(there.redis, [dump], pattern(there.namespace))
    assert await there.redis.get(key) is None


async def test_what_is_deleted_while_it_is_copied_is_in_the_backup(
    here: Deployment, there: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    checkpoint, generation = await here.register("one"), here.activate("premises")
    copy_builds = making.copy_builds

    def delete_all(*arguments: Any) -> list[str]:
        here.store.delete("checkpoints", checkpoint.id)
        here.store.delete(folder_of(CORPUS), generation)
        here.store.sweep("checkpoints")
        return copy_builds(*arguments)

    monkeypatch.setattr(making, "copy_builds", delete_all)
    made = await here.back_up(tmp_path / "backup.tar")
    assert made.damaged == ()
    await restore(there.redis, there.store, opened(tmp_path / "backup.tar"))
    assert there.store.open("checkpoints", checkpoint.id)
    assert there.store.open(folder_of(CORPUS), read_active(there.store, CORPUS))
    assert not here.store.list("checkpoints")
    here.store.sweep("checkpoints")
    assert not here.store.has_deleted("checkpoints")  # nothing is held any more


async def test_what_is_made_and_removed_between_two_looks_makes_it_look_again(
    here: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The registry's row is in the first snapshot, its files are gone before anybody holds them."""
    capture, seen = making.capture, []

    async def racing(redis: Redis, keys: str) -> making.Captured:
        made = await here.register("short-lived") if not seen else None
        found = await capture(redis, keys)
        if made:
            await here.registry.checkpoints.bury(made.id)
            here.store.delete("checkpoints", made.id)
        seen.append(len(found.checkpoints))
        return found

    monkeypatch.setattr(making, "capture", racing)
    made = await here.back_up(tmp_path / "backup.tar")
    assert seen == [1, 0]
    assert made.damaged == ()


async def test_keys_and_moves_are_of_one_moment(here: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A tandem is published in Redis first, then in the corpus: a backup must not have the second without the first."""
    here.activate("first")
    capture, seen = making.capture, []

    async def racing(redis: Redis, keys: str) -> making.Captured:
        found = await capture(redis, keys)
        if not seen:
            await here.redis.set(f"aeenc:{here.namespace}:1:published", "second")
            seen.append(here.activate("second"))
        return found

    monkeypatch.setattr(making, "capture", racing)
    made = await here.back_up(tmp_path / "backup.tar")
    assert opened(tmp_path / "backup.tar").manifest["corpora"] == {CORPUS: seen[0]}
    assert made.keys == 1


async def test_a_backup_of_corpora_that_move_all_the_time_is_none(
    here: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    here.activate("first")
    capture, moves = making.capture, iter(range(100))

    async def racing(redis: Redis, keys: str) -> making.Captured:
        here.activate(f"again {next(moves)}")
        return await capture(redis, keys)

    monkeypatch.setattr(making, "capture", racing)
    monkeypatch.setattr(making, "ATTEMPTS", 3)
    with pytest.raises(errors.Unavailable, match="have moved 3 times"):
        await here.back_up(tmp_path / "backup.tar")
    assert not (tmp_path / "backup.tar").exists()


async def test_explanations_that_are_put_all_the_time_are_in_a_backup_as_the_last_move_names_them(
    here: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Redis knows nothing of them, so nobody waits until nobody puts any."""
    generation, puts = here.activate("premises"), iter(range(100))

    def explain() -> None:
        name = f"{next(puts):012}-a.json"
        here.store.documents.write(f"{folder_of(CORPUS)}/.explanations/{name}", b"{}")
        before = latest_move(here.store, CORPUS).explanations
        note_change(here.store, CORPUS, MoveRequest("explain"), lambda last: replace(last, explanations=name))
        if before:
            here.store.documents.remove(f"{folder_of(CORPUS)}/.explanations/{before}")

    capture, small_files, seen = making.capture, store_files._small_files, []

    async def racing(redis: Redis, keys: str) -> making.Captured:
        explain()
        return await capture(redis, keys)

    def replaced(folder: Path) -> Iterator[Path]:
        found = list(small_files(folder))
        yield from (path for path in found if path.parent.name == ".moves")
        if not seen:  # what the last record names goes before it is read
            seen.append(folder)
            explain()
        yield from (path for path in found if path.parent.name != ".moves")

    monkeypatch.setattr(making, "capture", racing)
    monkeypatch.setattr(store_files, "_small_files", replaced)
    explain()
    made = await here.back_up(tmp_path / "backup.tar")
    backup = opened(tmp_path / "backup.tar")
    names = [name.rpartition("/")[2] for name in backup.manifest["files"] if ".explanations" in name]
    moves = sorted(name for name in backup.manifest["files"] if ".moves" in name)
    assert (made.damaged, backup.manifest["corpora"]) == ((), {CORPUS: generation})
    assert json.loads(backup.read(moves[-1]))["explanations"] in names


def test_a_redis_with_a_password_is_backed_up_with_what_services_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: dict[str, Any] = {}

    def connect(url: str, **options: Any) -> None:
        asked.update(options, url=url)
        raise errors.Unavailable("seen")

    monkeypatch.setattr("services.store.redis.connect", connect)
    (tmp_path / "password").write_text(SECRET)
    monkeypatch.setenv("AEENC_REDIS_PASSWORD_FILE", str(tmp_path / "password"))
    monkeypatch.setenv("AEENC_REDIS_REPLICAS", "1")
    aeenc("backup", tmp_path / "backup.tar", "--redis", "redis://db", "--artifacts", tmp_path)
    assert (asked["url"], asked["password_file"], asked["replicas"]) == ("redis://db", tmp_path / "password", 1)


def test_settings_of_a_redis_that_exclude_each_other_are_refused_without_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "password").write_text(SECRET)
    monkeypatch.setenv("AEENC_REDIS_PASSWORD_FILE", str(tmp_path / "password"))
    monkeypatch.setenv("AEENC_REDIS_PASSWORD", SECRET)
    monkeypatch.setenv("AEENC_TOKEN", SECRET)
    ended = aeenc("backup", tmp_path / "backup.tar", "--redis", "redis://db", "--artifacts", tmp_path)
    assert ended.exit_code == 2
    assert "exclude each other" in ended.output
    assert SECRET not in ended.output


async def test_an_unfinished_build_comes_back_as_far_as_it_said(here: Deployment, there: Deployment, tmp_path: Path):
    build = here.store.root / folder_of(CORPUS) / ".builds/0123"
    (build / "generation").mkdir(parents=True)
    for name in ("premises.jsonl", "progress.json", "lock", "generation/vectors.npy", ".progress.json.abc"):
        (build / name).write_text(name)
    await here.back_up(tmp_path / "backup.tar")
    backup = opened(tmp_path / "backup.tar")
    copied = [name.rpartition("/.builds/0123/")[2] for name in backup.files if ".builds/" in name]
    assert copied[0] == "progress.json"  # what it counts is in the files that are copied after it
    assert sorted(copied) == ["generation/vectors.npy", "lock", "premises.jsonl", "progress.json"]
    await restore(there.redis, there.store, backup)
    restored = there.store.root / folder_of(CORPUS) / ".builds/0123" / "generation" / "vectors.npy"
    assert restored.read_text() == "generation/vectors.npy"


async def test_a_backup_that_breaks_off_is_none(here: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    await here.register("one")
    left = tmp_path / ".backup.tar.unfinished"
    left.write_text("left by a killed one")
    with monkeypatch.context() as patch:
        patch.setattr(making, "copy_builds", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await here.back_up(tmp_path / "backup.tar")
    assert not (tmp_path / "backup.tar").exists()
    assert not left.exists()
    left.write_text("left by a killed one")
    await here.back_up(tmp_path / "backup.tar")
    opened(tmp_path / "backup.tar")
    assert (tmp_path / "backup.tar").stat().st_size % tarfile.RECORDSIZE == 0, "it ends as every tar does"


async def test_a_second_backup_takes_neither_the_place_of_a_first_nor_its_turn(here: Deployment, tmp_path: Path):
    both = await asyncio.gather(*(here.back_up(tmp_path / "backup.tar") for _ in range(2)), return_exceptions=True)
    assert sorted(type(one).__name__ for one in both) == ["FailedPrecondition", "Made"]
    with pytest.raises(errors.AlreadyExists, match="exists; name a new file"):
        await here.back_up(tmp_path / "backup.tar")
    assert names(tmp_path) == ["backup.tar"], "nor does it leave anything"


async def test_every_damaged_file_is_named(here: Deployment, tmp_path: Path):
    await here.register("one")
    here.activate("premises")
    await here.back_up(tmp_path / "backup.tar")
    with tarfile.open(tmp_path / "backup.tar") as tar:
        members = [member for member in tar.getmembers() if member.isfile()]
    places = {Path(one.name): one.offset_data + one.size // 2 for one in members}
    assert len(places) == 7, sorted(places)
    target = tmp_path / "backup.tar"
    for path, offset in places.items():
        whole = target.read_bytes()
        target.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        with pytest.raises(errors.DataLoss, match=path.name):
            opened(tmp_path / "backup.tar")
        target.write_bytes(whole)
    os.truncate(target, 4096)
    with pytest.raises((errors.DataLoss, errors.NotFound), match=str(tmp_path / "backup.tar")):
        opened(tmp_path / "backup.tar")


@pytest.mark.parametrize("has_third", [False, True], ids=["two", "three"])
def test_a_backup_whose_lock_another_one_has_just_removed_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_third: bool
):
    def of_one_that_has_ended(file: IO[Any]) -> bool:
        Path(file.name).unlink()
        if has_third:
            Path(file.name).touch()
        return try_lock(file)

    monkeypatch.setattr(archive, "try_lock", of_one_that_has_ended)
    with pytest.raises(errors.FailedPrecondition, match="another backup"), archive.new_backup(tmp_path / "a.tar"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".a.tar.unfinished"] * has_third


def test_newer_and_unfinished_backups_are_refused_by_name(tmp_path: Path):
    newer, unfinished = tmp_path / "newer.tar", tmp_path / "unfinished.tar"
    with tarfile.open(newer, "w") as tar:
        record = json.dumps({"format_version": 2}).encode()
        info = tarfile.TarInfo(MANIFEST)
        info.size = len(record)
        tar.addfile(info, io.BytesIO(record))
    with pytest.raises(NewerFormat, match=r"manifest\.json has format_version 2"):
        Backup(newer)
    tarfile.open(unfinished, "w").close()
    with pytest.raises(errors.NotFound, match="is not a backup"):
        Backup(unfinished)
    with pytest.raises(errors.DataLoss, match=r"is not a whole \.tar"):
        Backup(tmp_path)


async def test_a_place_that_is_not_empty_is_named_and_kept(here: Deployment, there: Deployment, tmp_path: Path):
    new, old = await here.register("new"), await there.register("old")
    await here.back_up(tmp_path / "backup.tar")
    backup = opened(tmp_path / "backup.tar")
    keys = await there.keys()
    with pytest.raises(errors.FailedPrecondition, match=rf"keys aeenc.*checkpoints has {old.id}.*--force") as caught:
        await restore(there.redis, there.store, backup)
    assert f"{len(keys)} keys" in caught.value.message
    assert await there.keys() == keys
    assert there.store.list("checkpoints") == [old.id]
    restored = await restore(there.redis, there.store, backup, force=True)
    assert there.store.list("checkpoints") == [new.id]
    assert [row.version for row in await there.registry.checkpoints.all()] == [new.id]
    assert ArtifactStore(Path(restored.set_aside)).open("checkpoints", old.id)


async def test_keys_that_this_redis_cannot_read_leave_the_old_ones(there: Deployment):
    await there.register("old")
    keys = await there.keys()
    with pytest.raises(errors.FailedPrecondition, match="a later one"):
        await put(
            there.redis, [Key(f"aeenc:{there.namespace}:1:a", b"\0\1x\xff\x00" + b"\0" * 8)], pattern(there.namespace)
        )
    assert await there.keys() == keys


def aeenc(*words: object):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_home_goes_into_another_home_without_its_secrets(tmp_path: Path):
    home = tmp_path / "home"
    fleet = Fleet(home)
    with fleet.locked():
        fleet._write(Options(tokens_file=SECRET, oracle_credentials=SECRET), {}, {}, "")
    (home / "state" / "trainer").mkdir(parents=True)
    (home / "state" / "trainer" / "token").write_text(SECRET)
    ArtifactStore(home / "artifacts")
    done = aeenc("--json", "backup", tmp_path / "backup.tar", "--home", home)
    assert done.exit_code == 0, done.output
    assert SECRET.encode() not in (tmp_path / "backup.tar").read_bytes()
    checked = json.loads(aeenc("--json", "restore", tmp_path / "backup.tar", "--check").stdout)
    assert (checked["sound"], checked["size_bytes"]) == (True, json.loads(done.stdout)["size_bytes"])
    done = aeenc("--json", "restore", tmp_path / "backup.tar", "--home", tmp_path / "other")
    assert done.exit_code == 0, done.output
    (tmp_path / "other" / "artifacts" / RESTORING).mkdir()
    with pytest.raises(errors.FailedPrecondition, match="broke off; run it again with --force"):
        Fleet(tmp_path / "other").up(Options(base_port=0))


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["backup", "new", "--redis", "redis://127.0.0.1:1"], 2, "give both"),
        (["backup", "new", "--home", "nothing-here"], 2, "is no home"),
        (["restore", "nothing-here"], 2, "there is no nothing-here"),
        (["backup", "new", "--redis", "redis://127.0.0.1:1", "--artifacts", "a"], 3, "is it running"),
    ],
)
def test_wrong_use_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, says: str):
    monkeypatch.chdir(tmp_path)
    done = aeenc(*words)
    assert done.exit_code == code, done.output
    assert says in done.output
    assert not (tmp_path / "new").exists()

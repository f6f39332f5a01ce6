"""Artifacts in an object store: visible once whole, fetched once, never taken over damaged, served while it is away."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aeenc import errors
from services.corpus.active import read_active, write_active
from services.store import objects
from services.store.artifacts import MANIFEST, Artifact, ArtifactStore
from services.store.objects import Bucket, CachedStore, open_store
from support.torn_disk import full_disk

FOLDER = "checkpoints"


class Away:
    """The file system of an object store that nobody can reach."""

    def __getattr__(self, name: str) -> Any:
        def ask(*_: object, **__: object) -> None:
            raise ConnectionError("connection refused")

        return ask


def cut_off(store: CachedStore) -> None:
    """Lets nobody reach the bucket; a `file://` would be written past fsspec."""
    url = store.bucket.url
    store.documents = store.bucket = Bucket("memory://away")
    store.bucket.url, store.bucket._files = url.replace("file:", "memory:"), Away()


class Counted:
    """The file system of a bucket, which notes each request, and the objects that listings have read.

    As that of an object store it lists by prefix.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._files, self.requests, self.listed = bucket._files, list[str](), list[str]()
        bucket._files = self

    def __getattr__(self, name: str) -> Any:
        def ask(path: str, *arguments: object, prefix: str = "", **options: object) -> Any:
            self.requests.append(name)
            found = getattr(self._files, name)(path, *arguments, **options)
            if name == "find":
                found = {key: info for key, info in found.items() if key.startswith(f"{path}/{prefix}")}
            if name in {"find", "ls"}:
                self.listed.extend(found)
            return found

        return ask


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return tmp_path / "remote"


@pytest.fixture
def host(tmp_path: Path, remote: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the store of another host: a directory of its own, one bucket."""
    monkeypatch.setattr(objects, "BACKOFF_S", 0.001)

    def host(name: str, cache_bytes: int = 0) -> CachedStore:
        return CachedStore(tmp_path / name, Bucket(f"file://{remote}"), cache_bytes)

    return host


def age(folder: Path) -> None:
    """Makes all that lies in a folder years old."""
    for left in folder.rglob("*"):
        os.utime(left, (0, 0))


def commit(store: ArtifactStore, **files: str) -> Artifact:
    with store.writer("checkpoint", FOLDER) as writer:
        for name, text in files.items():
            (writer.path / name).write_text(text)
        return writer.commit({}, id_prefix="q")


def pushed(store: CachedStore, **files: str) -> Artifact:
    return store.push(FOLDER, commit(store, **files).id)


@pytest.mark.parametrize("url", ["nonsense://bucket", "gs://bucket"])
def test_a_url_that_cannot_be_used_is_refused_with_what_to_install(tmp_path: Path, url: str):
    with pytest.raises(errors.InvalidArgument, match=r"aeenc-services\[objects\]") as refused:
        open_store(tmp_path, url)
    assert url in refused.value.message


def test_a_listing_reads_nothing_of_a_build_under_way(host: Any):
    one = host("one")
    written = [pushed(one, a=text).id for text in ("some", "other")]
    for number in range(500):
        one.bucket.write(f"{FOLDER}/.build-x/part-{number:03}", b"1")
    counted = Counted(one.bucket)
    assert one.list(FOLDER) == sorted(written)
    assert one.sweep(FOLDER)
    assert not [key for key in counted.listed if "part-" in key]
    assert len(counted.requests) <= 4


def test_what_is_not_whole_in_the_bucket_does_not_exist_there(host: Any, remote: Path):
    written = pushed(host("one"), a="some", b="more")
    (remote / FOLDER / written.id / MANIFEST).unlink()
    two = host("two")
    assert two.list(FOLDER) == []
    for call in (two.open, two.hold, two.check_exists, two.delete):
        with pytest.raises(errors.NotFound, match=written.id):
            call(FOLDER, written.id)
    assert pushed(host("one"), a="some", b="more") == written, "a push that broke off is done again"
    assert two.list(FOLDER) == [written.id]


def test_one_id_has_one_manifest_wherever_it_was_made(host: Any):
    one, two = host("one"), host("two")
    first = pushed(one, a="some")
    again = commit(two, a="some")
    assert again.manifest_sha256 != first.manifest_sha256, "made at another time"
    assert two.push(FOLDER, again.id).manifest_sha256 == first.manifest_sha256
    assert two.open(FOLDER, again.id, expected_manifest_sha256=first.manifest_sha256)


def test_an_object_that_was_changed_is_named_and_never_taken_over(host: Any, remote: Path):
    written = pushed(host("one"), a="some", b="more")
    (remote / FOLDER / written.id / "b").write_text("mere")
    two = host("two")
    with pytest.raises(errors.DataLoss, match=f"{written.id}/b has 4 bytes"):
        two.open(FOLDER, written.id)
    (remote / FOLDER / written.id / "b").unlink()
    with pytest.raises(errors.DataLoss, match=f"{written.id}/b is missing"):
        two.open(FOLDER, written.id)
    assert not [path for path in (two.root / FOLDER).iterdir() if path.is_dir()]


def test_a_manifest_that_names_a_path_writes_nothing(host: Any, remote: Path, tmp_path: Path):
    written = pushed(host("one"), a="some")
    manifest = remote / FOLDER / written.id / MANIFEST
    manifest.write_text(manifest.read_text().replace('"a"', '"../../a"'))
    with pytest.raises(errors.DataLoss, match="forged"):
        host("two").open(FOLDER, written.id)
    assert not list(tmp_path.glob("two/**/a"))


def test_a_damaged_copy_is_fetched_again(host: Any):
    written = pushed(host("one"), a="some")
    two = host("two")
    copy = two.open(FOLDER, written.id)
    copy.file("a").write_text("gone")
    assert two.open(FOLDER, written.id).file("a").read_text() == "some"


def test_while_the_bucket_is_away_copies_are_opened_leftovers_swept_and_the_rest_is_unavailable(host: Any):
    one = host("one")
    written, other = pushed(one, a="some"), pushed(one, a="other")
    two = host("two")
    two.open(FOLDER, written.id)
    (left := two.root / FOLDER / ".tmp-x").mkdir()
    cut_off(two)
    assert two.sweep(FOLDER)
    assert not left.exists()
    assert two.open(FOLDER, written.id).id == written.id
    assert two.hold(FOLDER, written.id).stands()
    assert two.list(FOLDER) == [written.id]
    with pytest.raises(errors.Unavailable, match=f"{other.id}/{MANIFEST} cannot be reached.*connection refused.*check"):
        two.open(FOLDER, other.id)
    made = commit(two, a="third")
    with pytest.raises(errors.Unavailable):
        two.push(FOLDER, made.id)


def test_a_bucket_that_fails_now_and_then_is_asked_again(host: Any):
    one = host("one")
    files, calls = one.bucket._files, []

    class Shaky:
        def __getattr__(self, name: str) -> Any:
            def ask(*args: object, **kwargs: object) -> Any:
                calls.append(name)
                if len(calls) % 2:
                    raise ConnectionResetError(name)
                return getattr(files, name)(*args, **kwargs)

            return ask

    one.bucket._files = Shaky()
    assert host("two").open(FOLDER, pushed(one, a="some").id)
    assert len(calls) > 3


def test_threads_that_want_one_artifact_fetch_it_once(host: Any, monkeypatch: pytest.MonkeyPatch):
    written = pushed(host("one"), a="some")
    two, fetched = host("two"), []
    download = Bucket.download
    monkeypatch.setattr(Bucket, "download", lambda *args: (fetched.append(args[1]), download(*args))[1])
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: two.open(FOLDER, written.id), range(8)))
    assert {one.id for one in found} == {written.id}
    assert fetched == [f"{FOLDER}/{written.id}/a"]


def test_a_copy_that_another_process_has_just_fetched_is_taken(host: Any, monkeypatch: pytest.MonkeyPatch):
    written, download = pushed(host("one"), a="some"), Bucket.download

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(Bucket, "download", download)
        assert host("two").open(FOLDER, written.id).id == written.id
        download(*arguments)

    monkeypatch.setattr(Bucket, "download", overtaken)
    assert host("two").open(FOLDER, written.id).id == written.id


def test_the_cache_keeps_its_bound_and_what_is_held_or_nowhere_else(host: Any):
    one = host("one")
    held, oldest, newest = (pushed(one, a=name * 10_000) for name in "abc")
    two = host("two", cache_bytes=25_000)
    hold = two.hold(FOLDER, held.id)
    two.open(FOLDER, oldest.id)
    unpushed = commit(two, a="d" * 5_000)
    for age, one_id in enumerate((newest.id, oldest.id, held.id, unpushed.id)):
        if (manifest := two.root / FOLDER / one_id / MANIFEST).exists():
            os.utime(manifest, (1000 - age, 1000 - age))
    two.open(FOLDER, newest.id)
    here = {path.name for path in (two.root / FOLDER).glob("q*")}
    assert here == {held.id, unpushed.id, newest.id}
    assert two.open(FOLDER, oldest.id).id == oldest.id, "what was evicted is fetched again"
    assert hold.stands()


def test_a_copy_that_another_process_evicts_first_makes_room_as_well(host: Any, monkeypatch: pytest.MonkeyPatch):
    two = host("two", cache_bytes=15_000)
    oldest, newest = (pushed(host("one"), a=name * 10_000) for name in "ab")
    two.open(FOLDER, oldest.id)
    monkeypatch.setattr(objects, "_unheld", lambda path: shutil.rmtree(path) is None)
    assert two.open(FOLDER, newest.id)


def test_room_is_made_before_an_artifact_is_fetched(host: Any, monkeypatch: pytest.MonkeyPatch):
    one = host("one")
    oldest, older, newest = (pushed(one, a=name * 10_000) for name in "abc")
    two, there = host("two", cache_bytes=25_000), []
    for age, copy in enumerate((two.open(FOLDER, older.id), two.open(FOLDER, oldest.id))):
        os.utime(copy.path / MANIFEST, (1000 - age, 1000 - age))
    download = Bucket.download

    def noted(*arguments: Any) -> None:
        there.extend(path.name for path in (two.root / FOLDER).glob("q*"))
        download(*arguments)

    monkeypatch.setattr(Bucket, "download", noted)
    assert two.open(FOLDER, newest.id)
    assert there == [older.id]


def test_a_copy_of_what_is_deleted_from_the_bucket_goes_a_day_after_its_last_use(host: Any, remote: Path):
    one, two = host("one"), host("two", cache_bytes=15_000)
    gone, other, third = (pushed(one, a=name * 10_000) for name in "abc")
    copy = two.open(FOLDER, gone.id).path
    one.delete(FOLDER, gone.id)
    assert not list(remote.rglob(f"{gone.id}/a"))
    with pytest.raises(errors.NotFound):
        one.open(FOLDER, gone.id)
    two.open(FOLDER, other.id)
    assert two.open(FOLDER, gone.id).path == copy, "whoever has it may go on"
    age(copy)
    hold = ArtifactStore(two.root).hold(FOLDER, gone.id)
    two.open(FOLDER, third.id)
    assert copy.exists(), "somebody holds it"
    del hold
    two.open(FOLDER, other.id)
    assert not copy.exists()


@pytest.mark.parametrize("durable", [True, False])
def test_who_is_reading_an_object_while_it_is_replaced_reads_the_old_one_to_its_end(
    tmp_path: Path, durable: bool
) -> None:
    bucket = Bucket(f"file://{tmp_path}")
    key = "replicas/one.json"
    bucket.write(key, b"the old content", durable=durable)
    with (tmp_path / key).open("rb", buffering=0) as reader:
        bucket.write(key, b"the new", durable=durable)
        assert reader.read() == b"the old content"
    assert bucket.read(key) == b"the new"
    assert bucket.names("replicas") == ["one.json"], "nothing is left beside it"


def test_a_copy_that_another_process_evicts_as_it_is_asked_for_is_fetched_again(
    host: Any, monkeypatch: pytest.MonkeyPatch
):
    store = host("one")
    made = pushed(store, weights="1")

    def evicted(manifest: Path) -> None:
        shutil.rmtree(manifest.parent)
        raise FileNotFoundError(manifest)

    monkeypatch.setattr(os, "utime", evicted)
    assert store.open(FOLDER, made.id) == made


def test_asking_for_what_nobody_has_leaves_nothing_in_memory(host: Any):
    store = host("one")

    def ask(ids: Iterable[int]) -> None:
        for number in ids:
            with pytest.raises(errors.NotFound):
                store.open(FOLDER, f"q{number}")
        gc.collect()

    tracemalloc.start()
    try:
        ask(range(50))  # makes what is made once
        before, _ = tracemalloc.get_traced_memory()
        ask(range(50, 1050))
        assert tracemalloc.get_traced_memory()[0] - before < 50_000
    finally:
        tracemalloc.stop()


def test_a_full_disk_is_named_as_the_reason_and_not_asked_again(host: Any):
    written, two = pushed(host("one"), a="a" * 100_000), host("two")
    opened, files = [], two.bucket._files
    two.bucket._files = SimpleNamespace(
        cat_file=files.cat_file, open=lambda *args, **options: (opened.append(args), files.open(*args, **options))[1]
    )
    with full_disk(50_000), pytest.raises(errors.Unavailable, match=f"disk of {two.root}.*free space") as full:
        two.open(FOLDER, written.id)
    assert "credentials" not in full.value.message
    assert len(opened) == 1
    assert two.open(FOLDER, written.id).size_bytes == 100_000


def test_a_hold_waits_while_another_process_judges_the_copy(host: Any, monkeypatch: pytest.MonkeyPatch):
    store = host("one")
    artifact = commit(store, a="1")
    judging = (artifact.path / MANIFEST).open("r+b")
    fcntl.flock(judging, fcntl.LOCK_EX | fcntl.LOCK_NB)
    monkeypatch.setattr(objects.time, "sleep", lambda _: judging.close())
    held = store.hold(FOLDER, artifact.id)
    assert held.is_locked
    assert not objects._unheld(artifact.path)


def test_an_upload_that_was_never_finished_is_swept_after_a_day_and_no_record_of_a_corpus(host: Any, remote: Path):
    one = host("one")
    write_active(one, "science", "g1")
    whole, broken = pushed(one, a="some"), pushed(one, a="other")
    (remote / FOLDER / broken.id / MANIFEST).unlink()
    one.sweep(FOLDER)
    assert (remote / FOLDER / broken.id / "a").exists(), "somebody may still be uploading it"
    age(remote)
    for folder in (FOLDER, "generations/science"):
        one.sweep(folder)
    assert not (remote / FOLDER / broken.id / "a").exists()
    assert read_active(host("two"), "science") == "g1"
    assert host("two").open(FOLDER, whole.id)


@pytest.mark.parametrize("step", ["upload", "download"])
def test_a_transfer_that_is_killed_is_invisible_and_done_again(host: Any, tmp_path: Path, remote: Path, step: str):
    one = host("one")
    written = commit(one, a="some", b="more")
    if step == "download":
        one.push(FOLDER, written.id)
    script = f"""
import os, signal, sys
from pathlib import Path
from services.store.objects import Bucket, open_store
done, real = [], Bucket.{step}
def killed(*args):
    if done:
        os.kill(os.getpid(), signal.SIGKILL)
    done.append(real(*args))
Bucket.{step} = killed
store = open_store(Path(sys.argv[1]), sys.argv[2])
store.{"push" if step == "upload" else "open"}({FOLDER!r}, {written.id!r})
"""
    directory = one.root if step == "upload" else tmp_path / "two"
    child = subprocess.run([sys.executable, "-c", script, directory, f"file://{remote}"], check=False)
    assert child.returncode == -signal.SIGKILL
    if step == "upload":
        assert host("three").list(FOLDER) == []
        one.push(FOLDER, written.id)
    else:
        assert not [path for path in (directory / FOLDER).iterdir() if not path.name.startswith(".")]
    two = host("two")
    assert two.open(FOLDER, written.id).file("b").read_text() == "more"
    assert two.sweep(FOLDER)
    assert sorted(path.name for path in (two.root / FOLDER).iterdir() if path.is_dir()) == [written.id]

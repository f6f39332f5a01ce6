"""Immutable directories: a committed one is found whole, an uncommitted one never, a changed one is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aeenc import errors
from services.corpus.active import moving, read_active
from services.store import artifacts
from services.store.artifacts import LOCK, MANIFEST, Artifact, ArtifactStore, read_manifest
from services.store.files import Documents, sync_directory
from support.torn_disk import TornDisk, full_disk

FOLDER = "checkpoints"


def commit(store: ArtifactStore, files: dict[str, str], **meta: object) -> Artifact:
    with store.writer("checkpoint", FOLDER) as writer:
        for name, text in files.items():
            (writer.path / name).write_text(text)
        return writer.commit(meta, id_prefix="q")


def hidden(store: ArtifactStore) -> list[str]:
    return [name for name in names(store.root / FOLDER) if name.startswith(".")]


def names(folder: Path) -> list[str]:
    """What lies in a folder but for its lock."""
    return sorted(entry.name for entry in folder.iterdir() if entry.name != LOCK)


def test_what_was_committed_is_opened_with_its_files_and_meta_and_no_other_manifest(
    artifact_store: ArtifactStore,
) -> None:
    written = commit(artifact_store, {"a": "one", "b": "two"}, dim=32)
    found = artifact_store.open(FOLDER, written.id, expected_manifest_sha256=written.manifest_sha256)
    assert found == written
    assert found.id.startswith("q")
    assert len(found.id) == 17
    assert dict(found.meta) == {"dim": 32}
    assert found.file("b").read_text() == "two"
    assert found.size_bytes == 6
    assert artifact_store.list(FOLDER) == [written.id]
    assert hidden(artifact_store) == []
    with pytest.raises(errors.DataLoss, match="expected 000000000000"):
        artifact_store.open(FOLDER, written.id, expected_manifest_sha256="0" * 64)


def test_the_same_content_gives_the_same_artifact_and_other_meta_another(artifact_store: ArtifactStore) -> None:
    first = commit(artifact_store, {"a": "one"}, dim=32)
    again = commit(artifact_store, {"a": "one"}, dim=32)
    other = commit(artifact_store, {"a": "one"}, dim=64)
    assert again == first  # its date and manifest too: nothing was written again
    assert artifact_store.list(FOLDER) == sorted([first.id, other.id])


def test_a_link_in_place_of_the_directory_is_not_followed(artifact_store: ArtifactStore, tmp_path: Path) -> None:
    artifact = commit(artifact_store, {"a": "one"})
    artifact.path.rename(tmp_path / "elsewhere")
    artifact.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(errors.NotFound):
        artifact_store.open(FOLDER, artifact.id)


def test_a_link_or_a_directory_cannot_be_committed(artifact_store: ArtifactStore) -> None:
    for make in (lambda path: path.symlink_to("/etc/passwd"), Path.mkdir):
        with artifact_store.writer("checkpoint", FOLDER) as writer:
            make(writer.path / "odd")
            with pytest.raises(errors.InvalidArgument, match="odd is not a regular file"):
                writer.commit({})
    assert artifact_store.list(FOLDER) == []
    assert hidden(artifact_store) == []


def forge(**fields: object) -> Callable[[Artifact], None]:
    """Writes the manifest again with these fields; None takes one away."""

    def change(artifact: Artifact) -> None:
        manifest = {**json.loads((artifact.path / MANIFEST).read_bytes()), **fields}
        kept = {name: value for name, value in manifest.items() if value is not None}
        (artifact.path / MANIFEST).write_text(json.dumps(kept))

    return change


def name_file(name: str) -> Callable[[Artifact], None]:
    """Gives a file another name in the manifest, under which there is one."""

    def change(artifact: Artifact) -> None:
        (artifact.path.parent.parent.parent / "outside").write_text("one")
        forge(files={name: {"sha256": artifact.files["a"].sha256, "size_bytes": 3}})(artifact)

    return change


def write(name: str, content: bytes) -> Callable[[Artifact], None]:
    return lambda artifact: (artifact.path / name).write_bytes(content) and None


def link_file(artifact: Artifact) -> None:
    artifact.file("a").rename(artifact.path.parent / "elsewhere")
    artifact.file("a").symlink_to(artifact.path.parent / "elsewhere")


@pytest.mark.parametrize("verify", ["size", "full"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (write("a", b"one and more"), "a has 12 bytes, its manifest says 3"),
        (write("a", b"ONE"), "a does not have the sha256"),
        (lambda artifact: artifact.file("a").unlink(), "a is missing"),
        (write("payload.bin", b"x"), r"payload\.bin is not in the manifest"),
        (link_file, "a is not a regular file"),
        *((name_file(name), "not a plain file name; it is forged") for name in ("../../outside", "/etc/passwd", "..")),
        *((forge(**{name: value}), "cannot be read") for name, value in (("files", None), ("files", ["a"]))),
        (forge(format_version=0), "cannot be read"),
        (forge(id="qother"), "is the manifest of 'qother'"),
        *((write(MANIFEST, one), MANIFEST) for one in (b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000)),
    ],
)
def test_what_differs_from_the_manifest_is_named(
    artifact_store: ArtifactStore, damage: Callable[[Artifact], None], said: str, verify: Any
) -> None:
    artifact = commit(artifact_store, {"a": "one"})
    damage(artifact)
    if (said, verify) == ("a does not have the sha256", "size"):
        assert artifact_store.open(FOLDER, artifact.id, verify="size"), "the one thing that a look at sizes passes over"
        return
    with pytest.raises(errors.DataLoss, match=said):
        artifact_store.open(FOLDER, artifact.id, verify=verify)
    with pytest.raises(errors.DataLoss, match=r"names no file 'payload\.bin'"):
        artifact.file("payload.bin")


def remove_manifest(artifact: Artifact) -> None:
    (artifact.path / MANIFEST).unlink()


def link_elsewhere(artifact: Artifact) -> None:
    artifact.path.rename(artifact.path.with_name("elsewhere"))
    artifact.path.symlink_to("nowhere")


@pytest.mark.parametrize(
    "damage", [write("a", b"ONE"), forge(meta={"dim": 33}), write(MANIFEST, b"{"), remove_manifest, link_elsewhere]
)
def test_the_same_content_committed_again_takes_the_place_of_a_damaged_artifact(
    artifact_store: ArtifactStore, damage: Callable[[Artifact], None]
) -> None:
    artifact = commit(artifact_store, {"a": "one"}, dim=32)
    with artifact.file("a").open() as held:
        damage(artifact)
        assert commit(artifact_store, {"a": "one"}, dim=32).id == artifact.id
        assert artifact_store.open(FOLDER, artifact.id, verify="full").file("a").read_text() == "one"
        (aside,) = [name for name in hidden(artifact_store) if name.startswith(".damaged-")]
        assert artifact.id in aside
        assert artifact_store.sweep(FOLDER)
        assert held.read().lower() == "one", "a reader keeps what it has opened"
    assert not [name for name in hidden(artifact_store) if name.startswith(".damaged-")]


def test_writers_who_mend_the_same_artifact_at_a_time_leave_one_sound_one(artifact_store: ArtifactStore) -> None:
    artifact = commit(artifact_store, {"a": "one"})
    artifact.file("a").write_text("ONE")
    with ThreadPoolExecutor(8) as pool:
        ids = {done.id for done in pool.map(lambda _: commit(artifact_store, {"a": "one"}), range(8))}
    assert ids == {artifact.id}
    artifact_store.open(FOLDER, artifact.id)
    assert len([name for name in hidden(artifact_store) if name.startswith(".damaged-")]) == 1


def test_a_half_written_directory_is_invisible(artifact_store: ArtifactStore) -> None:
    artifact = commit(artifact_store, {"a": "one"})
    with artifact_store.writer("checkpoint", FOLDER) as writer:
        (writer.path / "a").write_text("half")
        assert artifact_store.list(FOLDER) == [artifact.id]
        with pytest.raises(errors.InvalidArgument):
            artifact_store.open(FOLDER, writer.path.name)
    assert hidden(artifact_store) == []  # given up without a commit
    (artifact_store.root / FOLDER / "q0").mkdir()  # such as a copy that was interrupted
    (artifact_store.root / FOLDER / "q0" / "a").write_text("half")
    assert artifact_store.list(FOLDER) == [artifact.id]
    with pytest.raises(errors.NotFound):
        artifact_store.open(FOLDER, "q0")


@pytest.mark.parametrize("artifact_id", ["", ".", "..", "../x", "a/b", ".tmp-1", "a\x00b", "a" * 256, "\xe9" * 128])
def test_an_id_that_is_no_plain_name_never_reaches_the_disk(artifact_store: ArtifactStore, artifact_id: str) -> None:
    for call in (artifact_store.open, artifact_store.delete, artifact_store.path):
        with pytest.raises(errors.InvalidArgument, match="is not an artifact id"):
            call(FOLDER, artifact_id)


def test_a_deleted_artifact_is_gone_and_can_be_committed_again(artifact_store: ArtifactStore) -> None:
    artifact = commit(artifact_store, {"a": "one"})
    artifact_store.delete(FOLDER, artifact.id)
    assert artifact_store.list(FOLDER) == []
    assert hidden(artifact_store) == []
    with pytest.raises(errors.NotFound):
        artifact_store.open(FOLDER, artifact.id)
    with pytest.raises(errors.NotFound):
        artifact_store.delete(FOLDER, artifact.id)
    assert commit(artifact_store, {"a": "one"}).id == artifact.id


@pytest.mark.parametrize("is_read", [False, True])
def test_an_artifact_that_is_deleted_while_it_is_opened_is_not_there_and_not_damaged(
    artifact_store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    made = commit(artifact_store, {"weights": "1"})

    def read(path: Path, expected: str | None) -> Artifact:
        read_first = read_manifest(path, expected) if is_read else None
        artifact_store.delete(FOLDER, made.id)
        return read_first or read_manifest(path, expected)

    monkeypatch.setattr(artifacts, "read_manifest", read)
    with pytest.raises(errors.NotFound, match="a listing shows what there is"):
        artifact_store.open(FOLDER, made.id)


def test_a_sweep_removes_what_killed_writers_left_and_nothing_else(artifact_store: ArtifactStore) -> None:
    artifact = commit(artifact_store, {"a": "one"})
    for left in (".tmp-1", ".deleted-1"):
        (artifact_store.root / FOLDER / left).mkdir()
        (artifact_store.root / FOLDER / left / "a").write_text("half")
    with artifact_store.writer("checkpoint", FOLDER):
        assert not artifact_store.sweep(FOLDER), "somebody writes"
    assert len(hidden(artifact_store)) == 2
    assert artifact_store.sweep(FOLDER)
    assert artifact_store.sweep("none such")
    assert names(artifact_store.root / FOLDER) == [artifact.id]


def test_a_sweep_beside_a_deletion_leaves_no_half_of_it_to_a_power_cut(
    artifact_store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = commit(artifact_store, {"a": "one", "b": "two"})

    def swept_before(folder: Path) -> None:
        monkeypatch.setattr(artifacts, "sync_directory", sync_directory)
        assert artifact_store.sweep(FOLDER)
        sync_directory(folder)

    with TornDisk(artifact_store.root) as disk:
        monkeypatch.setattr(artifacts, "sync_directory", swept_before)
        artifact_store.delete(FOLDER, deleted.id)
    for number, state in enumerate(disk.states()):
        state.lay_out(tmp_path / f"{number}")
        store = ArtifactStore(tmp_path / f"{number}")
        for artifact_id in store.list(FOLDER):
            store.open(FOLDER, artifact_id, verify="full")


def test_a_full_disk_leaves_nothing_visible(artifact_store: ArtifactStore, tmp_path: Path) -> None:
    documents = Documents(tmp_path)
    documents.write("pointer", b"old")

    def write(size: int) -> None:
        with artifact_store.writer("checkpoint", FOLDER) as writer:
            for n in range(50):  # the names together make a manifest over the limit
                (writer.path / f"{n:0200d}").write_bytes(b"x" * size)
            writer.commit({})

    def put(durable: bool) -> None:
        documents.write("pointer", b"x" * 5000, durable=durable)

    for fail in (partial(write, 5000), partial(write, 1), partial(put, True), partial(put, False)):
        with full_disk(4096), pytest.raises(OSError, match="File too large"):  # errno EFBIG stands for ENOSPC
            fail()
    assert names(artifact_store.root / FOLDER) == []
    assert documents.read("pointer") == b"old"
    documents.write("pointer", b"new")
    assert documents.read("pointer") == b"new"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["artifacts", "pointer"]


def test_a_store_whose_volume_is_lost_is_unavailable_and_a_new_one_is_empty(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    with pytest.raises(errors.NotFound):
        store.open(FOLDER, "q1")
    written = commit(store, {"a": "one"})
    store.check_there()
    store.root.rename(tmp_path / "elsewhere")
    for call in (store.open, store.hold, store.check_exists, store.delete):
        with pytest.raises(errors.Unavailable, match="artifacts is not there any more; mount it again"):
            call(FOLDER, written.id)
    with pytest.raises(errors.Unavailable):
        read_active(store, "science")
    (tmp_path / "elsewhere").rename(store.root)
    assert store.open(FOLDER, written.id) == written


@pytest.mark.parametrize("is_mount_point", [False, True])
def test_nothing_is_written_where_a_lost_volume_was(tmp_path: Path, is_mount_point: bool) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    written = commit(store, {"a": "one"})
    store.root.rename(tmp_path / "elsewhere")
    if is_mount_point:
        store.root.mkdir()

    def moving_a_corpus() -> None:
        with moving(store, "science"):
            pytest.fail("a move has begun")

    for write in (
        lambda: commit(store, {"b": "two"}),
        lambda: store.documents.write("generations/science/note", b"new"),
        lambda: store.documents.create("generations/science/moves/1", b"new"),
        moving_a_corpus,
        lambda: store.list(FOLDER),
        lambda: store.folders("generations"),
    ):
        with pytest.raises(errors.Unavailable, match="mount it again"):
            write()
    assert store.root.is_dir() == is_mount_point
    if is_mount_point:
        store.root.rmdir()  # it is empty
    (tmp_path / "elsewhere").rename(store.root)
    commit(store, {"b": "two"})
    assert written.id in store.list(FOLDER)

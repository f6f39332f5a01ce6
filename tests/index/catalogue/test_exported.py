"""A generation that is exported from one deployment and imported into another: the same answers, or a refusal."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from aeenc import errors
from services.launcher.backups.archive import Backup, new_backup
from services.launcher.backups.generations import export_generation, import_generation
from services.launcher.backups.restoring import check
from services.store.artifacts import MANIFEST, ArtifactStore
from support.worlds.index_world import FACTS, facts

OVER = ("files", "milvus")


@pytest.fixture
async def exported(serve, artifact_store, tmp_path: Path) -> Path:
    """An archive of the corpus `science`."""
    async with serve() as index:
        await index.client.build("science", facts())
    target = tmp_path / "science.tar"
    export_generation(artifact_store, "science", "", target)
    return target


async def test_an_imported_generation_answers_as_the_exported_one(serve, exported: Path, tmp_path: Path):
    async with serve() as index:
        before = await index.client.retrieve("science", FACTS[:3], k=4)
    other = ArtifactStore(tmp_path / "other")
    async with serve(artifacts_dir=other.root) as index:
        moved = import_generation(other, exported)
        assert (moved.corpus, moved.generation, moved.premises) == ("science", before.generation, len(facts()))
        assert (await index.client.retrieve("science", FACTS[:3], k=4)).results == before.results
        assert import_generation(other, exported) == moved, "again changes nothing"


async def test_a_generation_may_be_imported_into_another_corpus_and_wait_there(serve, exported: Path, tmp_path: Path):
    other = ArtifactStore(tmp_path / "other")
    moved = import_generation(other, exported, "copy", activate=False)
    async with serve(artifacts_dir=other.root) as index:
        assert [one.id async for one in index.client.list_generations("copy")] == [moved.generation]
        assert (await index.client.activate("copy", moved.generation)).previous_generation == ""
        assert (await index.client.retrieve("copy", FACTS[:1], k=1)).generation == moved.generation


def test_what_was_changed_cut_off_or_is_something_else_is_refused_and_nothing_is_seen(exported: Path, tmp_path: Path):
    other = ArtifactStore(tmp_path / "other")
    whole = exported.read_bytes()
    place = whole.index(FACTS[0].encode())
    for data in (whole[:place] + b"X" + whole[place + 1 :], whole[: len(whole) // 2], b"", b"nonsense"):
        exported.write_bytes(data)
        with pytest.raises((errors.DataLoss, errors.NotFound), match=exported.name):
            import_generation(other, exported)
    with new_backup(tmp_path / "backup.tar") as backup:
        backup.finish({"corpora": {}, "checkpoints": {}, "damaged": []})
    with pytest.raises(errors.InvalidArgument, match="aeenc restore"):
        import_generation(other, tmp_path / "backup.tar")
    exported.write_bytes(whole)
    with closing(Backup(exported)) as archive, pytest.raises(errors.InvalidArgument, match="aeenc corpus import"):
        check(archive)
    assert other.list("generations/science") == []


def rewritten(exported: Path, change: Callable[[str], str]) -> Path:
    """The archive with other file names and another manifest of its generation; it has its own hashes."""
    target = exported.with_name("forged.tar")
    with closing(Backup(exported)) as archive, new_backup(target) as forged:
        for name in archive.files:
            data = archive.read(name)
            is_manifest = name.endswith(MANIFEST)
            forged.add_bytes(change(name), change(data.decode()).encode() if is_manifest else data)
        said = {name: archive.manifest[name] for name in ("kind", "corpora", "checkpoints", "damaged")}
        forged.finish(json.loads(change(json.dumps(said))))
    return target


def test_an_archive_that_leads_out_of_its_place_writes_nothing(exported: Path, tmp_path: Path):
    forged = rewritten(exported, lambda text: text.replace('"vectors.npy"', '"../../../../evil"'))
    with pytest.raises(errors.DataLoss, match=r"lacks '\.\./.*evil'"):
        import_generation(ArtifactStore(tmp_path / "other"), forged)
    assert not list(tmp_path.rglob("evil"))


def test_an_archive_under_another_id_is_refused_and_what_stands_stays(exported: Path, artifact_store: ArtifactStore):
    [standing] = artifact_store.list("generations/science")
    forged = rewritten(exported, lambda text: text.replace(standing, "g0123456789abcdef"))
    with pytest.raises(errors.DataLoss, match="its manifest says g0123456789abcdef"):
        import_generation(artifact_store, forged)
    assert artifact_store.list("generations/science") == [standing]


async def test_an_export_names_what_is_missing_and_overwrites_nothing(exported: Path, artifact_store: ArtifactStore):
    with pytest.raises(errors.AlreadyExists, match=exported.name):
        export_generation(artifact_store, "science", "", exported)
    with pytest.raises(errors.NotFound, match=r"'nothing'.*whose corpora are: science;"):
        export_generation(artifact_store, "nothing", "", exported.with_name("other.tar"))
    assert not exported.with_name("other.tar").exists()

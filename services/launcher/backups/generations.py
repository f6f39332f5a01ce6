"""One generation of a corpus as one archive, to be moved to another deployment. It has the form of a backup."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from aeenc import errors
from services.corpus.active import named_or_active, write_active
from services.corpus.generation import check_corpus_name, folder_of
from services.launcher.backups.archive import Backup, new_backup
from services.launcher.backups.store_files import ARTIFACTS, copy_artifact
from services.store.artifacts import MANIFEST, ArtifactStore

KIND = "generation"  # what the archive says it is; a backup says nothing


@dataclass(frozen=True)
class Moved:
    """A generation that was exported or imported."""

    corpus: str
    generation: str
    space_id: str
    premises: int
    size_bytes: int


def export_generation(store: ArtifactStore, corpus: str, generation: str, target: Path) -> Moved:
    """Writes a generation, by default the active one, into a new archive.

    Raises NotFound without one, DataLoss for a damaged one, AlreadyExists when `target` does.
    """
    generation = named_or_active(store, corpus, generation)
    artifact = store.open(folder_of(corpus), generation, verify="size")
    hold = store.hold(folder_of(corpus), generation)
    moved = Moved(corpus, generation, artifact.meta["space_id"], artifact.meta["premises"], artifact.size_bytes)
    with new_backup(target) as archive:
        if damaged := copy_artifact(f"{folder_of(corpus)}/{generation}", hold, archive):
            raise errors.DataLoss(f"{'; '.join(damaged)}; build the generation again before you export it")
        archive.finish({"kind": KIND, "corpora": {corpus: generation}, "checkpoints": {}, "damaged": []})
    return moved


def import_generation(store: ArtifactStore, source: Path, corpus: str = "", *, activate: bool = True) -> Moved:
    """Adds the generation of an archive, to its own corpus or another, and by default makes it the active one.

    Every file is compared with its hash before the generation can be seen. Repeating it changes nothing. Raises
    InvalidArgument for another kind of archive, DataLoss for a damaged one, NewerFormat for one of a newer release.
    """
    with closing(Backup(source)) as archive:
        if archive.manifest.get("kind") != KIND:
            raise errors.InvalidArgument(f"{source} is no exported generation; a backup is for `aeenc restore`")
        [(own, generation)] = archive.manifest["corpora"].items()
        prefix = f"{ARTIFACTS}/{folder_of(own)}/{generation}/"
        corpus = corpus or own
        check_corpus_name(corpus)
        manifest = json.loads(archive.read(prefix + MANIFEST))

        def check_id(made: str) -> None:
            if corpus == own and made != generation:
                raise errors.DataLoss(f"{source} holds {made}, its manifest says {generation}; export it again")

        with store.writer(manifest["kind"], folder_of(corpus)) as writer:
            for name in manifest["files"]:
                if prefix + name not in archive.files or "/" in name:
                    raise errors.DataLoss(f"{source} lacks {name!r} of generation {generation}; export it again")
                with (writer.path / name).open("wb") as file:
                    archive.copy(prefix + name, file)
            artifact = writer.commit({**manifest["meta"], "corpus": corpus}, id_prefix="g", announce=check_id)
    artifact = store.push(folder_of(corpus), artifact.id)
    if activate:
        write_active(store, corpus, artifact.id)
    meta = artifact.meta
    return Moved(corpus, artifact.id, meta["space_id"], meta["premises"], artifact.size_bytes)

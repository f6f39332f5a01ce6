"""`aeenc corpus build --engine ray`. Called through the entry-point group `aeenc.build_engines`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from aeenc import Client
from aeenc.adapters.facts import Facts
from aeenc.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound
from aeenc.transport.targets import Targets
from services.corpus.active import read_active
from services.corpus.generation import folder_of
from services.index.distributed.engine import Built, build
from services.index.distributed.plan import Plan
from services.index.distributed.ray_processes import connected
from services.index.distributed.stages import Encoders
from services.index.distributed.work import sweep
from services.index.settings import IndexSettings
from services.store.artifacts import Artifact, ArtifactStore
from services.store.objects import open_store

FOLDER = "builds"  # among the artifacts: the work of builds that are not finished


def build_on_ray(
    client: Client,
    targets: Targets,
    corpus: str,
    facts: Facts,
    *,
    address: str = "",
    workers: int = 0,
    work: str = "",
    space_id: str = "",
    activate: bool = True,
    on_progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Built:
    """Builds a corpus from files by many processes, checks the generation and activates it.

    The index's own settings (AEENC_INDEX_*) say where its artifacts are and how it searches. `work` is a directory that
    all processes see, or a URL; by default it lies among the artifacts. A build of the same input goes on in it, until
    its generation is activated, or checked if it shall not be.

    Raises FailedPrecondition for another store than the index's, Aborted, and leaves the generation inactive,
    when somebody has activated another one since the start, and what `build` raises.
    """
    if address and workers:
        raise InvalidArgument(
            f"--workers {workers} is for processes of this machine; leave it out with --ray {address}"
        )
    settings = IndexSettings()
    store = open_store(settings.artifacts_dir, settings.artifacts_url, settings.artifacts_cache_bytes)
    serving = {one.corpus: one.active.id for one in client.index.list_corpora() if one.active.id}
    _check_store(store, corpus, serving)
    expected = _recorded(store, corpus)
    if "://" not in str(facts.path):  # processes of a cluster work in directories of their own
        facts = replace(facts, path=facts.path.absolute())
    plan = Plan.of(corpus, facts, text_bytes=settings.text_bytes, storage=settings.storage, space_id=space_id)
    folder = work or f"{settings.artifacts_url or settings.artifacts_dir}/{FOLDER}"
    if "://" not in folder:
        folder = str(Path(folder).absolute())
    name = f"{corpus}-{plan.digest}"
    sweep(folder, corpus, name, settings.build_keep_s)

    def accept(artifact: Artifact) -> None:
        try:
            client.index.verify(corpus, artifact.id)
        except NotFound as error:
            raise _another_store(store) from error
        if activate:
            client.index.activate(corpus, artifact.id, expected=expected)

    with connected(address, workers) as processes:
        return build(
            plan,
            f"{folder}/{name}",
            processes,
            Encoders(targets, settings.build_batch, settings.build_window, settings.build_encode_timeout_s),
            store,
            settings.engines,
            settings.lexical,
            on_progress,
            accept,
        )


def _recorded(store: ArtifactStore, corpus: str) -> str | None:
    """The generation that an activation will find active, also one that does not open; None if nobody can read it."""
    try:
        return read_active(store, corpus) or ""
    except DataLoss:
        return None


def _check_store(store: ArtifactStore, corpus: str, serving: Mapping[str, str]) -> None:
    """Raises FailedPrecondition for a store that lacks the generation which the index serves of a corpus.

    Where it serves none of this corpus, one of any other will do.
    """
    wanted = {corpus: serving[corpus]} if corpus in serving else serving
    for name, generation in wanted.items():
        with suppress(NotFound):
            store.check_exists(folder_of(name), generation)
            return
    if wanted:
        raise _another_store(store)


def _another_store(store: ArtifactStore) -> FailedPrecondition:
    return FailedPrecondition(
        f"the index has other artifacts than {store.url or store.root.absolute()}; run the command with the index's "
        "AEENC_INDEX_ARTIFACTS_DIR or AEENC_INDEX_ARTIFACTS_URL, where these artifacts are"
    )

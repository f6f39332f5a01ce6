"""`aeenc corpus build --engine ray`. Called through the entry-point group `aeenc.build_engines`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from aeenc import Client
from aeenc.adapters.facts import Facts
from aeenc.transport.targets import Targets
from services.index.distributed.engine import Built, build
from services.index.distributed.plan import Plan
from services.index.distributed.ray_processes import connected
from services.index.distributed.stages import Encoders
from services.index.settings import IndexSettings, milvus_lacks
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
    all processes see, or a URL; by default it lies among the artifacts. A build of the same input goes on in it.
    """
    settings = IndexSettings()
    storage, into_milvus = settings.engines.storage, None
    if settings.backend == "milvus":
        try:
            from services.index.milvus.backend import loading_of
        except ModuleNotFoundError as error:
            raise milvus_lacks(error) from error
        storage, into_milvus = "float32", partial(loading_of, settings, corpus)
    plan = Plan.of(corpus, facts, text_bytes=settings.text_bytes, storage=storage, space_id=space_id)
    root = settings.artifacts_url or str(settings.artifacts_dir.resolve())
    serving = {one.corpus: one.active.id for one in client.index.info().corpora}.get(corpus, "")
    with connected(address, workers) as processes:
        built = build(
            plan,
            work or f"{root}/{FOLDER}/{corpus}-{plan.digest}",
            processes,
            Encoders(targets, settings.build_batch, settings.build_window, settings.build_encode_timeout_s),
            open_store(settings.artifacts_dir, settings.artifacts_url, settings.artifacts_cache_bytes),
            settings.engines,
            settings.lexical,
            on_progress,
            into_milvus,
        )
    client.index.verify(corpus, built.artifact.id)
    if activate:
        client.index.activate(corpus, built.artifact.id, expected=serving)
    return built

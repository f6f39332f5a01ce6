"""The collections of all generations in a Milvus: opened by name, dropped once their generation is gone.

    <artifacts>/milvus/<generation>.<corpus>    a document, older than the collection that it names

What holds a generation's files also keeps its collection. After the last one has let go it stays for `lease_s`, since
processes of other hosts may still be at a search. Any process drops it; that twice does no harm.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from contextlib import suppress

from aeenc import errors
from services.corpus.generation import Generation, folder_of
from services.index.milvus.collection import GenerationCollection, drop
from services.index.milvus.link import MilvusLink
from services.kit import logs
from services.kit.concurrency import cancel_all
from services.store.artifacts import ArtifactStore

log = logs.get(__name__)
FOLDER = "milvus"
LOOKS = 4  # within `lease_s`


class Collections:
    """The collections of one store's generations. Their names start with `prefix`.

    Every `refresh_s` it looks whether Milvus answers, which the link reports.
    """

    def __init__(
        self,
        store: ArtifactStore,
        link: MilvusLink,
        prefix: str,
        *,
        refresh_s: float,
        lease_s: float,
        patience_s: float,
    ) -> None:
        self._store, self._link, self._prefix = store, link, prefix
        self._refresh_s, self._lease_s, self._patience_s = refresh_s, lease_s, patience_s
        self._gone_since: dict[str, float] = {}  # by document
        self._sweep_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def of(self, generation: Generation) -> GenerationCollection:
        """Opens the collection of a generation, which asks nothing of Milvus yet."""
        key = f"{generation.id}.{generation.corpus}"
        name = f"{self._prefix}_g_{hashlib.sha256(key.encode()).hexdigest()[:32]}"

        def announce() -> None:
            self._store.documents.write(f"{FOLDER}/{key}", name.encode())

        return GenerationCollection(self._link, name, generation, announce, self._patience_s)

    def start(self) -> None:
        """Starts to look."""
        self._task = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Stops, and closes the link."""
        await cancel_all([self._task] if self._task else [])
        await self._link.close()

    async def _keep(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self.look)
            except (errors.AeencError, OSError) as error:  # the next round may succeed
                log.warning("collections in Milvus cannot be looked at", reason=str(error))
            except Exception:
                log.exception("collections in Milvus cannot be looked at")
            await asyncio.sleep(self._refresh_s)

    def look(self) -> None:
        """Asks whether Milvus answers; now and then drops what belongs to no generation any more. It blocks."""
        self._link.call("has_collection", collection_name=self._prefix)
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + self._lease_s / LOOKS
            self._sweep()

    def _sweep(self) -> None:
        now = time.monotonic()
        names = self._store.documents.names(FOLDER)
        self._gone_since = {key: self._gone_since.get(key, now) for key in names if self._is_gone(key)}
        for key, since in self._gone_since.items():
            name = self._store.documents.read(f"{FOLDER}/{key}")
            if now - since >= self._lease_s and name is not None:
                drop(self._link, name.decode())
                self._store.documents.remove(f"{FOLDER}/{key}")
                log.info("dropped the collection of a deleted generation", collection=name.decode(), generation=key)

    def _is_gone(self, key: str) -> bool:
        """Whether a generation is deleted and nobody holds its files. Raises Unavailable where the store is away."""
        generation_id, _, corpus = key.partition(".")
        with suppress(errors.NotFound):
            self._store.check_exists(folder_of(corpus), generation_id)
            return False
        return not self._store.has_deleted(folder_of(corpus))

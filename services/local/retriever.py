"""Retrieval in one process, over the directory of a fleet or of artifacts: the index's stages, the encoder's models.

    open_directory(DIR) ──► LocalRetriever.retrieve ──► message ──► TextQuery ──► Stages ──► message ──► Retrieved
                                                                                    ▲
                             generations, read-only ──► ServedGeneration ───────────┘ models, loaded when asked for

A call is checked and answered through the messages of Retrieve, so that it means what it means to the services.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack
from weakref import WeakKeyDictionary

from aeenc.calls.retrieval import Retrieval, Retrieved, RetrieveKeywords, RetrieveOptions
from aeenc.errors import FailedPrecondition, NotFound
from services.corpus.active import named_or_active
from services.corpus.generation import open_generation
from services.encoder.rollout.history import FILE, read_state
from services.index import convert
from services.index.catalogue.served import Explanations, OpenGenerations, ServedGeneration
from services.index.ranking import alone
from services.index.ranking.fusion import Prior
from services.index.ranking.stages import Call, RetrievalResult, Stages
from services.index.values import TextQuery
from services.kit.limits import AnswerRoom, Limits
from services.local.models import LocalModels
from services.store.artifacts import ArtifactStore

LIMITS = Limits(k=10_000)


def open_directory(directory: Path | str, *, version: str = "") -> LocalRetriever:
    """Opens the home of `aeenc up`, or a directory of artifacts, to be read alone; the services may run or not.

    `version` is the query encoder of calls that name none; by default what label `stable` named when the encoder of
    this home served last, and in a directory of artifacts the premise encoder. Raises NotFound for another directory.
    """
    root = Path(directory)
    artifacts = root / "artifacts" if (root / "artifacts").is_dir() else root
    if not (artifacts / "generations").is_dir():
        raise NotFound(f"{root} holds no corpora; give the home of `aeenc up`, or the ARTIFACTS_DIR of the services")
    state = read_state(root / "state" / "encoder" / FILE)
    labels = {(row.space_id, row.name): row for row in state.labels} if state else {}
    store = ArtifactStore(artifacts)
    return LocalRetriever(store, LocalModels(store, labels, version))


class LocalRetriever:
    """Retrieves premises in the caller's thread; not for several threads at once. It writes nothing."""

    def __init__(self, store: ArtifactStore, models: LocalModels) -> None:
        self._store, self._models = store, models
        self._opened = OpenGenerations()
        self._priors = WeakKeyDictionary[ServedGeneration, Prior]()
        self._stages = Stages(alone.search, alone.each, models.encode, models.rerank, alone.at_once)

    def retrieve(
        self,
        corpus: str,
        texts: Sequence[str],
        *,
        retrieval: Retrieval | None = None,
        accepted: Sequence[Sequence[str]] = (),
        **options: Unpack[RetrieveKeywords],
    ) -> Retrieved:
        """Finds the k premises that best explain each text, with the options and errors of `IndexClient.retrieve`.

        A generation that was activated since is taken at once. A label means what it named when the directory was
        opened, and no call goes to a canary. Explanations that the prior learns from are read once.
        """
        request = RetrieveOptions.of(retrieval, options).request(corpus, texts, accepted)
        answer = alone.finished(self._answer(convert.to_text_query(request)))
        return Retrieved.of(convert.to_retrieve_response(answer, AnswerRoom(sys.maxsize)))

    async def _answer(self, query: TextQuery) -> RetrievalResult:
        started = time.perf_counter()
        query.check(LIMITS)
        served = self._open(query.scope.corpus, query.scope.generation)
        prior = self._prior(query.scope.corpus, served) if query.prior else None
        call = Call.of(query, served, served.select(query.scope), None, prior)
        return await self._stages.answer(call, started)

    def _open(self, corpus: str, generation: str) -> ServedGeneration:
        key = corpus, named_or_active(self._store, corpus, generation)
        served = self._opened.known.get(key)
        if served is None:
            found = open_generation(self._store, *key, verify="full")
            served = self._opened.known[key] = ServedGeneration.of(found)
            self._models.premise_versions[found.space_id] = found.premise_version
        if generation:
            self._opened.pin(corpus, served)
        else:
            self._opened.active[corpus] = served
        return served

    def _prior(self, corpus: str, served: ServedGeneration) -> Prior:
        if served not in self._priors:
            explanations = Explanations(self._store).latest(corpus)
            if not explanations:
                raise FailedPrecondition(f"corpus {corpus!r} has no explanations for the prior to learn from")
            self._priors[served] = Prior.over(explanations, served.generation.premises.ordinal_by_id)
        return self._priors[served]

"""Evaluates a query encoder as it is served: query vectors from the encoder, premises from the generation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from aeenc import errors
from aeenc.encoder import EncoderClient
from services.kit.artifacts import ArtifactStore
from services.kit.checks import Limits, check_texts
from services.kit.generation import Generation, open_generation, read_active
from services.trainer.cross_encoder import is_cross_encoder
from services.trainer.evaluation import EvaluationQuery, Report, evaluate
from services.trainer.evaluation.protocol import gold_ordinals, merge_queries

CHUNK = 256
MAX_QUERIES = 100_000
MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Evaluation:
    """A report and what was evaluated."""

    report: Report
    model_version: str
    generation: str


class Evaluating:
    """Runs evaluations, one at a time: each ranks the whole corpus for every query."""

    def __init__(self, store: ArtifactStore, encoder: EncoderClient, limits: Limits) -> None:
        self._store, self._encoder, self.limits = store, encoder, limits
        self._one = asyncio.Lock()
        self._open = lru_cache(maxsize=2)(lambda corpus, generation: open_generation(store, corpus, generation))

    async def evaluate(
        self,
        corpus: str,
        queries: Sequence[EvaluationQuery],
        *,
        label: str | None,
        version: str | None,
        generation: str,
    ) -> Evaluation:
        """Both protocols on distinct queries. A text too long for the model is cut, as training cuts it."""
        merged = await asyncio.to_thread(self._checked, queries)
        if version:
            await asyncio.to_thread(self._check_version, version)
        async with self._one:
            opened = await self._generation(corpus, generation)
            await asyncio.to_thread(lambda: gold_ordinals(merged, opened.ordinal_by_text))  # before anything is encoded
            texts = [query.text for query in merged]
            rows = []
            label = None if version else label or "stable"  # named: an evaluation is no traffic for a canary's share
            for start in range(0, len(texts), CHUNK):
                encoded = await self._encoder.encode(
                    texts[start : start + CHUNK],
                    label=label,
                    version=version,
                    space_id=opened.space_id,
                    truncate=True,
                    precision="float32",
                )
                version = encoded.model_version  # all chunks by the version that answered the first
                rows.append(encoded.vectors)
            vectors = np.concatenate(rows)
            report = await asyncio.to_thread(evaluate, merged, vectors, opened.float32(), opened.ordinal_by_text)
        return Evaluation(report, version or "", opened.id)

    def _check_version(self, version: str) -> None:
        if is_cross_encoder(self._store, version):
            raise errors.FailedPrecondition(
                f"checkpoint {version} is a cross-encoder, which gives no vectors; evaluate a sentence encoder"
            )

    def _checked(self, queries: Sequence[EvaluationQuery]) -> list[EvaluationQuery]:
        for start in range(0, len(queries), self.limits.items) or [0]:
            check_texts([query.text for query in queries[start : start + self.limits.items]], self.limits, "queries")
        return merge_queries(queries)

    async def _generation(self, corpus: str, generation: str) -> Generation:
        if not corpus:
            raise errors.InvalidArgument.field("config.corpus", "is empty; name a corpus of the index")
        if not generation:
            active = await asyncio.to_thread(read_active, self._store, corpus)
            if active is None:
                raise errors.NotFound(f"no corpus {corpus!r}; build it and activate a generation")
            generation = active
        return await asyncio.to_thread(self._open, corpus, generation)

    async def close(self) -> None:
        """Closes the connection."""
        await self._encoder.channel.close()

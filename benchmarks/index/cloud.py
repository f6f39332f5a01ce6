"""A large corpus of made-up vectors, and its searches: how many of the true nearest they find, and how fast.

Vectors are those of real facts, over and over, each time with other noise; queries are real hypotheses. Premises are
p0, p1 …
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from aeenc import AsyncClient
from benchmarks.harness.checkpoints import STORE, base_checkpoint, embedded
from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.load import rate_of
from benchmarks.index.stand_in_encoder import SPACE
from services.store.artifacts import ArtifactStore

Matrix = NDArray[np.float32]
NOISE = 0.5  # length of a row's noise beside its fact's 1: a row and its fact have a cosine of .89, two of one fact .8
NOISES = 65_536  # distinct ones; a prime number of facts makes few pairs of rows share both


class Cloud:
    """Makes the vector of a premise by the ordinal at the end of its text. Facts are encoded once and kept."""

    def __init__(self) -> None:
        dataset, kept = entailmentbank(), STORE.parent / "sources.npz"
        self.texts = [one.text for one in dataset.queries("dev")]
        self.facts = [candidate.text for candidate in dataset.candidates()]
        if not kept.is_file():
            base = base_checkpoint(ArtifactStore(STORE))
            np.savez(kept, facts=embedded(base, self.facts), queries=embedded(base, self.texts))
        with np.load(kept, allow_pickle=False) as arrays:
            self._facts: Matrix = arrays["facts"]
            self.queries: Matrix = arrays["queries"]
        self._query_of = dict(zip(self.texts, self.queries, strict=True))
        noise = np.random.default_rng(3).standard_normal((NOISES, self._facts.shape[1]), np.float32)
        self._noise = NOISE * noise / np.linalg.norm(noise, axis=1, keepdims=True)
        self.seconds = 0.0  # that making vectors has taken

    def embed(self, texts: Sequence[str]) -> Matrix:
        """The vectors of premises, or of queries."""
        if texts[0] in self._query_of:
            return np.stack([self._query_of[text] for text in texts])
        started = time.perf_counter()
        ordinals = np.array([int(text.rpartition(" ")[2]) for text in texts])
        rows = self._facts[ordinals % len(self._facts)] + self._noise[ordinals * 31 % NOISES]
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        self.seconds += time.perf_counter() - started
        return rows


AT_ONCE = 64  # queries in a call


async def measured_recall(
    client: AsyncClient,
    corpus: str,
    queries: NDArray[np.float32],
    truth: Sequence[NDArray[np.int64]],
    k: int,
    splits: Sequence[str] | None = None,
) -> float:
    """The share of the true k nearest (ordinals for each query) that are found under a filter by splits."""
    hits = 0
    for start in range(0, len(queries), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        answer = await client.index.search(corpus, queries[part], space_id=SPACE, k=k, splits=splits)
        for ids, true in zip(answer.ids, truth[part], strict=True):
            hits += len({f"p{n}" for n in true.tolist()} & set(ids))
    return hits / k / len(queries)


async def measured_rate(
    client: AsyncClient,
    corpus: str,
    queries: NDArray[np.float32],
    k: int,
    callers: int,
    seconds: float,
    *,
    exclude: Sequence[str] = (),
    splits: Sequence[str] | None = None,
) -> float:
    """Queries a second of callers that wait for their answers, one query a call, under a filter."""
    search = partial(client.index.search, corpus, space_id=SPACE, k=k, exclude=exclude, splits=splits)
    return await rate_of(lambda number: search(queries[number % len(queries)][None]), callers, seconds)

"""Ranks premises for texts in every mode: by vectors, by words, or by both; then by the prior and the cross-encoder.

    texts ─┬─ encode ──► vectors less feedback ──► batcher ─┬─► fuse ──► prior ──► features ──► cross-encoder ──► k hits
           └─ BM25 (executor) ──────────────────────────────┘         (each stage only where the query asks for it)

The caller's label names the query encoder in the space of the generation, so that a corpus of another space needs no
other call. Later stages score the best `pool` premises of each first ranking. The pool does not depend on k, so that a
longer list starts with the shorter one. Every stage breaks ties by ordinal (SearchHits.best).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.inner_products import exact_scores
from services.index.catalogue.served import ServedGeneration
from services.index.dense.batcher import SearchBatcher
from services.index.lexical.bm25 import LexicalIndex, best
from services.index.lexical.executor import LexicalExecutor
from services.index.ranking.encoding import EncodeKey, QueryEncoder, QueryVectors, Reranker
from services.index.ranking.features import DEPTH, FirstWords, features_of, order_by
from services.index.ranking.fusion import fuse_hits, rocchio_feedback
from services.index.ranking.prior import Near, Prior, with_bonus
from services.index.ranking.validation import check_accepted, check_vectors
from services.index.values import ALL, WITHOUT_ENCODER, SearchHits, Selection, TextQuery

KEPT_SCORES = 4_000_000  # by words, of all texts of a call together; beyond that, they are computed twice
FEEDBACK = 5  # premises that negative feedback looks at
EXPLAINED = 0.5  # share of the accepted premises' mean that a query's vector loses (docs/experiments/retrieval.md)


@dataclass(frozen=True)
class Ranking:
    """The hits of each text. Times in seconds; `version` encoded them, `reranked_by` re-ranked them."""

    hits: list[SearchHits]
    queue_s: float = 0.0
    compute_s: float = 0.0
    encode_s: float = 0.0
    version: str = ""
    reranked_by: tuple[str, ...] = ()
    precision: str = ""


@dataclass(frozen=True)
class SharedScores:
    """Results that no vector changes, by the text's place: negative feedback ranks twice and computes them once.

    `words` has the scores of all premises by words (rows,) and the best of them, `near` the nearest hypotheses.
    """

    words: dict[int, tuple[NDArray[np.float32], SearchHits]] = field(default_factory=dict)
    near: dict[int, Near] = field(default_factory=dict)


@dataclass(frozen=True)
class RankCall:
    """One call: the query, the premises to rank and, for each text, the ordinals `accepted` and `left_out`."""

    query: TextQuery
    served: ServedGeneration
    selection: Selection
    accepted: list[list[int]]
    left_out: list[list[int]]
    prior: Prior | None
    deadline: float | None  # on the clock of time.monotonic()
    shared: SharedScores = field(default_factory=SharedScores)

    @classmethod
    def of(
        cls,
        query: TextQuery,
        served: ServedGeneration,
        selection: Selection,
        deadline: float | None,
        prior: Prior | None = None,
    ) -> RankCall:
        """Looks up the premises that are a query's own text and those accepted for it.

        A call never returns accepted premises again. Raises InvalidArgument for one that the generation lacks.
        """
        accepted = [_ordinals(served, n, ids) for n, ids in enumerate(query.accepted)] or [[]] * len(query.texts)
        own = [served.generation.ordinal_by_text.get(text) if query.drop_self else None for text in query.texts]
        return cls(
            query=query,
            served=served,
            selection=selection,
            accepted=accepted,
            left_out=[
                ordinals if mine is None else [mine, *ordinals] for mine, ordinals in zip(own, accepted, strict=True)
            ],
            prior=prior,
            deadline=deadline,
        )

    def accepted_texts(self, row: int) -> list[str]:
        """The texts of the premises accepted for one text."""
        return [self.served.generation.premises[n].text for n in self.accepted[row]]

    def texts_with_accepted(self) -> list[str]:
        """Each text followed by those of its accepted premises. It reads from disk."""
        return [" ".join([text, *self.accepted_texts(row)]) for row, text in enumerate(self.query.texts)]

    @property
    def left_s(self) -> float | None:
        """The seconds left until the deadline; None: there is no deadline."""
        return None if self.deadline is None else self.deadline - time.monotonic()


class Ranker:
    """Ranks premises."""

    def __init__(
        self,
        batcher: SearchBatcher,
        executor: LexicalExecutor,
        encoder: QueryEncoder,
        reranker: Reranker,
        *,
        pool: int = 1000,
    ) -> None:
        self._batcher, self._executor, self._encoder, self._reranker = batcher, executor, encoder, reranker
        self._pool = pool

    async def rank(self, call: RankCall) -> Ranking:
        """Ranks the best premises for each text. Raises what the encoder, the batcher and the executor raise."""
        query = call.query
        k = query.depth
        if query.mode in WITHOUT_ENCODER:
            ranked = await self._by_words(call, self._depth(call, k))
            ranked = await self._with_prior(call, ranked, k)
        else:
            encoded, encode_s = await self._encode(call)
            vectors = encoded.vectors
            first = Ranking([])
            if query.negative_feedback:
                first = await self._by_vectors(call, vectors, FEEDBACK)
                ordinals = [one.ordinals.tolist() for one in first.hits]
                vectors = await asyncio.to_thread(_turned, call.served, vectors, ordinals, query.negative_feedback)
            ranked = await self._by_vectors(call, vectors, max(k, DEPTH) if query.features else k)
            if query.features:
                ranked = await self._by_features(call, encoded.vectors, ranked, k)
            ranked = replace(
                ranked,
                queue_s=first.queue_s + ranked.queue_s,
                compute_s=first.compute_s + ranked.compute_s,
                encode_s=encode_s,
                version=encoded.version,
                precision=encoded.precision,
            )
        return await self._reranked(call, ranked) if query.rerank else ranked

    def _depth(self, call: RankCall, k: int) -> int:
        return self._pool if call.prior else k

    async def _by_vectors(self, call: RankCall, vectors: NDArray[np.float32], k: int) -> Ranking:
        """Ranks the k best by vectors, or by vectors and words; then by the prior."""
        by = self._hybrid if call.query.mode == "HYBRID" else self._dense
        return await self._with_prior(call, await by(call, vectors, self._depth(call, k)), k)

    async def _encode(self, call: RankCall) -> tuple[QueryVectors, float]:
        """Encodes each text with its accepted premises and subtracts what those explain; returns its seconds too."""
        started, query = time.perf_counter(), call.query
        key = EncodeKey.of(query, call.served.generation.space_id)
        texts = list(query.texts)
        if query.accepted:
            texts = await asyncio.to_thread(call.texts_with_accepted)
        encoded = await self._encoder.encode(texts, key, request_id=query.request_id, left_s=call.left_s)
        check_vectors(call.served, encoded.vectors, encoded.space_id)
        if query.accepted:
            vectors = await asyncio.to_thread(_turned, call.served, encoded.vectors, call.accepted, EXPLAINED)
            encoded = replace(encoded, vectors=vectors)
        return encoded, time.perf_counter() - started

    async def _dense(self, call: RankCall, vectors: NDArray[np.float32], k: int) -> Ranking:
        """Finds the k nearest of each vector that are not left out.

        What an approximate engine overlooks depends on how many it is asked for, and must not depend on the other texts
        of the call: there each text is asked for its own number.
        """
        widths = [k + len(out) for out in call.left_out]
        if call.served.index.exact:
            widths = [max(widths)] * len(widths)
        groups = [[row for row, own in enumerate(widths) if own == width] for width in sorted(set(widths))]
        found: dict[int, SearchHits] = {}
        ranked = Ranking([])
        for rows in groups:
            outcome = await self._batcher.search(
                call.served,
                vectors[rows],
                widths[rows[0]],
                call.selection,
                effort=call.query.effort,
                deadline_s=call.left_s,
            )
            found |= dict(zip(rows, outcome.hits, strict=True))
            ranked = replace(
                ranked, queue_s=ranked.queue_s + outcome.queue_s, compute_s=ranked.compute_s + outcome.compute_s
            )
        hits = [found[row].without(out, k) for row, out in enumerate(call.left_out)]
        return replace(ranked, hits=hits)

    async def _by_words(self, call: RankCall, k: int) -> Ranking:
        lexical, allowed = lexical_of(call.served), await _allowed(call)
        is_iterative = call.query.mode == "ITERATIVE_LEXICAL"

        def work(row: int) -> SearchHits:
            terms = lexical.terms(call.query.texts[row], call.accepted_texts(row))
            mine = _without(allowed, call.left_out[row], call.served.index.rows)
            return lexical.iterate(terms, k, mine) if is_iterative else best(lexical.scores(terms), k, mine)

        return await self._in_executor(call, Ranking([]), work)

    async def _hybrid(self, call: RankCall, vectors: NDArray[np.float32], k: int) -> Ranking:
        lexical, allowed, query = lexical_of(call.served), await _allowed(call), call.query
        dense = await self._dense(call, vectors, self._pool)
        comes_again = query.negative_feedback and len(query.texts) * call.served.index.rows <= KEPT_SCORES

        def words_of(row: int) -> tuple[NDArray[np.float32], SearchHits]:
            if row in call.shared.words:
                return call.shared.words.pop(row)
            mine = _without(allowed, call.left_out[row], call.served.index.rows)
            scores = lexical.scores(lexical.terms(query.texts[row], call.accepted_texts(row)))
            found = scores, best(scores, self._pool, mine)
            if comes_again:
                call.shared.words[row] = found
            return found

        def work(row: int) -> SearchHits:
            scores, by_words = words_of(row)

            def cosines_of(added: NDArray[np.int64]) -> NDArray[np.float32]:
                return exact_scores(call.served.index.vectors[added], vectors[row].astype(np.float64))

            return fuse_hits(dense.hits[row], by_words, scores, cosines_of, query.lexical_weight, query.fusion, k)

        return await self._in_executor(call, dense, work)

    async def _with_prior(self, call: RankCall, ranked: Ranking, k: int) -> Ranking:
        """Re-ranks the pool with the prior's bonus for the text."""
        if call.prior is None:
            return ranked
        prior, query = call.prior, call.query

        def work(row: int) -> SearchHits:
            pool, near = ranked.hits[row], call.shared.near.get(row)
            if near is None:
                near = call.shared.near[row] = prior.hypotheses.nearest(query.texts[row])
            return with_bonus(pool, prior.bonus_by(near, pool.ordinals), query.prior, k)

        return await self._in_executor(call, ranked, work)

    async def _by_features(self, call: RankCall, vectors: NDArray[np.float32], ranked: Ranking, k: int) -> Ranking:
        """Orders the best premises anew by the weighted sum of their features."""
        allowed, query = await _allowed(call), call.query
        lexical = lexical_of(call.served) if query.mode == "HYBRID" else None

        def words_of(row: int, first: SearchHits) -> FirstWords | None:
            if lexical is None:
                return None
            mine = _without(allowed, call.left_out[row], call.served.index.rows)
            return FirstWords.of(lexical.terms(query.texts[row], call.accepted_texts(row)), first, lexical, mine)

        def work(row: int) -> SearchHits:
            hits = ranked.hits[row]
            first = hits.first(DEPTH)
            near = call.served.index.vectors[first.ordinals]
            found = features_of(first, words_of(row, first), vectors[row], near)
            return order_by(hits, found, query.features, k)

        return await self._in_executor(call, ranked, work)

    async def _in_executor(self, call: RankCall, ranked: Ranking, work: Callable[[int], SearchHits]) -> Ranking:
        """Runs `work` for each text in the executor; its hits replace those of `ranked`, its times add up."""
        hits, queue_s, compute_s = await self._executor.each(range(len(call.query.texts)), work, deadline=call.deadline)
        return replace(ranked, hits=hits, queue_s=ranked.queue_s + queue_s, compute_s=ranked.compute_s + compute_s)

    async def _reranked(self, call: RankCall, ranked: Ranking) -> Ranking:
        texts = await asyncio.to_thread(_texts_of, call.served, ranked.hits)
        started = time.perf_counter()
        hits, versions = await self._reranker.rerank(call.query, ranked.hits, texts, left_s=call.left_s)
        encode_s = ranked.encode_s + time.perf_counter() - started
        return replace(ranked, hits=hits, encode_s=encode_s, reranked_by=versions)


async def _allowed(call: RankCall) -> NDArray[np.bool_] | None:
    """The premises (rows,) that a call may return; None: all. A mask of a large corpus takes milliseconds."""
    return None if call.selection == ALL else await asyncio.to_thread(call.served.allowed, call.selection)


def _turned(
    served: ServedGeneration, vectors: NDArray[np.float32], ordinals: Sequence[Sequence[int]], share: float
) -> NDArray[np.float32]:
    """Subtracts from each vector (n, dim) a share of the mean of some premises' vectors. It reads from disk."""
    return rocchio_feedback(vectors, [served.index.vectors[list(own)] for own in ordinals], share)


def _texts_of(served: ServedGeneration, hits: Sequence[SearchHits]) -> list[list[str]]:
    """The premises' texts of each list. It reads from disk."""
    return [[served.generation.premises[n].text for n in one.ordinals.tolist()] for one in hits]


def lexical_of(served: ServedGeneration) -> LexicalIndex:
    """Returns the generation's lexical index. Raises FailedPrecondition when it was built without one."""
    if served.lexical is None:
        raise errors.FailedPrecondition(
            f"generation {served.id} of corpus {served.generation.corpus!r} has no lexical index; build it again with "
            "this version, or use mode DENSE"
        )
    return served.lexical


def _ordinals(served: ServedGeneration, text: int, ids: tuple[str, ...]) -> list[int]:
    """The premises accepted for one text, in the caller's order, each once."""
    known = served.generation.ordinal_by_id
    check_accepted(served, text, [premise_id for premise_id in ids if premise_id not in known])
    return list(dict.fromkeys(known[premise_id] for premise_id in ids))


def _without(allowed: NDArray[np.bool_] | None, left_out: list[int], rows: int) -> NDArray[np.bool_] | None:
    """Takes some premises off a mask."""
    if not left_out:
        return allowed
    mask = np.ones(rows, dtype=bool) if allowed is None else allowed.copy()
    mask[left_out] = False
    return mask

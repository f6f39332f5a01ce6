"""Premises for texts, in every mode: by the encoder's vectors, by words, or by both; then by prior and cross-encoder.

A text is encoded by the query encoder that the caller's label names in the space of the generation searched, so that a
corpus of another space needs no other call. What is scored in several ways is the best `pool` of each first ranking;
the pool does not depend on k, so that a longer list begins with the shorter one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.inner_products import exact_scores
from services.index.checks import check_dimension, check_space
from services.index.corpus import Selection, ServedGeneration
from services.index.encoding import EncodeKey, QueryEncoder
from services.index.engine import Outcome, SearchEngine
from services.index.explanations import Prior
from services.index.fusion import fuse, scaled
from services.index.lexical import LexicalIndex, best
from services.index.queries import WITHOUT_ENCODER, TextQuery
from services.index.reranking import Reranker
from services.index.search import Found
from services.index.words import Words

FEEDBACK = 5  # the premises that negative feedback looks at
EXPLAINED = 0.5  # how much of the mean of the premises accepted is taken off a query's vector (docs/experiments.md)


@dataclass(frozen=True)
class Ranked:
    """What was found for each text. Times in seconds; `version` encoded, `reranked_by` ordered anew ("": none did)."""

    found: list[Found]
    queue_s: float = 0.0
    compute_s: float = 0.0
    encode_s: float = 0.0
    version: str = ""
    reranked_by: str = ""


@dataclass(frozen=True)
class _Encoded:
    vectors: NDArray[np.float32]
    version: str
    encode_s: float


@dataclass(frozen=True)
class RankCall:
    """One call: what is asked, of which premises; by text, the ordinals of those `accepted` and to be `left_out`."""

    query: TextQuery
    served: ServedGeneration
    selection: Selection
    accepted: list[list[int]]
    left_out: list[list[int]]
    prior: Prior | None
    deadline: float | None  # on the clock of time.monotonic()

    @classmethod
    def of(
        cls,
        query: TextQuery,
        served: ServedGeneration,
        selection: Selection,
        deadline: float | None,
        prior: Prior | None = None,
    ) -> RankCall:
        """Looks the texts' own premises and those accepted up in the generation.

        Premises accepted before are not returned again. Raises InvalidArgument for one that the generation lacks.
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

    @property
    def left_s(self) -> float | None:
        """The time that is left, in seconds; None: no end."""
        return None if self.deadline is None else self.deadline - time.monotonic()


class Ranker:
    """Ranks premises."""

    def __init__(
        self, engine: SearchEngine, words: Words, encoder: QueryEncoder, reranker: Reranker, *, pool: int = 1000
    ) -> None:
        self._engine, self._words, self._encoder, self._reranker = engine, words, encoder, reranker
        self._pool = pool

    async def rank(self, call: RankCall) -> Ranked:
        """The best premises of each text. Raises what the encoder and the engines raise."""
        query = call.query
        k = query.rerank or query.scope.k
        if query.mode in WITHOUT_ENCODER:
            ranked = await self._by_words(call, self._depth(call, k))
            ranked = await self._with_prior(call, ranked, k)
        else:
            encoded = await self._encoded(call)
            vectors = encoded.vectors
            first = Ranked([])
            if query.negative_feedback:
                first = await self._by_vectors(call, vectors, FEEDBACK)
                best_first = [call.served.index.vectors[one.ordinals.tolist()] for one in first.found]
                vectors = without_mean(vectors, best_first, query.negative_feedback)
            ranked = await self._by_vectors(call, vectors, k)
            ranked = replace(
                ranked,
                queue_s=first.queue_s + ranked.queue_s,
                compute_s=first.compute_s + ranked.compute_s,
                encode_s=encoded.encode_s,
                version=encoded.version,
            )
        return await self._reranked(call, ranked) if query.rerank else ranked

    def _depth(self, call: RankCall, k: int) -> int:
        return self._pool if call.prior else k

    async def _by_vectors(self, call: RankCall, vectors: NDArray[np.float32], k: int) -> Ranked:
        """The k best by the vectors of the texts, or by vectors and words; then by the prior."""
        by = self._hybrid if call.query.mode == "HYBRID" else self._dense
        return await self._with_prior(call, await by(call, vectors, self._depth(call, k)), k)

    async def _encoded(self, call: RankCall) -> _Encoded:
        """The vectors of the texts, each with the premises accepted for it and less what those explain."""
        started, query = time.perf_counter(), call.query
        key = EncodeKey.of(query, call.served.generation.space_id)
        texts = [" ".join([text, *call.accepted_texts(row)]) for row, text in enumerate(query.texts)]
        encoded = await self._encoder.encode(texts, key, request_id=query.request_id, left_s=call.left_s)
        check_space(call.served, encoded.space_id)
        check_dimension(call.served, encoded.vectors.shape[1])
        vectors = encoded.vectors
        if query.accepted:
            accepted = [call.served.index.vectors[own] for own in call.accepted]
            vectors = without_mean(vectors, accepted, EXPLAINED)
        return _Encoded(vectors, encoded.version, time.perf_counter() - started)

    async def _dense(self, call: RankCall, vectors: NDArray[np.float32], k: int) -> Ranked:
        wanted = k + max(map(len, call.left_out))
        outcome: Outcome = await self._engine.search(
            call.served, vectors, wanted, call.selection, deadline_s=call.left_s
        )
        found = [_without(one, out, k) for one, out in zip(outcome.found, call.left_out, strict=True)]
        return Ranked(found, outcome.queue_s, outcome.compute_s)

    async def _by_words(self, call: RankCall, k: int) -> Ranked:
        lexical, allowed = lexical_of(call.served), call.served.allowed(call.selection)
        iterative = call.query.mode == "ITERATIVE_LEXICAL"

        def work(row: int) -> Found:
            terms = lexical.terms(call.query.texts[row], call.accepted_texts(row))
            mine = _but(allowed, call.left_out[row], call.served.index.rows)
            return lexical.iterate(terms, k, mine) if iterative else best(lexical.scores(terms), k, mine)

        return Ranked(*await self._words.each(range(len(call.query.texts)), work, deadline=call.deadline))

    async def _hybrid(self, call: RankCall, vectors: NDArray[np.float32], k: int) -> Ranked:
        lexical, allowed, query = lexical_of(call.served), call.served.allowed(call.selection), call.query
        dense = await self._dense(call, vectors, self._pool)

        def work(row: int) -> Found:
            mine = _but(allowed, call.left_out[row], call.served.index.rows)
            scores = lexical.scores(lexical.terms(query.texts[row], call.accepted_texts(row)))
            near = dense.found[row]
            added = np.setdiff1d(best(scores, self._pool, mine).ordinals, near.ordinals)
            cosines = exact_scores(call.served.index.vectors[added], vectors[row].astype(np.float64))
            ordinals = np.concatenate([near.ordinals, added])
            cosines = np.concatenate([near.scores, cosines])
            fused = fuse(cosines, scores[ordinals], query.lexical_weight, query.fusion)
            order = np.lexsort((ordinals, -fused))[:k]
            return Found(ordinals[order], fused[order], near.exact)

        found, queue_s, compute_s = await self._words.each(range(len(query.texts)), work, deadline=call.deadline)
        return replace(dense, found=found, queue_s=dense.queue_s + queue_s, compute_s=dense.compute_s + compute_s)

    async def _with_prior(self, call: RankCall, ranked: Ranked, k: int) -> Ranked:
        """The pool by the weighted sum of its scores, scaled to 0 to 1, and the prior's bonus for the text itself."""
        if call.prior is None:
            return ranked
        prior, share = call.prior, np.float32(call.query.prior)

        def work(row: int) -> Found:
            found = ranked.found[row]
            scores = (1 - share) * scaled(found.scores) + share * prior.bonus(call.query.texts[row])[found.ordinals]
            order = np.lexsort((found.ordinals, -scores))[:k]
            return Found(found.ordinals[order], scores[order].astype(np.float32), found.exact)

        texts = range(len(call.query.texts))
        found, queue_s, compute_s = await self._words.each(texts, work, deadline=call.deadline)
        return replace(ranked, found=found, queue_s=ranked.queue_s + queue_s, compute_s=ranked.compute_s + compute_s)

    async def _reranked(self, call: RankCall, ranked: Ranked) -> Ranked:
        premises = call.served.generation.premises
        texts = [[premises[n].text for n in one.ordinals.tolist()] for one in ranked.found]
        started = time.perf_counter()
        query = call.query
        found, version = await self._reranker.rerank(
            query.texts, ranked.found, texts, weight=query.rerank_weight, left_s=call.left_s
        )
        k, encode_s = query.scope.k, ranked.encode_s + time.perf_counter() - started
        found = [Found(one.ordinals[:k], one.scores[:k], one.exact) for one in found]
        return replace(ranked, found=found, encode_s=encode_s, reranked_by=version)


def lexical_of(served: ServedGeneration) -> LexicalIndex:
    """The generation's lexical index. Raises FailedPrecondition for one that was built without."""
    if served.lexical is None:
        raise errors.FailedPrecondition(
            f"generation {served.id} of corpus {served.generation.corpus!r} has no lexical index; build it again with "
            "this version, or use mode DENSE"
        )
    return served.lexical


def without_mean(vectors: NDArray[np.float32], premises: Sequence[NDArray[Any]], share: float) -> NDArray[np.float32]:
    """Query vectors less a share of the mean of premises' vectors (premises, dim), one array a query; of unit length.

    Taken off are premises accepted for the query, which stand in its text as well, or the best of a first ranking
    (Rocchio 1971 with a negative weight).
    """
    changed = vectors.copy()
    for row, own in enumerate(premises):
        if len(own):
            changed[row] -= np.float32(share) * own.mean(axis=0, dtype=np.float32)
            changed[row] /= np.linalg.norm(changed[row])
    return changed


def _ordinals(served: ServedGeneration, text: int, ids: tuple[str, ...]) -> list[int]:
    """The premises accepted for one text, in the caller's order, each once."""
    known = served.generation.ordinal_by_id
    for premise_id in ids:
        if premise_id not in known:
            raise errors.InvalidArgument.field(
                f"accepted[{text}].premise_ids",
                f"{premise_id!r} is no premise of generation {served.id}; send ids that Retrieve answered",
            )
    return list(dict.fromkeys(known[premise_id] for premise_id in ids))


def _without(found: Found, left_out: list[int], k: int) -> Found:
    keep = ~np.isin(found.ordinals, left_out)
    return Found(found.ordinals[keep][:k], found.scores[keep][:k], found.exact)


def _but(allowed: NDArray[np.bool_] | None, left_out: list[int], rows: int) -> NDArray[np.bool_] | None:
    """A selection without some premises."""
    if not left_out:
        return allowed
    mask = np.ones(rows, dtype=bool) if allowed is None else allowed.copy()
    mask[left_out] = False
    return mask

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
from services.index.checks import check_dimension, check_space
from services.index.corpus import Selection, ServedGeneration
from services.index.encoding import EncodeKey, QueryEncoder
from services.index.engine import Outcome, SearchEngine
from services.index.explanations import Prior
from services.index.fusion import fuse, scaled
from services.index.lexical import LexicalIndex, best
from services.index.products import exact_scores
from services.index.queries import TextQuery
from services.index.reranking import Reranker
from services.index.search import Found
from services.index.words import Words

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
        k = call.query.rerank or call.query.scope.k
        depth = self._pool if call.prior else k
        match call.query.mode:
            case "DENSE":
                ranked = (await self._dense(call, depth))[0]
            case "HYBRID":
                ranked = await self._hybrid(call, depth)
            case mode:
                ranked = await self._by_words(call, depth, iterative=mode == "ITERATIVE_LEXICAL")
        if call.prior is not None:
            ranked = await self._with_prior(call, ranked, call.prior, k)
        return await self._reranked(call, ranked) if call.query.rerank else ranked

    async def _dense(self, call: RankCall, k: int) -> tuple[Ranked, NDArray[np.float32]]:
        """The k nearest premises, and the vectors of the texts."""
        started, query = time.perf_counter(), call.query
        key = EncodeKey.of(query, call.served.generation.space_id)
        texts = [" ".join([text, *call.accepted_texts(row)]) for row, text in enumerate(query.texts)]
        encoded = await self._encoder.encode(texts, key, request_id=query.request_id, left_s=call.left_s)
        encode_s = time.perf_counter() - started
        check_space(call.served, encoded.space_id)
        check_dimension(call.served, encoded.vectors.shape[1])
        vectors = encoded.vectors
        if query.accepted:
            vectors = unexplained(vectors, [call.served.index.vectors[own] for own in call.accepted])
        wanted = k + max(map(len, call.left_out))
        outcome: Outcome = await self._engine.search(
            call.served, vectors, wanted, call.selection, deadline_s=call.left_s
        )
        found = [_without(one, out, k) for one, out in zip(outcome.found, call.left_out, strict=True)]
        return Ranked(found, outcome.queue_s, outcome.compute_s, encode_s, encoded.version), vectors

    async def _by_words(self, call: RankCall, k: int, *, iterative: bool) -> Ranked:
        lexical, allowed = lexical_of(call.served), call.served.allowed(call.selection)

        def work(row: int) -> Found:
            terms = lexical.terms(call.query.texts[row], call.accepted_texts(row))
            mine = _but(allowed, call.left_out[row], call.served.index.rows)
            return lexical.iterate(terms, k, mine) if iterative else best(lexical.scores(terms), k, mine)

        return Ranked(*await self._words.each(range(len(call.query.texts)), work, deadline=call.deadline))

    async def _hybrid(self, call: RankCall, k: int) -> Ranked:
        lexical, allowed, query = lexical_of(call.served), call.served.allowed(call.selection), call.query
        dense, vectors = await self._dense(call, self._pool)

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

    async def _with_prior(self, call: RankCall, ranked: Ranked, prior: Prior, k: int) -> Ranked:
        """The pool by the weighted sum of its scores, scaled to 0 to 1, and the prior's bonus for the text itself."""
        share = np.float32(call.query.prior)

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
        found, version = await self._reranker.rerank(call.query.texts, ranked.found, texts, left_s=call.left_s)
        k, encode_s = call.query.scope.k, ranked.encode_s + time.perf_counter() - started
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


def unexplained(vectors: NDArray[np.float32], accepted: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
    """Query vectors, each of a text with its premises accepted, less what those explain; of unit length again.

    `accepted` has the vectors (premises, dim) of those of each query.
    """
    changed = vectors.copy()
    for row, own in enumerate(accepted):
        if len(own):
            changed[row] -= EXPLAINED * own.mean(axis=0)
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

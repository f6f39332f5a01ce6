"""Evaluates as callers are served: a query encoder by its vectors, or a way to retrieve by the index's rankings.

EvaluationSpec ──► GoldStandard over a generation ──┬─ vectors ──► encoder ──► protocol.ranks_of ─┐
                                                    └─ retrieval ► index ───► IndexRanks ─────────┤
Evaluation ◄── parts seen in training, tree level ◄── Report ◄────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from aeenc.calls.retrieval import Hit, Rankings, Retrieval
from aeenc.encoder import EncoderClient
from aeenc.evaluation import UNRANKED
from aeenc.index import IndexClient
from aeenc.trees import EVERYTHING
from services.corpus.generation import Generation, open_generation
from services.kit.concurrency import run_in_thread
from services.kit.limits import Limits, check_count, check_texts
from services.store.artifacts import ArtifactStore
from services.trainer.evaluation.parts import (
    FIRST,
    GoldTree,
    Part,
    RankedPremises,
    TreeLevel,
    parts_seen,
    told_apart,
    tree_level,
    with_several_gold,
)
from services.trainer.evaluation.protocol import (
    EvaluationQuery,
    GoldStandard,
    Ranks,
    Report,
    merge_queries,
    ranks_of,
)
from services.trainer.registry.checkpoints import active_generation, is_cross_encoder

CHUNK = 240  # as many vectors of 4,096 values fit an answer
DEPTH = 1000  # premises of an index ranking; those beyond count as not retrieved
MAX_QUERIES = 20_000  # more than any test set of BEIR; an evaluation of as many takes some 50 MiB
MAX_GOLD = 250_000  # gold premises of all queries: 40 us each beside a ranking of 16,000, and 110 bytes
ANSWER_BYTES = 16  # of a query's ranks beside them, and more than they take
REPORT = 512  # as many queries as the rest of the report takes
RANK_BYTES = 4  # at most, of one rank in a message
MAX_BYTES = 16 * 1024 * 1024
PART = 64  # texts whose rankings are held at a time
MAX_WAITING = 8  # evaluations
READ_S = 60.0  # of one whose turn it is, until all its queries are there
RETRY_AFTER_S = 10.0


@dataclass(frozen=True)
class EvaluationSpec:
    """The system to evaluate, and the queries. Without `retrieval`: the encoder's vectors against all premises."""

    corpus: str
    queries: Sequence[EvaluationQuery]
    training: Sequence[EvaluationQuery] = ()
    trees: Sequence[GoldTree] = ()
    label: str | None = None
    version: str | None = None
    generation: str = ""
    retrieval: Retrieval | None = None
    ranks: bool = False
    strict_only: bool = False
    conditioned: bool = False  # by one premise of each query; with `retrieval`


@dataclass(frozen=True)
class Evaluation:
    """A report and what was evaluated. `with_ranks` if the caller wants ranks, too."""

    report: Report
    model_version: str
    generation: str
    rerank_versions: tuple[str, ...] = ()
    parts: Sequence[Part] = ()
    hypothesis_alone: TreeLevel | None = None
    gold_tree: TreeLevel | None = None
    with_ranks: bool = False


class Evaluator:
    """Runs evaluations one at a time, as each ranks the whole corpus for every query; at most MAX_WAITING wait.

    The next one starts once the last thread of the previous one has ended, even if its caller has gone. Only then are
    its queries read: those that wait hold none.
    """

    def __init__(self, store: ArtifactStore, encoder: EncoderClient, index: IndexClient, limits: Limits) -> None:
        self._store, self._encoder, self._index, self.limits = store, encoder, index, limits
        self._one = asyncio.Lock()
        self._admitted = 0  # the running one, and those that wait
        self._open = lru_cache(maxsize=2)(lambda corpus, generation: open_generation(store, corpus, generation))

    async def evaluate(self, read: Callable[[], Awaitable[EvaluationSpec]]) -> Evaluation:
        """Evaluates what is read, on distinct queries. A text too long for the model is cut, as training cuts it.

        Raises InvalidArgument for bad queries or trees, NotFound for an unknown corpus, Overloaded if too many wait,
        DeadlineExceeded for queries that take longer than READ_S to come, and what encoder and index raise.
        """
        if self._admitted > MAX_WAITING:
            raise errors.Overloaded(
                f"{MAX_WAITING} evaluations wait already, which is the limit; come back later",
                retry_after_s=RETRY_AFTER_S,
            )
        self._admitted += 1
        try:
            async with self._one:
                return await self._evaluate(await _read_in_time(read))
        finally:
            self._admitted -= 1

    async def _evaluate(self, spec: EvaluationSpec) -> Evaluation:
        spec, opened, standard = await run_in_thread(self._prepared, spec)
        ranked = IndexRanks(self._index, opened, spec.retrieval, spec.label, spec.version, spec.queries)
        if spec.retrieval is None:
            done = await self._by_vectors(spec, opened, standard)
            ranked.pin(done.model_version)
        elif spec.conditioned:
            done = await self._conditioned(ranked, opened, standard)
        else:
            done = await self._by_index(spec, ranked, opened, standard)
        if spec.training and not spec.conditioned:
            parts = await run_in_thread(parts_seen, standard, done.report, spec.training)
            done = replace(done, parts=parts)
        if spec.trees:
            texts = dict.fromkeys(text for tree in spec.trees for text in tree.queries)
            found = await ranked.scored(list(texts), FIRST)
            levels = partial(tree_level, spec.trees, found, opened.premises.ordinal_by_text)
            alone, along = [await run_in_thread(levels, along=way) for way in (False, True)]
            done = replace(done, hypothesis_alone=alone, gold_tree=along)
        return replace(done, with_ranks=spec.ranks)

    def _prepared(self, spec: EvaluationSpec) -> tuple[EvaluationSpec, Generation, GoldStandard]:
        """Checks an evaluation, opens its generation, and looks its texts up there."""
        # Naming the label keeps evaluations out of a canary's share.
        spec = replace(spec, queries=self._checked(spec), label=None if spec.version else spec.label or "stable")
        if spec.version and is_cross_encoder(self._store, spec.version):
            raise errors.FailedPrecondition(
                f"checkpoint {spec.version} is a cross-encoder, which gives no vectors; evaluate a sentence encoder"
            )
        if not spec.corpus:
            raise errors.InvalidArgument.field("config.corpus", "is empty; name a corpus of the index")
        opened = self._open(spec.corpus, spec.generation or active_generation(self._store, spec.corpus))
        if opened.is_folded:
            spec = _as_stored(spec, opened)
        standard = GoldStandard.of(spec.queries, opened.premises.ordinal_by_text, opened.premises.ordinal_by_id)
        _check_trees(spec.trees, opened)
        return spec, opened, standard

    async def _by_vectors(self, spec: EvaluationSpec, opened: Generation, standard: GoldStandard) -> Evaluation:
        """Ranks what one call of the encoder gives before the next, as all vectors may be gigabytes."""
        label, version = spec.label, spec.version
        strict: list[Ranks] = []
        paper: list[Ranks] = []
        for begin in range(0, len(standard.queries), CHUNK):
            part = standard.part(begin, begin + CHUNK)
            encoded = await self._encoder.encode(
                [query.text for query in part.queries],
                label=label,
                version=version,
                space_id=opened.space_id,
                truncate=True,
                precision="float32",
            )
            label, version = None, encoded.model_version  # the version of the first chunk encodes all
            ranked = await run_in_thread(ranks_of, part, encoded.vectors, opened.vectors)
            strict += ranked[0]
            paper += ranked[1]
        kept = None if spec.strict_only else paper
        report = await run_in_thread(Report.of, standard, strict, kept, candidates=len(opened.vectors))
        return Evaluation(report, version or "", opened.id)

    async def _by_index(
        self, spec: EvaluationSpec, ranked: IndexRanks, opened: Generation, standard: GoldStandard
    ) -> Evaluation:
        texts, k = [query.text for query in standard.queries], await self._depth()
        strict = await ranked.of_gold(texts, await run_in_thread(lambda: standard.kept), k)
        paper = None if spec.strict_only else await ranked.of_gold(texts, standard.gold, k, drop_self=False)
        report = await run_in_thread(Report.of, standard, strict, paper, candidates=len(opened.premises))
        return Evaluation(report, ranked.model_version, opened.id, ranked.rerank_versions)

    async def _conditioned(self, ranked: IndexRanks, opened: Generation, standard: GoldStandard) -> Evaluation:
        """Tells the index the gold premise that it ranks first, and evaluates the others."""
        several = await run_in_thread(with_several_gold, standard)
        texts, k = [query.text for query in several.queries], await self._depth()
        before = await ranked.of_gold(texts, several.gold, k)
        told, left, without = await run_in_thread(told_apart, several, before)
        accepted = await run_in_thread(lambda: [[opened.premises[ordinal].id] for ordinal in told])
        after = await ranked.of_gold(texts, left.gold, k, accepted=accepted)
        report, same = [
            await run_in_thread(Report.of, left, ranks, None, candidates=len(opened.premises))
            for ranks in (after, without)
        ]
        part = Part("NOT_CONDITIONED", same.strict, None, same.queries, same.pairs)
        return Evaluation(report, ranked.model_version, opened.id, ranked.rerank_versions, parts=[part])

    async def _depth(self) -> int:
        """Returns how many premises of a ranking the index gives."""
        return min(DEPTH, int((await self._index.info()).service.limits.k) or DEPTH)

    def _checked(self, spec: EvaluationSpec) -> list[EvaluationQuery]:
        trees = [text for tree in spec.trees for text in tree.queries]
        for name, texts in (("queries", [query.text for query in spec.queries]), ("trees", trees)):
            if texts:
                check_texts(texts, replace(self.limits, items=len(texts)), name)
        for position, query in enumerate(spec.queries):
            if query.accessible.only_ids:
                check_count(len(query.accessible.only_ids), self.limits, f"queries[{position}].only_ids")
        merged = merge_queries(spec.queries)
        premises = sum(len(query.gold) for query in merged)
        room = self.limits.message_bytes - ANSWER_BYTES * (REPORT + len(merged))
        most = room // (RANK_BYTES if spec.strict_only else 2 * RANK_BYTES)
        if spec.ranks and premises > most:
            raise errors.TooLarge(
                f"ranks of {premises:,} premises may not fit into one answer, which has room for at most {most:,}; "
                "send fewer queries, or ask for strict_only"
            )
        if spec.conditioned and spec.trees:
            raise errors.InvalidArgument.field(
                "trees", "have no conditioned evaluation; leave trees or conditioned out"
            )
        return merged

    async def close(self) -> None:
        """Closes the connections."""
        await asyncio.gather(self._encoder.channel.close(), self._index.channel.close())


async def _read_in_time(read: Callable[[], Awaitable[EvaluationSpec]]) -> EvaluationSpec:
    try:
        async with asyncio.timeout(READ_S):
            return await read()
    except TimeoutError:
        raise errors.DeadlineExceeded(
            f"the queries were not all there {READ_S:g} s after the evaluation's turn had come, and others wait; "
            "make them before the call"
        ) from None


def _as_stored(spec: EvaluationSpec, opened: Generation) -> EvaluationSpec:
    """The evaluation with the texts of gold premises that stand for theirs in a generation."""
    return replace(
        spec,
        queries=merge_queries(spec.queries, opened.stored),
        training=merge_queries(spec.training, opened.stored),
        trees=[replace(tree, leaves=tuple(map(opened.stored, tree.leaves))) for tree in spec.trees],
    )


def _check_trees(trees: Sequence[GoldTree], opened: Generation) -> None:
    for tree in trees:
        if not tree.leaves:
            raise errors.InvalidArgument(f"tree {tree.hypothesis[:80]!r} has no leaf; leave it out")
        for leaf in tree.leaves:
            if leaf not in opened.premises.ordinal_by_text:
                raise errors.InvalidArgument(
                    f"leaf {leaf[:80]!r} of tree {tree.hypothesis[:80]!r} is not in the corpus; build the corpus from "
                    "the data set that the trees come from"
                )


class IndexRanks:
    """One way to retrieve from one generation. The models that answer first answer everything.

    Raises what Retrieve raises, and FailedPrecondition if other models answer later.
    """

    def __init__(
        self,
        index: IndexClient,
        opened: Generation,
        retrieval: Retrieval | None,
        label: str | None = None,
        version: str | None = None,
        queries: Sequence[EvaluationQuery] = (),
    ) -> None:
        """`queries` say what is accessible to their texts; all is to others."""
        self._index, self._opened, self._retrieval = index, opened, retrieval
        self._accessible = {one.text: one.accessible for one in queries if one.accessible != EVERYTHING}
        self._label, self._version = label, version
        self._models: tuple[str, ...] | None = None

    @property
    def model_version(self) -> str:
        """The query encoder that has answered; empty for none."""
        return self._models[0] if self._models else ""

    @property
    def rerank_versions(self) -> tuple[str, ...]:
        """The cross-encoders that have answered; empty for none."""
        return self._models[1:] if self._models else ()

    def pin(self, version: str) -> None:
        """Replaces the label by a version; an empty one changes nothing."""
        if version:
            self._label, self._version = None, version

    async def of_gold(
        self,
        texts: Sequence[str],
        gold: Sequence[NDArray[np.int64]],
        k: int,
        *,
        drop_self: bool = True,
        accepted: Sequence[Sequence[str]] = (),
    ) -> list[Ranks]:
        """Ranks each text's gold ordinals among its first k premises, from 1; UNRANKED beyond."""
        ranks: list[Ranks] = []
        async for found in self._parts(texts, k, drop_self, accepted):
            mine = gold[len(ranks) : len(ranks) + len(found)]
            ranks += await run_in_thread(_ranks, found, self._opened, mine)
        return ranks

    async def ids(self, texts: Sequence[str], k: int) -> dict[str, list[str]]:
        """Returns the ids of the first k premises of each text, best first, without the text itself."""
        listed = [[hit.id for hit in hits] async for found in self._parts(texts, k) for hits in found]
        return dict(zip(texts, listed, strict=True))

    async def scored(self, texts: Sequence[str], k: int) -> dict[str, RankedPremises]:
        """Scores the first k premises of each text; by negated rank where scores of two texts are not comparable."""
        by_rank = self._retrieval is not None and self._retrieval.mode == "iterative_lexical"
        scored: list[RankedPremises] = []
        async for found in self._parts(texts, k):
            scored += await run_in_thread(_scored, found, self._opened, by_rank=by_rank)
        return dict(zip(texts, scored, strict=True))

    async def _parts(
        self, texts: Sequence[str], k: int, drop_self: bool = True, accepted: Sequence[Sequence[str]] = ()
    ) -> AsyncIterator[list[list[Hit]]]:
        for start in range(0, len(texts), PART):
            part = texts[start : start + PART]
            accessible = [self._accessible.get(text, EVERYTHING) for text in part] if self._accessible else ()
            found = await self._index.rankings(
                self._opened.corpus,
                part,
                k=k,
                retrieval=self._retrieval,
                label=self._label,
                version=self._version,
                generation=self._opened.id,
                drop_self=drop_self,
                accepted=accepted[start : start + PART],
                accessible=accessible,
            )
            self._check_same(found)
            self.pin(found.model_version)
            yield found.results

    def _check_same(self, found: Rankings) -> None:
        models = (found.model_version, *found.rerank_versions)
        if self._models is not None and models != self._models:
            before, now = (" and ".join(filter(None, one)) or "none" for one in (self._models, models))
            raise errors.FailedPrecondition(f"the models changed from {before} to {now} meanwhile; evaluate again")
        self._models = models


def _ranks(found: Sequence[Sequence[Hit]], opened: Generation, gold: Sequence[NDArray[np.int64]]) -> list[Ranks]:
    ranks = []
    for hits, mine in zip(found, gold, strict=True):
        rank_of = {hit.id: rank for rank, hit in enumerate(hits, start=1)}
        ids = [opened.premises[ordinal].id for ordinal in mine.tolist()]  # fewer than the hits
        ranks.append(np.array([rank_of.get(one, UNRANKED) for one in ids], dtype=np.int64))
    return ranks


def _scored(found: Sequence[Sequence[Hit]], opened: Generation, *, by_rank: bool) -> list[RankedPremises]:
    return [
        RankedPremises(
            np.array([opened.premises.ordinal_by_id[hit.id] for hit in hits], dtype=np.int32),
            -np.arange(len(hits), dtype=np.float64) if by_rank else np.array([hit.score for hit in hits]),
        )
        for hits in found
    ]

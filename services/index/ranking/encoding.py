"""Calls of the encoder: vectors of query texts (Encode), and a cross-encoder's scores of pairs (Score).

Texts of concurrent calls that ask for the same go out together. There is no delay timer: while `WINDOW` calls are at
the encoder, texts wait, and all that wait make up the next call. When the encoder refuses a call for one of its texts,
each caller's texts go out again alone, so that a bad text fails only its own caller.
"""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain

import numpy as np

from aeenc import errors
from aeenc.calls.encoding import Encoded, EncodeOptions, Precision, Scored
from aeenc.encoder import EncoderClient
from services.index.ranking.fusion import reranked
from services.index.values import QueueLimit, SearchHits, TextQuery
from services.kit import tracing
from services.kit.concurrency import cancel_all

ANSWER_SHARE = 0.9  # of the caller's time for the encoder, so that its failure still reaches the caller
GRACE = 1.05  # so that the call, which has the same time limit, can say itself why it failed
WINDOW = 2  # calls: one computing, one on its way
TOGETHER = 32  # texts; a longer call goes out alone
REMEDY = "; start it, retrieve in mode LEXICAL, or call Search with vectors"
PAIRS_A_CALL = 256
TEXTS_A_CALL = 240  # as many vectors of 4,096 values fit an answer
CALLS_AT_ONCE = 4


@dataclass(eq=False)
class _EncodeRequest:
    texts: tuple[str, ...]
    request_id: str
    deadline: float
    answer: asyncio.Future[Encoded]
    trace: tracing.Context = field(default_factory=tracing.here)


@dataclass(eq=False)
class _Queue:
    waiting: deque[_EncodeRequest] = field(default_factory=deque)
    senders: set[asyncio.Task[None]] = field(default_factory=set)


class QueryEncoder:
    """Encodes query texts. `on_change` receives the encoder's problem ("" once it answers).

    Texts go out together that ask for the same. Without `routing_key` the request id of the call's first text decides
    about the canary for all of them.
    """

    def __init__(
        self,
        client: EncoderClient,
        *,
        timeout_s: float = 10.0,
        max_queued: int = 4096,
        on_change: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._client, self._timeout_s, self._on_change = client, timeout_s, on_change
        self._queue, self._problem = QueueLimit(max_queued, "texts wait for the encoder"), ""
        self._queues: dict[tuple[EncodeOptions, bool], _Queue] = {}  # calls of several texts hold up none of one

    async def encode(
        self, texts: Sequence[str], key: EncodeOptions, request_id: str = "", left_s: float | None = None
    ) -> Encoded:
        """Encodes texts; the caller has `left_s` seconds left.

        Raises what the encoder raises; Unavailable naming the encoder when it does not answer, DeadlineExceeded,
        Overloaded when too many texts wait.
        """
        with self._queue.admitted(len(texts)):
            return await self._answer(texts, key, request_id, left_s)

    async def _answer(self, texts: Sequence[str], key: EncodeOptions, request_id: str, left_s: float | None) -> Encoded:
        timeout_s = self._timeout_s if left_s is None else min(self._timeout_s, left_s * ANSWER_SHARE)
        deadline = time.monotonic() + timeout_s
        asked = _EncodeRequest(tuple(texts), request_id, deadline, asyncio.get_running_loop().create_future())
        name = (key, len(texts) > 1)
        queue = self._queues.setdefault(name, _Queue())
        queue.waiting.append(asked)
        if len(queue.senders) < WINDOW:
            sender = asyncio.create_task(self._send(name, queue))
            queue.senders.add(sender)
        try:
            async with asyncio.timeout(timeout_s * GRACE):
                vectors = await asked.answer
        except (TimeoutError, errors.DeadlineExceeded) as error:
            raise _late(error, self._client.channel.target, timeout_s, self._timeout_s, "send fewer texts") from None
        except errors.Unavailable as error:
            target = self._client.channel.target
            self._report(f"no encoder answers at {target}; Retrieve by vectors is away, Search works")
            raise errors.Unavailable(
                f"the encoder at {target} does not answer ({error.message}){REMEDY}", retry_after_s=error.retry_after_s
            ) from None
        self._report("")
        return vectors

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._on_change(problem)

    async def close(self) -> None:
        """Cancels the calls under way."""
        await cancel_all(task for queue in self._queues.values() for task in queue.senders)

    async def _send(self, name: tuple[EncodeOptions, bool], queue: _Queue) -> None:
        try:
            while batch := _next(queue.waiting):
                await self._encode(name[0], batch)
        finally:  # at once: a new text must not rely on this task
            queue.senders.discard(asyncio.current_task())
            if not queue.senders:
                del self._queues[name]

    async def _encode(self, key: EncodeOptions, batch: list[_EncodeRequest]) -> None:
        try:
            encoded = await self._call(key, batch)
        except errors.InvalidArgument as error:
            if len(batch) == 1:
                _fail(batch, error)
            else:
                await asyncio.gather(*(self._encode(key, [asked]) for asked in batch))
            return
        except BaseException as error:
            _fail(batch, error if isinstance(error, Exception) else errors.Unavailable("the index is shutting down"))
            if not isinstance(error, Exception):
                raise
            return
        start = 0
        for asked in batch:
            part = encoded.vectors[start : start + len(asked.texts)]
            start += len(asked.texts)
            if not asked.answer.done():
                asked.answer.set_result(replace(encoded, vectors=part))

    async def _call(self, key: EncodeOptions, batch: list[_EncodeRequest]) -> Encoded:
        # The sender goes on from caller to caller: the call belongs to the first of the batch and links the others.
        others = [tracing.traceparent(asked.trace) for asked in batch[1:]]
        texts = [text for asked in batch for text in asked.texts]
        with tracing.shared("encode texts", batch[0].trace, others):
            try:
                return await self._ask(key, texts, batch)
            except errors.TooLarge as error:  # of a wide encoder: one answer does not hold the vectors of so many
                if len(texts) <= TEXTS_A_CALL or [one.field for one in error.violations] != ["texts"]:
                    raise
            parts = []
            for start in range(0, len(texts), TEXTS_A_CALL):
                parts.append(await self._ask(key, texts[start : start + TEXTS_A_CALL], batch))
                key = replace(key, label=None, version=parts[0].model_version)  # the first part's encodes all
            return replace(parts[0], vectors=np.concatenate([part.vectors for part in parts]))

    async def _ask(self, key: EncodeOptions, texts: Sequence[str], batch: list[_EncodeRequest]) -> Encoded:
        return await self._client.encode(
            texts,
            **asdict(key),
            request_id=batch[0].request_id,
            timeout_s=max(max(asked.deadline for asked in batch) - time.monotonic(), 0.001),
        )


def _next(waiting: deque[_EncodeRequest]) -> list[_EncodeRequest]:
    """Takes the callers whose texts go out together; skips those who have gone."""
    batch: list[_EncodeRequest] = []
    room = TOGETHER
    while waiting and (not batch or len(waiting[0].texts) <= room):
        asked = waiting.popleft()
        if not asked.answer.done():
            batch.append(asked)
            room -= len(asked.texts)
    return batch


def _fail(batch: Sequence[_EncodeRequest], error: Exception) -> None:
    for asked in batch:
        if not asked.answer.done():
            asked.answer.set_exception(error)


def _late(error: Exception, target: str, timeout_s: float, limit_s: float, fewer: str) -> errors.DeadlineExceeded:
    """The error for an encoder that had `timeout_s`: the setting's `limit_s`, or what was left of the caller's time."""
    why = f" ({error.message})" if isinstance(error, errors.AeencError) else ""
    remedy = f"raise AEENC_INDEX_ENCODE_TIMEOUT_S, or {fewer}" if timeout_s == limit_s else "allow more time"
    return errors.DeadlineExceeded(
        f"the encoder at {target} took longer than the {timeout_s:.3g} s that it had{why}; {remedy}"
    )


class Reranker:
    """Re-ranks by the encoder's Score: by what label `stable` names, or by versions; several are an ensemble."""

    def __init__(self, client: EncoderClient, *, timeout_s: float, max_queued: int) -> None:
        self._client, self._timeout_s = client, timeout_s
        self._queue = QueueLimit(max_queued, "texts wait for the cross-encoder")

    async def rerank(
        self,
        query: TextQuery,
        hits: Sequence[SearchHits],
        premises: Sequence[Sequence[str]],
        left_s: float | None,
    ) -> tuple[list[SearchHits], tuple[str, ...]]:
        """Re-ranks each text's hits and keeps the best k; returns the cross-encoders' versions as well.

        `premises` has the texts of `hits`. With a rerank_weight, the score is the hit's own plus so much of the
        cross-encoder's; with 0 it is the cross-encoder's; of an ensemble it is minus the sum of ranks. Raises what
        Score raises, Unavailable naming the encoder, FailedPrecondition when the cross-encoder changed meanwhile, or
        for a rerank_weight where the label names an ensemble; Overloaded when too many texts wait.
        """
        deadline = time.monotonic() + (math.inf if left_s is None else left_s * ANSWER_SHARE)
        score = functools.partial(self._in_one_precision, query, premises, deadline)
        with self._queue.admitted(len(hits)):
            scored = await score(query.rerank_versions or (None,))
            ensemble = next((part.ensemble for parts in scored for part in parts), ())
            if ensemble and query.rerank_weight:
                raise errors.FailedPrecondition(
                    f"label 'stable' names an ensemble of {', '.join(ensemble)}, ranked by its sum of ranks alone; "
                    "set rerank_weight to 0"
                )
            if ensemble:
                scored += await score(ensemble[1:])
        versions = list(dict.fromkeys(part.model_version for parts in scored for part in parts))
        if len(versions) > len(ensemble or query.rerank_versions or (None,)):
            raise errors.FailedPrecondition(
                f"the cross-encoder changed from {' to '.join(sorted(versions))} meanwhile; ask again"
            )
        ranked = []
        for row, one in enumerate(hits):
            each = [np.concatenate([part.scores for part in parts]) for parts in scored[row :: len(hits)] if parts]
            ranked.append(reranked(one, each, query.scope.k, query.rerank_weight))
        return ranked, tuple(versions)

    async def _in_one_precision(
        self, query: TextQuery, premises: Sequence[Sequence[str]], deadline: float, models: Sequence[str | None]
    ) -> list[list[Scored]]:
        """Scores as `_score`, all pairs of a model in one precision: in single where the encoders' own differ.

        A precision of queries below single is not asked of pairs: a cross-encoder may lack it.
        """
        precision: Precision | None = "float32" if query.precision == "float32" else None
        scored = await self._score(query, premises, deadline, models, precision)
        for row, model in enumerate(models):
            of_model = slice(row * len(premises), (row + 1) * len(premises))
            if len({part.precision for parts in scored[of_model] for part in parts}) > 1:
                scored[of_model] = await self._score(query, premises, deadline, (model,), "float32")
        return scored

    async def _score(
        self,
        query: TextQuery,
        premises: Sequence[Sequence[str]],
        deadline: float,
        models: Sequence[str | None],
        precision: Precision | None,
    ) -> list[list[Scored]]:
        """Scores each text's premises by each model, in parts; in the order of the models, then of the texts."""
        timeout_s = min(self._timeout_s, deadline - time.monotonic())
        turn = asyncio.Semaphore(CALLS_AT_ONCE)

        async def score(text: str, part: Sequence[str], version: str | None) -> Scored:
            async with turn:
                return await self._client.score(
                    text,
                    part,
                    version=version,
                    truncate=True,
                    first_of_ensemble=version is None,
                    precision=precision,
                    timeout_s=max(min(timeout_s, deadline - time.monotonic()), 0.001),
                )

        calls = [
            [score(text, own[start : start + PAIRS_A_CALL], model) for start in range(0, len(own), PAIRS_A_CALL)]
            for model in models
            for text, own in zip(query.texts, premises, strict=True)
        ]
        tasks = [[asyncio.create_task(call) for call in each] for each in calls]
        try:
            await asyncio.gather(*chain.from_iterable(tasks))
        except errors.DeadlineExceeded as error:
            target = self._client.channel.target
            raise _late(error, target, timeout_s, self._timeout_s, "re-rank fewer premises") from None
        except errors.Unavailable as error:
            raise errors.Unavailable(
                f"the encoder at {self._client.channel.target} does not answer Score ({error.message}); start it, or "
                "set rerank to 0",
                retry_after_s=error.retry_after_s,
            ) from None
        finally:
            await cancel_all(chain.from_iterable(tasks))
        return [[task.result() for task in each] for each in tasks]

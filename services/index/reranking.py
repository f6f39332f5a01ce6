"""The first premises of a ranking in the order of a cross-encoder's scores, alone or added to the ranking's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from aeenc import errors
from aeenc.calls.encoding import Scored
from aeenc.encoder import EncoderClient
from services.index.encoding import ANSWER_SHARE
from services.index.search import Found

PAIRS = 256  # a call
AT_ONCE = 4  # calls


class Reranker:
    """Asks the encoder's Score. It serves one cross-encoder, whatever encoded the texts."""

    def __init__(self, client: EncoderClient, *, timeout_s: float = 10.0) -> None:
        self._client, self._timeout_s = client, timeout_s

    async def rerank(
        self,
        texts: Sequence[str],
        found: Sequence[Found],
        premises: Sequence[Sequence[str]],
        *,
        weight: float,
        left_s: float | None,
    ) -> tuple[list[Found], str]:
        """Each text's list by (score descending, ordinal ascending), and the cross-encoder's version.

        `premises` has the texts of `found`. With a `weight` the score is that of `found` plus so much of the
        cross-encoder's; with 0 it is the cross-encoder's. Raises what Score raises, Unavailable naming the encoder,
        FailedPrecondition when the cross-encoder changed in between.
        """
        timeout_s = self._timeout_s if left_s is None else min(self._timeout_s, left_s * ANSWER_SHARE)
        turn = asyncio.Semaphore(AT_ONCE)

        async def score(text: str, part: Sequence[str]) -> Scored:
            async with turn:
                return await self._client.score(text, part, truncate=True, timeout_s=max(timeout_s, 0.001))

        calls = [
            [score(text, own[start : start + PAIRS]) for start in range(0, len(own), PAIRS)]
            for text, own in zip(texts, premises, strict=True)
        ]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [[group.create_task(call) for call in each] for each in calls]
        except* errors.AeencError as failed:
            raise _named(failed, self._client.channel.target) from None
        scored = [[task.result() for task in each] for each in tasks]
        versions = {part.model_version for each in scored for part in each}
        if len(versions) > 1:
            raise errors.FailedPrecondition(
                f"the cross-encoder changed from {' to '.join(sorted(versions))} meanwhile; ask again"
            )
        return [
            _ordered(one, parts, weight) for one, parts in zip(found, scored, strict=True)
        ], versions.pop() if versions else ""


def _ordered(found: Found, parts: Sequence[Scored], weight: float) -> Found:
    if not parts:
        return found
    scores = np.concatenate([part.scores for part in parts])
    if weight:
        scores = (found.scores + weight * scores.astype(np.float64)).astype(np.float32)
    order = np.lexsort((found.ordinals, -scores))
    return Found(found.ordinals[order], scores[order], found.exact)


def _named(failed: BaseExceptionGroup[BaseException], target: str) -> errors.AeencError:
    error = failed.exceptions[0]
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, errors.AeencError)
    if isinstance(error, errors.Unavailable):
        return errors.Unavailable(
            f"the encoder at {target} does not answer Score ({error.message}); start it, or set rerank to 0",
            retry_after_s=error.retry_after_s,
        )
    return error

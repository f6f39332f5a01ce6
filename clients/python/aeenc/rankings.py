"""Long rankings of many texts: call after call of Retrieve, as evaluations and run files need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aeenc import errors
from aeenc.found import Fusion, Hit, Mode
from aeenc.v1 import trainer_pb2

if TYPE_CHECKING:
    from aeenc.index import IndexClient

TEXTS = 16  # a call, so that its answer stays well below a message's limit
PAIRS = 512  # a call that re-ranks, about
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Retrieval:
    """How Retrieve finds premises; `conditioned` is for evaluations, which tell it one premise of each query."""

    mode: Mode = "dense"
    fusion: Fusion | None = None
    prior: float = 0.0
    rerank: int = 0
    conditioned: bool = False
    negative_feedback: float = 0.0
    rerank_weight: float = 0.0

    def to_proto(self) -> trainer_pb2.RetrievalOptions:
        """As it travels to an evaluation."""
        return trainer_pb2.RetrievalOptions(
            mode=f"RETRIEVE_MODE_{self.mode.upper()}",
            fusion=self.fusion.to_proto() if self.fusion else None,
            prior=self.prior,
            rerank=self.rerank,
            conditioned=self.conditioned,
            negative_feedback=self.negative_feedback,
            rerank_weight=self.rerank_weight,
        )


@dataclass(frozen=True)
class Rankings:
    """The premises found for each text, best first, all by one query encoder and one cross-encoder ("": none)."""

    results: list[list[Hit]]
    model_version: str
    rerank_version: str


@dataclass(frozen=True)
class RankingCall:
    """What is ranked, by what."""

    corpus: str
    retrieval: Retrieval
    label: str | None
    version: str | None
    generation: str
    drop_self: bool


async def rank(
    index: IndexClient, call: RankingCall, texts: Sequence[str], k: int, accepted: Sequence[Sequence[str]] = ()
) -> Rankings:
    """The first k premises for each text. With a re-ranking, its n first and then the others in the order they had.

    Texts that are too long are cut. Raises what Retrieve raises, FailedPrecondition when the cross-encoder changes.
    """
    n = call.retrieval.rerank
    if not n:
        return await _ask(index, call, texts, k, TEXTS, accepted)
    plain = replace(call, retrieval=replace(call.retrieval, rerank=0, rerank_weight=0.0))
    first = await _ask(index, plain, texts, k, TEXTS, accepted)
    pinned = replace(call, version=first.model_version or call.version)
    anew = await _ask(index, pinned, texts, n, max(1, PAIRS // n), accepted)
    results = [_continued(head, whole)[:k] for head, whole in zip(anew.results, first.results, strict=True)]
    return Rankings(results, first.model_version, anew.rerank_version)


async def _ask(
    index: IndexClient,
    call: RankingCall,
    texts: Sequence[str],
    k: int,
    together: int,
    accepted: Sequence[Sequence[str]],
) -> Rankings:
    results: list[list[Hit]] = []
    version, reranked_by = call.version, ""
    for start in range(0, len(texts), together):
        answer = await index.retrieve(
            call.corpus,
            texts[start : start + together],
            k=k,
            label=None if version else call.label,
            version=version,
            mode=call.retrieval.mode,
            fusion=call.retrieval.fusion,
            accepted=accepted[start : start + together],
            prior=call.retrieval.prior,
            negative_feedback=call.retrieval.negative_feedback,
            rerank=call.retrieval.rerank,
            rerank_weight=call.retrieval.rerank_weight,
            drop_self=call.drop_self,
            generation=call.generation,
            truncate=True,
            precision="float32",
            timeout_s=TIMEOUT_S,
        )
        version = answer.model_version or version  # all by the version that answered first
        if reranked_by and answer.rerank_version != reranked_by:
            raise errors.FailedPrecondition(
                f"the cross-encoder changed from {reranked_by} to {answer.rerank_version} meanwhile; ask again"
            )
        reranked_by = answer.rerank_version
        results += answer.results
    return Rankings(results, version or "", reranked_by)


def _continued(head: list[Hit], whole: list[Hit]) -> list[Hit]:
    """A re-ranked head, then what else the first ranking has, with scores that go on below the head's."""
    seen = {hit.id for hit in head}
    lowest = min((hit.score for hit in head), default=0.0)
    rest = [hit for hit in whole if hit.id not in seen]
    return [*head, *(Hit(hit.id, hit.text, lowest - place) for place, hit in enumerate(rest, start=1))]

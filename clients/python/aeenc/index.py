"""The index's client: vectors or texts in, premises out; and builds of generations."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, Unpack

from aeenc import errors, values, vectors
from aeenc.calls.encoding import truncation
from aeenc.calls.inputs import (
    begins_again,
    listed,
    refuse_unknown,
)
from aeenc.calls.premises import build_requests, explanation_requests, premise_messages
from aeenc.calls.retrieval import (
    SEARCH_OPTIONS,
    Rankings,
    Retrieval,
    Retrieved,
    RetrieveKeywords,
    RetrieveOptions,
    SearchKeywords,
    SearchResult,
    rank,
)
from aeenc.calls.rpc import ServiceClient, rpc, value
from aeenc.transport.channel import AWAY, PASSING, Sent, pause_s
from aeenc.transport.checks import check_seconds
from aeenc.v1 import index_pb2, index_pb2_grpc, types_pb2
from aeenc.values.writing import message, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from aeenc.calls.inputs import Items
    from aeenc.calls.premises import PremiseForm
    from aeenc.trees import Accessible

BUILD_TIMEOUT_S = 24 * 3600.0
RANKING_TIMEOUT_S = 300.0  # of each call of many
VERIFY_TIMEOUT_S = 3600.0  # every byte is read
RESUME_S = 60.0
BuildStage = Literal["receiving", "indexing"]


class IndexClient(ServiceClient):
    """Calls IndexService and IndexAdminService. Raises the classes of `aeenc.errors`."""

    _services = (index_pb2_grpc.IndexServiceStub, index_pb2_grpc.IndexAdminServiceStub)

    async def search(
        self,
        corpus: str,
        queries: NDArray[np.floating],
        *,
        space_id: str,
        timings: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[SearchKeywords],
    ) -> SearchResult:
        """Finds the k nearest premises (default: 10) of each row of `queries` (n, dim), which belong to `space_id`.

        `exact` searches exactly with any engine; `nprobe` and `ef_search` tune approximate ones (0: as built).
        `timings` asks how long each part took. `exclude`, `splits`, `only_ids`, `before_id`, `tags` and `generation` as
        in `retrieve`.
        """
        refuse_unknown(options, SEARCH_OPTIONS, "search")
        request = message(
            index_pb2.SearchRequest,
            corpus=corpus,
            vectors=vectors.to_proto(queries),
            space_id=space_id,
            timings=timings,
            **RetrieveOptions(**options).of_search(),
        )
        response = await self.channel.unary(self._stub.Search, request, timeout_s=timeout_s, hedge=True)
        return SearchResult(
            ids=[list(hits.premise_ids) for hits in response.results],
            scores=[vectors.floats(hits.scores) for hits in response.results],
            generation=response.generation,
            space_id=response.space_id,
            exact=response.exact,
            timings=values.Timings.from_message(response.timings) if timings else None,
        )

    async def retrieve(
        self,
        corpus: str,
        texts: Sequence[str],
        *,
        retrieval: Retrieval | None = None,
        accepted: Sequence[Sequence[str]] = (),
        timeout_s: float | None = None,
        **options: Unpack[RetrieveKeywords],
    ) -> Retrieved:
        """Finds the k premises that best explain each text, k from 1 to 1,000, 10 by default.

        `label` or `version` names the query encoder (default: label `stable`), `generation` what is searched (default:
        the active one). `exclude` are ids never to return. A filter restricts the others: `splits` to premises of these
        splits or of none, `only_ids` to these, `before_id` to those inserted before it, `tags` to those that fit one of
        the clauses: "physics,-draft" asks for the tag physics without the tag draft. A filter that is None does
        not apply; an empty list is refused. `drop_self` leaves out a premise whose text is the query's. A text too
        long for the model is refused unless `truncate` cuts it.

        `mode` matches texts by the encoder, by words, or by both, combined by `fusion`. With `accepted` (ids by text),
        retrieval seeks premises for what the accepted ones leave unexplained. `prior` is the share, from 0 to 1, of
        premises that explained similar hypotheses (`put_explanations`). A cross-encoder re-ranks the first `rerank`
        premises, at least k, by its score alone or, with `rerank_weight`, by their first score plus this weight times
        its own; of `rerank_versions`, 1 to 8 that labels name, several re-rank by the sum of their ranks.
        `negative_feedback` subtracts this share of the mean vector of the five best premises from the query and ranks
        again; 0.1 is a good start. `precision` and `routing_key` are those of the encoder's calls. `exact`, `nprobe`
        and `ef_search` are those of `search`. `retrieval` holds options to ask with often; those beside it go before.

        Raises NotFound for an unknown corpus, generation or id of the filter, VersionNotLoaded for a label or version
        that no encoder serves, InvalidArgument for an option out of range, FailedPrecondition where the corpus lacks
        what the mode needs, such as words or explanations.
        """
        request = RetrieveOptions.of(retrieval, options).request(corpus, texts, accepted)
        return await self._retrieved(request, timeout_s)

    async def _retrieved(self, request: index_pb2.RetrieveRequest, timeout_s: float | None) -> Retrieved:
        response = await self.channel.unary(self._stub.Retrieve, request, timeout_s=timeout_s, hedge=True)
        return Retrieved.of(response)

    async def rankings(
        self,
        corpus: str,
        texts: Sequence[str],
        *,
        retrieval: Retrieval | None = None,
        accepted: Sequence[Sequence[str]] = (),
        accessible: Sequence[Accessible] = (),
        **options: Unpack[RetrieveKeywords],
    ) -> Rankings:
        """Ranks the first k premises for any number of texts, by as many calls of Retrieve as it takes.

        One version and one generation answer them all, also where a label moves or a generation is activated meanwhile.
        Options as in `retrieve`, but that texts too long are cut, and that k is 1,000 and precision float32 unless
        given, or unless `retrieval` is a RetrieveOptions, which has both. `accessible` has for each text what may be
        found for it, none: all.
        """
        usual = {} if isinstance(retrieval, RetrieveOptions) else {"k": 1000, "precision": "float32"}
        asked = RetrieveOptions.of(retrieval, {**usual, **options})
        return await rank(
            lambda request: self._retrieved(request, RANKING_TIMEOUT_S), corpus, asked, texts, accepted, accessible
        )

    @rpc(
        index_pb2.GetPremisesRequest,
        value("Premise", "premises"),
        hedge=True,
    )
    async def get_premises(self, corpus: str, ids: Sequence[str], *, generation: str = "") -> list[values.Premise]:
        """Looks premises up by id or alias, in the order of `ids`."""

    @rpc(index_pb2.ListPremisesRequest, value("Premise"), pages="premises")
    def list_premises(
        self, corpus: str, *, generation: str = "", page_size: int = 1024
    ) -> AsyncIterator[values.Premise]:
        """Yields all premises of a generation in the order of insertion.

        A page of `page_size` is fetched when it is needed.
        """

    async def build(
        self,
        corpus: str,
        premises: Iterable[PremiseForm] | AsyncIterable[PremiseForm],
        *,
        activate: bool = True,
        request_id: str = "",
        base_generation: str = "",
        delete_ids: Sequence[str] = (),
        fold_similar: bool | None = None,
        space_id: str = "",
        truncate: bool = False,
        on_progress: Callable[[int, int, BuildStage], None] | None = None,
        timeout_s: float = BUILD_TIMEOUT_S,
        resume_s: float = RESUME_S,
    ) -> values.Generation:
        """Builds a generation of texts, pairs (id, text) and premises, by default activating it.

        A text without an id gets `aeenc.trees.content_id` of it, and counts once where it is repeated.
        `on_progress(received, encoded, stage)` is called often; in stage "receiving" the index takes and encodes
        premises, in "indexing" it has them all.

        `fold_similar` merges texts that differ only in case, articles, punctuation or Unicode form into the first of
        them, and False equal texts alone; None does as the base generation did (without one: as False). `space_id` is
        the space of the premises' vectors (default: the encoder's own). A premise too long for the model is refused
        unless `truncate`: then its vector is that of its beginning, and `notes` counts such ones.

        The index keeps the premises that it has acknowledged as durable. While it is away, full, or without progress,
        this call resumes after them for up to `resume_s`, unless `premises` is an iterator, which cannot begin again.
        With a `request_id` of yours, another call with the same id and premises resumes, too. Raises Unavailable with
        the encoder's reason when the encoder does not serve, within half of the time that is left, and as any call does
        (`Retry.away_s`) when no index answers from the start.
        """
        header = message(
            index_pb2.BuildHeader,
            corpus=corpus,
            request_id=request_id or (uuid.uuid4().hex if begins_again(premises) else ""),
            base_generation=base_generation,
            delete_ids=delete_ids,
            activate=activate,
            space_id=space_id,
            truncate=truncation(truncate),
            folding=None if fold_similar is None else "normalized" if fold_similar else "exact",
        )
        resume_s = check_seconds(resume_s, "resume_s") if resume_s != 0 else 0.0
        generation = index_pb2.Generation()
        async for progress in self._built(header, premises, check_seconds(timeout_s), resume_s):
            if on_progress is not None:
                is_indexing = progress.stage == index_pb2.BUILD_STAGE_INDEXING
                on_progress(progress.received, progress.encoded, "indexing" if is_indexing else "receiving")
            if progress.HasField("generation"):
                generation = progress.generation
        return values.Generation.from_message(generation)

    async def _built(
        self, header: index_pb2.BuildHeader, premises: Items[PremiseForm], timeout_s: float, resume_s: float
    ) -> AsyncIterator[index_pb2.BuildGenerationResponse]:
        """Yields the progress of a build, resuming as `build` does, but not after what the premises raise."""
        deadline, stuck_since, reached = time.monotonic() + timeout_s, 0.0, 0
        has_answered, in_vain = False, 0
        while True:
            before = reached
            sent = Sent(build_requests(header, premises, header.resume_from))
            heard_at = time.monotonic()
            left_s = max(deadline - heard_at, 0.001)
            try:
                async for progress in self._admin_channel.stream(
                    self._admin.BuildGeneration, sent.messages(), timeout_s=left_s
                ):
                    heard_at, has_answered = time.monotonic(), True
                    reached = max(reached, progress.durable + progress.encoded)
                    header.resume_from = max(header.resume_from, progress.durable)
                    yield progress
                return
            except PASSING as error:
                sent.reraise()
                in_vain = 0 if reached > before else in_vain + 1
                now, wait_s = time.monotonic(), pause_s(in_vain, error)
                if reached > before or not stuck_since:
                    stuck_since = heard_at
                has_answered |= error.reason != AWAY
                patience_s = resume_s if has_answered else min(resume_s, self._admin_channel.retry.away_s)
                is_over = max(now - stuck_since, wait_s) >= min(patience_s, deadline - now)
                if is_over or not begins_again(premises):
                    raise  # the reason, rather than let the time run out
            await asyncio.sleep(wait_s)

    async def add(
        self,
        corpus: str,
        premises: Iterable[PremiseForm] | AsyncIterable[PremiseForm],
        *,
        truncate: bool = False,
    ) -> values.Generation:
        """Adds premises, given as for `build`, to what is active: builds a generation of both and activates it.

        Those that are there already change nothing. The generation before stays until it is deleted, so that one call
        with many premises is better than many calls. Raises NotFound for a corpus that does not serve, InvalidArgument
        for an id that is taken by another premise, Aborted where somebody else has activated a generation meanwhile:
        theirs stays as it is, and the call may be made again. `truncate` is that of `build`.
        """
        base = await self._active(corpus)
        given = [one async for one in premise_messages(premises)]
        ids = {one.id for one in given}
        known = {one.id: one async for one in self.list_premises(corpus, generation=base.id) if one.id in ids}
        new = [one for one in given if not _has(known.get(one.id), one)]
        return await self._changed(corpus, base, new, truncate=truncate) if new else base

    async def remove(self, corpus: str, ids: Sequence[str]) -> values.Generation:
        """Removes premises by id or alias from what is active: builds a generation without them and activates it.

        A premise stays as long as it has an id left. Raises as `add` does, InvalidArgument for an unknown id, and for
        all ids of a corpus, which `delete_corpus` deletes.
        """
        removed = listed(ids, "ids")
        base = await self._active(corpus)
        return await self._changed(corpus, base, [], removed) if removed else base

    async def _active(self, corpus: str) -> values.Generation:
        """Finds the active generation. Raises NotFound, naming the corpora that have one."""
        serving = [one async for one in self.list_corpora() if one.active.id]
        for one in serving:
            if one.corpus == corpus:
                return one.active
        names = ", ".join(sorted(one.corpus for one in serving)) or "none"
        raise errors.NotFound(f"no corpus {shown(corpus)} serves; build it first, or choose among: {names}")

    async def _changed(
        self,
        corpus: str,
        base: values.Generation,
        added: list[types_pb2.Premise],
        removed: Sequence[str] = (),
        truncate: bool = False,
    ) -> values.Generation:
        """Builds a generation upon a base and activates it if that is still the active one. Else leaves nothing."""
        built = await self.build(
            corpus, added, base_generation=base.id, delete_ids=removed, truncate=truncate, activate=False
        )
        try:
            return (await self.activate(corpus, built.id, expected=base.id)).active
        except errors.Aborted as error:
            active = await self._active(corpus)
            if active.id == built.id:  # somebody else has made the same change
                return active
            with suppress(errors.AeencError):  # somebody else holds it
                await self.delete(corpus, built.id)
            raise errors.Aborted(
                f"corpus {corpus!r} has changed meanwhile, from generation {base.id} to {active.id}; call again"
            ) from error

    @rpc(index_pb2.ActivateGenerationRequest, value("Activation"), timeout_s=600.0)
    async def activate(
        self, corpus: str, generation: str, *, expected: str | None = None, request_id: str = ""
    ) -> values.Activation:
        """Makes searches use a generation, or none (""). With `expected`, only if that one is active now."""

    @rpc(index_pb2.ListCorporaRequest, value("CorpusInfo"), pages="corpora")
    def list_corpora(self, *, page_size: int = 1000) -> AsyncIterator[values.CorpusInfo]:
        """Yields all corpora by name, with their active generations.

        A page of `page_size`, 1 to 1,000, is fetched when it is needed.
        """

    @rpc(index_pb2.ListGenerationsRequest, value("Generation"), pages="generations")
    def list_generations(self, corpus: str, *, page_size: int = 1000) -> AsyncIterator[values.Generation]:
        """Yields all generations of a corpus, newest first.

        A page of `page_size`, 1 to 1,000, is fetched when it is needed.
        """

    @rpc(
        index_pb2.VerifyGenerationRequest,
        value("Generation", "generation"),
        timeout_s=VERIFY_TIMEOUT_S,
    )
    async def verify(self, corpus: str, generation: str = "") -> values.Generation:
        """Checks every file of a generation, by default of the active one, and changes nothing.

        Raises DataLoss for a damaged one, whose message names a file. Its `metadata` has `generation`, `space_id`,
        `active` and `damaged`, as far as the index knows them: the damaged files separated by commas.
        """

    @rpc(index_pb2.DeleteGenerationRequest)
    async def delete(self, corpus: str, generation: str, *, despite: Sequence[str] = (), request_id: str = "") -> None:
        """Deletes a generation that is not active.

        Raises FailedPrecondition while somebody holds it whom `despite` does not name; a run named there cannot go on.
        """

    async def delete_corpus(self, corpus: str, *, despite: Sequence[str] = ()) -> None:
        """Deletes a corpus with all generations and explanations. It cannot be had back.

        Raises FailedPrecondition, and changes nothing, while somebody holds a generation whom `despite` does not name;
        Aborted where another generation becomes active meanwhile; NotFound for an unknown corpus. A call that was cut
        off may be made again. What is built meanwhile stays.
        """
        spared = listed(despite, "despite")
        found = [one async for one in self.list_generations(corpus)]
        if held := sorted({holder for one in found for holder in one.held_by if holder not in spared}):
            raise errors.FailedPrecondition(
                f"corpus {corpus!r} is held by {', '.join(held)}; wait until they have ended, or name them in despite "
                "(--despite)"
            )
        await self.put_explanations(corpus, [], replace=True)
        await self.activate(corpus, "", expected=next((one.id for one in found if one.active), None))
        for one in found:
            with suppress(errors.NotFound):  # somebody else does the same
                await self.delete(corpus, one.id, despite=spared)

    @rpc(index_pb2.HoldGenerationRequest)
    async def hold(self, corpus: str, generation: str, holder: str) -> None:
        """Keeps a generation from deletion until `release` with the same holder, a name such as `run-<id>`."""

    @rpc(index_pb2.ReleaseGenerationRequest)
    async def release(self, corpus: str, generation: str, holder: str) -> None:
        """Ends a hold, if there is one."""

    async def put_explanations(
        self,
        corpus: str,
        explanations: Iterable[tuple[str, Sequence[str]]] | AsyncIterable[tuple[str, Sequence[str]]],
        *,
        replace: bool = False,
    ) -> int:
        """Stores for `prior` which premises (ids) explained which hypotheses (texts); returns how many are known now.

        Adds to the premises of known hypotheses; with `replace`, drops everything stored before.
        """
        header = message(index_pb2.ExplanationsHeader, corpus=corpus, replace=replace)
        response = await self._admin_channel.send_stream(
            self._admin.PutExplanations,
            lambda: explanation_requests(header, explanations),
            timeout_s=600.0,
            retry=begins_again(explanations),
        )
        return int(response.total_size)

    @rpc(index_pb2.IndexServiceGetInfoRequest, value("IndexInfo"))
    async def info(self) -> values.IndexInfo:
        """Gets the index's corpora, active generations, limits and state."""


def _has(known: values.Premise | None, given: types_pb2.Premise) -> bool:
    """Whether a known premise has all of one that is given under its id."""
    if known is None or known.text != given.text:
        return False
    return all({*getattr(given, name)} <= {*getattr(known, name)} for name in ("aliases", "splits", "tags"))

"""The sampler's client: start runs, follow them, read their pairs and trees."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from aeenc import values
from aeenc.calls.encoding import selector
from aeenc.calls.inputs import (
    CHUNK_BYTES,
    accessible_by_text,
    begins_again,
    check_used,
    chunks,
    each,
)
from aeenc.calls.rpc import ServiceClient, rpc, value
from aeenc.calls.waiting import wait_for_end
from aeenc.errors import InvalidArgument
from aeenc.trees import Accessible
from aeenc.v1 import sampler_pb2, sampler_pb2_grpc, types_pb2
from aeenc.values.writing import as_message, message, shown

CHUNK_HYPOTHESES = 512
CHUNK_PAIRS = 1024
SignName = Literal["positive", "negative", "skipped"]
CollectName = Literal["both", "positives_only"]
Root = tuple[str, str] | tuple[str, str, str, str] | sampler_pb2.Hypothesis
ROOT_FIELDS = ("id", "text", "question", "answer")


_run = value("Run", "run")


class SamplerClient(ServiceClient):
    """Calls SamplerService, and SamplerAdminService through `admin` (default: the same channel).

    Raises the classes of `aeenc.errors`.
    """

    _services = (sampler_pb2_grpc.SamplerServiceStub, sampler_pb2_grpc.SamplerAdminServiceStub)

    async def start_run(
        self,
        hypotheses: Iterable[Root] | AsyncIterable[Root],
        *,
        corpus: str = "",
        oracle: str = "",
        k: int | None = None,
        max_depth: int | None = None,
        max_judgements: int | None = None,
        max_nodes_per_tree: int | None = None,
        max_negatives_per_query: int | None = None,
        collect: CollectName | int | None = None,
        negative_filter: values.NegativeFilter | sampler_pb2.NegativeFilter | Mapping[str, Any] | None = None,
        conditioned: bool | None = None,
        live: bool | None = None,
        step: int | None = None,
        split: str | None = None,
        accessible: Mapping[str, Accessible] | None = None,
        label: str | None = None,
        version: str | None = None,
        idempotency_key: str = "",
        config: values.RunConfig | sampler_pb2.RunConfig | None = None,
        timeout_s: float | None = None,
    ) -> values.Run:
        """Starts a run over (id, text) pairs, which asks `oracle` about premises of `corpus`.

        A pair may go on with the question and the answer behind it, which people see above the tree.

        `k` candidates a node are judged, 1 to 1,000 (default: 20), down to `max_depth` (default: 8; the root has 0).
        `max_judgements` limits the verdicts of the whole run, `max_nodes_per_tree` the judged nodes of a tree, and
        `max_negatives_per_query` the refused pairs that are kept, best-scored first (default: 0, no limit).
        `collect` says which pairs to record (default: both). `negative_filter` drops refused candidates that may
        explain the query after all: `min_rank`, `max_rank`, `absolute_margin`, `relative_margin`, `rewordings`.
        `conditioned` retrieves again with what was accepted, until nothing new is accepted. With a `step`, so many
        candidates are asked at once, the nearest first, and what the oracle says of the node (`Answer.node_verdict`)
        ends it or has others retrieved. `split` is the split of the
        hypotheses; premises that occur only in trees of other splits are never shown to the oracle. `accessible` says
        by the text of a hypothesis which premises may explain it (default: all). Where it has a `before_id`, an
        accepted premise is explained by what stands before itself in the corpus. `label` or
        `version` names the query encoder (default: label `stable`), which is resolved once. A `live` run follows its
        label: when it moves, tasks that nobody has begun are retrieved again with the new version.

        Makes an idempotency key where none is given, and repeats the call under it unless `hypotheses` is an iterator,
        which cannot begin again. `config` is a whole configuration, such as an earlier run's, whose key is left out;
        options given beside it win. Raises InvalidArgument for an option out of range, an unknown oracle or a
        hypothesis of another form, NotFound for an unknown corpus, AlreadyExists for a key used with another
        configuration.
        """
        keyed = _with_options(
            sampler_pb2.RunConfig() if config is None else as_message(config, sampler_pb2.RunConfig, "config"),
            corpus=corpus or None,
            oracle=oracle or None,
            idempotency_key=idempotency_key or uuid.uuid4().hex,
            k=k,
            max_depth=max_depth,
            max_judgements=max_judgements,
            collect=collect,
            model=selector(label, version),
            split=split,
            conditioned=conditioned,
            live=live,
            step=step,
            max_negatives_per_query=max_negatives_per_query,
            max_nodes_per_tree=max_nodes_per_tree,
            negative_filter=negative_filter
            if isinstance(negative_filter, Mapping | None)
            else as_message(negative_filter, sampler_pb2.NegativeFilter, "negative_filter"),
        )

        held = accessible_by_text(accessible)

        async def requests() -> AsyncIterator[sampler_pb2.StartRunRequest]:
            message = sampler_pb2.StartRunRequest(config=keyed)
            texts: set[str] = set()  # of roots that are no messages, which say themselves what is accessible
            messages = (_hypothesis(root, held, texts) async for root in each(hypotheses, "hypotheses"))
            async for chunk in chunks(messages, CHUNK_HYPOTHESES, CHUNK_BYTES):
                message.hypotheses.extend(chunk)
                yield message
                message = sampler_pb2.StartRunRequest()
            check_used(held, texts, "hypotheses, as (id, text)")
            if message.HasField("config"):
                yield message  # without a hypothesis, which is the service's to refuse

        response: sampler_pb2.StartRunResponse = await self.channel.send_stream(
            self._stub.StartRun, requests, timeout_s=timeout_s, retry=begins_again(hypotheses)
        )
        return values.Run.from_message(response.run)

    @rpc(sampler_pb2.GetRunRequest, _run)
    async def get_run(self, run_id: str) -> values.Run:
        """Gets a run."""

    @rpc(sampler_pb2.ListRunsRequest, value("Run"), pages="runs")
    def list_runs(self, *, page_size: int = 1000) -> AsyncIterator[values.Run]:
        """Yields all runs, newest first. A page of `page_size`, 1 to 1,000, is fetched when it is needed."""

    @rpc(sampler_pb2.WatchRunRequest, lambda event: (event.seq, _run(event)))
    def watch(self, run_id: str, *, from_seq: int = 0) -> AsyncIterator[tuple[int, values.Run]]:
        """Replays a run's events from a sequence number on and follows them until it ends."""

    async def wait(self, run_id: str, *, on_progress: Callable[[values.Run], None] | None = None) -> values.Run:
        """Waits until a run has ended, across restarts of the sampler, and returns it even if it failed."""
        await self.get_run(run_id)  # a sampler that is away from the beginning is not waited for
        patient = SamplerClient(self.channel.patient())
        return await wait_for_end(
            lambda seq: self.watch(run_id, from_seq=seq), lambda: patient.get_run(run_id), on_progress
        )

    @rpc(sampler_pb2.CancelRunRequest, _run)
    async def cancel(self, run_id: str, *, request_id: str = "") -> values.Run:
        """Stops a run and keeps its pairs. Raises FailedPrecondition for one that has ended."""

    @rpc(sampler_pb2.ResumeRunRequest, _run)
    async def resume(self, run_id: str, *, request_id: str = "") -> values.Run:
        """Continues a run that was cancelled or failed."""

    @rpc(sampler_pb2.DeleteRunRequest)
    async def delete(self, run_id: str, *, request_id: str = "") -> None:
        """Deletes a run that has ended, with its pairs and trees. Raises FailedPrecondition for a live one."""

    @rpc(
        sampler_pb2.SamplerAdminServiceCollectGarbageRequest,
        value("Garbage", "garbage"),
    )
    async def collect_garbage(self, *, dry_run: bool = False, request_id: str = "") -> list[values.Garbage]:
        """Deletes the runs that the sampler's settings no longer keep, and returns them; with `dry_run` only that."""

    @rpc(sampler_pb2.ListPairsRequest, value("Pair"), pages="pairs")
    def list_pairs(
        self, run_id: str, *, sign: SignName | int | None = None, page_size: int = 1024
    ) -> AsyncIterator[values.Pair]:
        """Yields all pairs of a run, or those of one sign, in the order they were recorded.

        A page of `page_size` is fetched when it is needed.
        """

    async def import_pairs(
        self,
        corpus: str,
        pairs: Iterable[values.Pair | types_pb2.Pair] | AsyncIterable[values.Pair | types_pb2.Pair],
        *,
        run_id: str = "",
        request_id: str = "",
    ) -> values.ImportedPairs:
        """Adds any number of pairs judged elsewhere, as a new run or to an earlier import.

        With a `request_id` of the caller's, repeating the call adds nothing twice, even after it broke off half-way.
        """
        total = message(sampler_pb2.ImportPairsResponse, run_id=run_id)
        request_id = request_id or uuid.uuid4().hex
        number = 0
        messages = (as_message(pair, types_pb2.Pair, "pairs") async for pair in each(pairs, "pairs"))
        async for chunk in chunks(messages, CHUNK_PAIRS, CHUNK_BYTES):
            await self._import(corpus, chunk, total, f"{request_id}/{number}" if number else request_id)
            number += 1
        if not number:
            await self._import(corpus, [], total, request_id)
        return values.ImportedPairs.from_message(total)

    async def _import(
        self, corpus: str, pairs: list[types_pb2.Pair], total: sampler_pb2.ImportPairsResponse, request_id: str
    ) -> None:
        """Imports what fits into one call, and adds the answer to `total`."""
        request = message(
            sampler_pb2.ImportPairsRequest, corpus=corpus, pairs=pairs, run_id=total.run_id, request_id=request_id
        )
        response: sampler_pb2.ImportPairsResponse = await self.channel.unary(self._stub.ImportPairs, request)
        total.run_id, total.added = response.run_id, total.added + response.added

    @rpc(sampler_pb2.ExportTreesRequest, lambda tree: (tree.hypothesis_id, tree.record_json), retry=True)
    def export_trees(self, run_id: str) -> AsyncIterator[tuple[str, str]]:
        """Yields the trees that a run has built: hypothesis id and EntailmentBank record (one line of JSON)."""

    @rpc(sampler_pb2.SamplerServiceGetInfoRequest, value("SamplerInfo"))
    async def info(self) -> values.SamplerInfo:
        """Gets the sampler's oracles, active runs, limits and state."""


def _with_options(config: sampler_pb2.RunConfig, **options: Any) -> sampler_pb2.RunConfig:
    """Makes a configuration in which each option that is given (not None) replaces the field of its name."""
    given = {name: value for name, value in options.items() if value is not None}
    changed = sampler_pb2.RunConfig()
    changed.CopyFrom(config)
    for name in given:
        changed.ClearField(name)  # merging alone would keep what a zero, a False or a filter's empty field replaces
    changed.MergeFrom(message(sampler_pb2.RunConfig, **given))
    return changed


def _hypothesis(root: Any, accessible: Mapping[str, Accessible], texts: set[str]) -> sampler_pb2.Hypothesis:
    """Returns the message of a Root, and notes its text in `texts`.

    Raises InvalidArgument for what the caller's types should have kept out.
    """
    if isinstance(root, sampler_pb2.Hypothesis):
        return root
    if isinstance(root, str) or not isinstance(root, Sequence) or len(root) not in {2, len(ROOT_FIELDS)}:
        raise InvalidArgument.field("hypotheses", f"has {shown(root)}; give (id, text) or (id, text, question, answer)")
    made = message(sampler_pb2.Hypothesis, **dict(zip(ROOT_FIELDS, root, strict=False)))
    if accessible:
        texts.add(made.text)
    if access := accessible.get(made.text):
        made.MergeFrom(message(sampler_pb2.Hypothesis, **vars(access)))
    return made

"""The trainer's client: training jobs, evaluations and checkpoints."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence

from aeenc import values
from aeenc.calls.encoding import selector
from aeenc.calls.inputs import (
    CHUNK_BYTES,
    Items,
    accessible_by_text,
    begins_again,
    check_used,
    chunks,
    each,
    listed,
    pair_of,
)
from aeenc.calls.retrieval import Mode, Retrieval, RetrieveOptions
from aeenc.calls.rpc import ServiceClient, rpc, value
from aeenc.calls.waiting import wait_for_end
from aeenc.errors import InvalidArgument
from aeenc.evaluation.graded import check_grade
from aeenc.trees import Accessible, Tree
from aeenc.v1 import index_pb2, trainer_pb2, trainer_pb2_grpc, types_pb2
from aeenc.values.trainer import BatchingName, LossName, ModeName, NegativesName, TargetsName
from aeenc.values.types import OwnTextName
from aeenc.values.writing import as_message, message, shown

CHUNK_QUERIES = 512
EVALUATE_TIMEOUT_S = 1800.0

Gold = types_pb2.GoldQuery | tuple[str, Sequence[str] | Mapping[str, float]]


def gold_query(query: Gold, field: str = "queries") -> types_pb2.GoldQuery:
    """Makes a gold query from its message, from (text, premise texts), or from (text, grades by premise text)."""
    if isinstance(query, types_pb2.GoldQuery):
        return query
    text, premises = pair_of(query, field, "(text, premise texts) or (text, grades by premise text)")
    grades = premises.values() if isinstance(premises, Mapping) else ()
    return message(types_pb2.GoldQuery, text=text, premises=premises, grades=grades)


def gold_tree(tree: Tree) -> trainer_pb2.GoldTree:
    """Reduces a tree to what an evaluation needs: the texts of its inner nodes and of its leaves."""
    if not isinstance(tree, Tree):
        raise InvalidArgument.field("trees", f"has {shown(tree)}; give a Tree of aeenc.trees")
    inner = dict.fromkeys(tree.texts[label] for label in tree.children)
    inner.pop(tree.hypothesis, None)
    leaves = dict.fromkeys(tree.texts[label] for label in tree.leaves)
    return message(trainer_pb2.GoldTree, hypothesis=tree.hypothesis, intermediates=inner, leaves=leaves)


_job = value("Job", "job")


class TrainerClient(ServiceClient):
    """Calls TrainerService, and TrainerAdminService through `admin` (default: the same channel).

    Raises the classes of `aeenc.errors`.
    """

    _services = (trainer_pb2_grpc.TrainerServiceStub, trainer_pb2_grpc.TrainerAdminServiceStub)

    async def start_job(
        self,
        *,
        corpus: str = "",
        run_ids: Iterable[str] | None = None,
        data_sets: Iterable[str] | None = None,
        validation: Iterable[Gold] = (),
        split: str = "",
        mode: ModeName | int | None = None,
        loss: LossName | int | None = None,
        base_version: str = "",
        epochs: int = 0,
        items_per_epoch: int = 0,
        batch_size: int = 0,
        batching: BatchingName | int | None = None,
        accumulation: int = 0,
        learning_rate: float = 0.0,
        temperature: float = 0.0,
        margin: float | None = None,
        regularization: float | None = None,
        initial_share: float = 0.0,
        own_text: OwnTextName | int | None = None,
        refused_weight: float = 0.0,
        hard_negatives: int | None = None,
        guide_version: str = "",
        guide_margin: float | None = None,
        targets: TargetsName | int | None = None,
        candidates: Mode | int | None = None,
        negatives: NegativesName | int | None = None,
        prototypes: int = 0,
        custom_loss: str = "",
        base_model: str = "",
        seed: int = 0,
        note: str = "",
        idempotency_key: str = "",
    ) -> values.Job:
        """Starts a training job on the pairs of sampling runs (`run_ids`) and on `data_sets` of the trainer's settings.

        It trains against the premise vectors of `corpus`, from `base_version` (default: the space's pre-trained
        encoder), and learns only from texts of `split` ("": all). After each epoch it evaluates `validation`, gold
        queries as (text, premise texts), and keeps the best epoch by strict MAP; without them it keeps the last.

        `mode` says which encoders to train (default: single), `loss` the objective (default:
        full_corpus_softmax; regression with mode cross_encoder). 0 and None leave an option to the trainer:
        `epochs`, at most 100 (default: as many as give 1,000 steps, but 3 to 12; the progress says how many),
        of `items_per_epoch` queries or items (default: all); `batch_size`, 1 to 1,024 queries or items a step,
        which `batching` tells apart (default: 32 queries; 32 items in modes siamese and dual; 8 queries in mode
        cross_encoder), computed in `accumulation` parts; `learning_rate` (default: 1e-4, of most losses over
        items and of nli_classification 2e-5) and `temperature` (default: 0.03 or 0.05, by loss); `margin`, a
        cosine, of the losses that have one; `regularization`, the weight towards the pre-trained encoder;
        `initial_share`, the share of the initial weights in the result, 0 to 1; `own_text`, what the query's
        own text is to it (default: excluded); `refused_weight` of a refused pair beside an unjudged premise
        (default: 1); `hard_negatives`, 0 to 64 refused premises a positive (default: 1; 6 a query in mode
        cross_encoder); `guide_version` and `guide_margin`, a cosine, of loss gist. With mode cross_encoder,
        `targets` are binary, the grades of judged premises, or a distribution over these (default: binary);
        `candidates` is the mode of Retrieve whose first 200 premises it learns to re-rank (default: what
        encoders rank first), `negatives` (retrieved, random or none) is what it draws besides refused
        premises, and `base_model` names the model of the trainer's settings from which it starts (default: the
        space's pre-trained encoder). `prototypes` is the number of correct pairs of a class that loss analogy
        compares with (default: 30). `custom_loss` names a loss of the trainer's settings in place of `loss`.
        `seed` is that of all randomness; `note` is kept with the checkpoint.

        Makes an idempotency key where none is given. Raises InvalidArgument for an option out of range, NotFound for an
        unknown corpus, run, data set, version, loss or model, FailedPrecondition (NO_POSITIVES) where nothing explains,
        and AlreadyExists for a key used with another configuration.
        """
        given = {**locals()}  # but for self, each is a field of the message
        del given["self"]
        given["validation"] = [gold_query(query, "validation") for query in listed(validation, "validation")]
        given["idempotency_key"] = idempotency_key or uuid.uuid4().hex
        config = message(trainer_pb2.JobConfig, **given)
        request = trainer_pb2.StartJobRequest(config=config)
        return values.Job.from_message((await self.channel.unary(self._stub.StartJob, request)).job)

    @rpc(trainer_pb2.GetJobRequest, _job)
    async def get_job(self, job_id: str) -> values.Job:
        """Gets a job."""

    @rpc(trainer_pb2.ListJobsRequest, value("Job"), pages="jobs")
    def list_jobs(self, *, page_size: int = 1000) -> AsyncIterator[values.Job]:
        """Yields all jobs, newest first. A page of `page_size`, 1 to 1,000, is fetched when it is needed."""

    @rpc(trainer_pb2.WatchJobRequest, lambda event: (event.seq, _job(event)))
    def watch(self, job_id: str, *, from_seq: int = 0) -> AsyncIterator[tuple[int, values.Job]]:
        """Replays a job's events from a sequence number on and follows them until it ends."""

    async def wait(self, job_id: str, *, on_progress: Callable[[values.Job], None] | None = None) -> values.Job:
        """Waits until a job has ended, across restarts of the trainer, and returns it even if it failed."""
        await self.get_job(job_id)  # a trainer that is away from the beginning is not waited for
        patient = TrainerClient(self.channel.patient())
        return await wait_for_end(
            lambda seq: self.watch(job_id, from_seq=seq), lambda: patient.get_job(job_id), on_progress
        )

    @rpc(trainer_pb2.CancelJobRequest, _job)
    async def cancel(self, job_id: str, *, request_id: str = "") -> values.Job:
        """Stops a job. Raises FailedPrecondition for one that has ended."""

    @rpc(trainer_pb2.ResumeJobRequest, _job)
    async def resume(self, job_id: str, *, request_id: str = "") -> values.Job:
        """Continues a job from its last finished epoch."""

    @rpc(trainer_pb2.DeleteJobRequest)
    async def delete(self, job_id: str, *, request_id: str = "") -> None:
        """Deletes a job that has ended, with its files. Raises FailedPrecondition for a live one."""

    @rpc(trainer_pb2.DeleteCheckpointRequest)
    async def delete_checkpoint(self, version: str, *, request_id: str = "") -> None:
        """Deletes a checkpoint. Raises FailedPrecondition, naming who needs it, for one in use."""

    @rpc(
        trainer_pb2.TrainerAdminServiceCollectGarbageRequest,
        value("Garbage", "garbage"),
    )
    async def collect_garbage(self, *, dry_run: bool = False, request_id: str = "") -> list[values.Garbage]:
        """Removes what the trainer's settings no longer keep, and lists it; with `dry_run` it only lists it."""

    async def evaluate(
        self,
        corpus: str,
        queries: Iterable[Gold] | AsyncIterable[Gold],
        *,
        label: str | None = None,
        version: str | None = None,
        generation: str = "",
        retrieval: Retrieval | None = None,
        training: Iterable[Gold] | AsyncIterable[Gold] = (),
        trees: Iterable[Tree] | AsyncIterable[Tree] = (),
        accessible: Mapping[str, Accessible] | None = None,
        ranks: bool = False,
        strict_only: bool = False,
        conditioned: bool = False,
        timeout_s: float = EVALUATE_TIMEOUT_S,
    ) -> values.EvaluationReport:
        """Evaluates a query encoder on gold queries against all premises of a corpus, under both protocols.

        With `retrieval`, evaluates the index's answers instead; `conditioned` gives it one gold premise of each query
        as accepted. `training` (gold queries) splits the report into parts
        seen in training and not; `trees` adds the quality over whole trees; `ranks` adds each gold premise's rank.
        Queries whose premises have grades (a mapping, 0 to 100) add graded metrics. `accessible` maps the text of a
        query to the premises that it may find (default: all), which must include its gold premises.

        Repeats the call where the trainer is away or full, unless an input is an iterator, which cannot begin again.
        The trainer evaluates one at a time, reads the inputs when the turn has come, and gives them a minute: raises
        DeadlineExceeded for iterators that take longer.
        """
        held = accessible_by_text(accessible)
        if isinstance(retrieval, RetrieveOptions):
            problem = "is a RetrieveOptions, whose model and filters no evaluation heeds; give a Retrieval"
            raise InvalidArgument.field("retrieval", problem)
        config = message(
            trainer_pb2.EvaluateConfig,
            corpus=corpus,
            model=selector(label, version),
            generation=generation,
            retrieval=None if retrieval is None else as_message(retrieval, index_pb2.RetrievalOptions, "retrieval"),
            ranks=ranks,
            strict_only=strict_only,
            conditioned=conditioned,
        )
        response: trainer_pb2.EvaluateResponse = await self.channel.send_stream(
            self._stub.Evaluate,
            lambda: _evaluate_requests(config, _evaluate_items(queries, training, trees, held)),
            timeout_s=timeout_s,
            retry=all(map(begins_again, (queries, training, trees))),
        )
        return values.EvaluationReport.from_message(response.report)

    @rpc(trainer_pb2.ListCheckpointsRequest, value("Checkpoint"), pages="checkpoints")
    def list_checkpoints(self, *, page_size: int = 1000) -> AsyncIterator[values.Checkpoint]:
        """Yields all checkpoints, newest first. A page of `page_size`, 1 to 1,000, is fetched when it is needed."""

    @rpc(trainer_pb2.GetCheckpointRequest, value("Checkpoint", "checkpoint"))
    async def get_checkpoint(self, version: str) -> values.Checkpoint:
        """Gets a checkpoint."""

    @rpc(trainer_pb2.TrainerServiceGetInfoRequest, value("TrainerInfo"))
    async def info(self) -> values.TrainerInfo:
        """Gets the trainer's space, device, active job, limits and state."""


async def _evaluate_items(
    queries: Items[Gold], training: Items[Gold], trees: Items[Tree], accessible: Mapping[str, Accessible]
) -> AsyncIterator[trainer_pb2.EvaluateRequest]:
    """Yields a message for each item.

    Of training, only what the report's parts look up: texts and premises of the queries. The first query always goes,
    as without any there are no parts.
    """
    texts: set[str] = set()
    premises: set[str] = set()
    sent = False
    async for query in each(queries, "queries"):
        gold = gold_query(query)
        texts.add(gold.text)
        premises.update(gold.premises)
        if access := accessible.get(gold.text):
            held = message(types_pb2.GoldQuery, **vars(access))
            held.MergeFrom(gold)  # the caller's message stays as it is
            gold = held
        yield trainer_pb2.EvaluateRequest(queries=[gold])
    check_used(accessible, texts, "queries")
    async for query in each(training, "training"):
        learnt = gold_query(query, "training")
        if learnt.grades and len(learnt.grades) != len(learnt.premises):
            yield trainer_pb2.EvaluateRequest(training=[learnt])  # which is the service's to refuse
            continue
        graded = zip(learnt.premises, learnt.grades or [1.0] * len(learnt.premises), strict=True)
        seen = [premise for premise, grade in graded if check_grade(grade) and premise in premises]
        if seen or learnt.text in texts or not sent:
            sent = True
            yield trainer_pb2.EvaluateRequest(training=[types_pb2.GoldQuery(text=learnt.text, premises=seen)])
    async for tree in each(trees, "trees"):
        yield trainer_pb2.EvaluateRequest(trees=[gold_tree(tree)])


async def _evaluate_requests(
    config: trainer_pb2.EvaluateConfig, items: AsyncIterator[trainer_pb2.EvaluateRequest]
) -> AsyncIterator[trainer_pb2.EvaluateRequest]:
    """Yields messages of many items each, the first with the configuration."""
    message = trainer_pb2.EvaluateRequest(config=config)
    async for chunk in chunks(items, CHUNK_QUERIES, CHUNK_BYTES):
        for item in chunk:
            message.MergeFrom(item)
        yield message
        message = trainer_pb2.EvaluateRequest()
    if message.HasField("config"):
        yield message  # without a query, which is the service's to refuse

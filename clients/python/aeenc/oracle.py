"""The oracle's server side: subclass `Oracle`, write `judge`, serve it. The sampler calls it over gRPC.

    class MyOracle(aeenc.Oracle):
        def judge(self, task):
            return [c.id for c in task.candidates if my_model.explains(c.text, task.query)]

    MyOracle().serve("127.0.0.1:50060")

`judge` runs in a thread (or as a coroutine, if it is one), several tasks at a time. An exception in it, and an answer
that names no candidates of the task, reach the sampler as UNAVAILABLE, and the task is tried again; they never count as
a refusal.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError

from aeenc import errors
from aeenc.calls.inputs import listed
from aeenc.transport import status
from aeenc.transport.addresses import is_loopback, is_socket
from aeenc.transport.channel import MESSAGE_BYTES
from aeenc.transport.checks import credential, key_pair
from aeenc.v1 import oracle_pb2, oracle_pb2_grpc, types_pb2
from aeenc.values.writing import as_messages, message, message_of, mirrored, shown

EXPLAINS = oracle_pb2.JUDGEMENT_EXPLAINS
REFUSES = oracle_pb2.JUDGEMENT_DOES_NOT_EXPLAIN
ABSTAINS = oracle_pb2.JUDGEMENT_ABSTAIN
UNSEEN = oracle_pb2.JUDGEMENT_UNSEEN
NO_REMARK, IRRELEVANT = oracle_pb2.REMARK_UNSPECIFIED, oracle_pb2.REMARK_IRRELEVANT
BAD_FACT = oracle_pb2.REMARK_BAD_FACT

T = TypeVar("T")

log = logging.getLogger(__name__)
_OPTIONS = [
    ("grpc.so_reuseport", 0),  # or two oracles could share a port
    ("grpc.max_receive_message_length", MESSAGE_BYTES),  # a task may have a thousand long candidates
]


@dataclass(frozen=True)
class Candidate:
    """A premise put before the oracle; `rank` counts from 1, `score` is a cosine."""

    id: str
    text: str
    rank: int
    score: float

    def to_proto(self) -> types_pb2.RankedPremise:
        """Converts to the message."""
        premise = {"id": self.id, "text": self.text}
        return message(types_pb2.RankedPremise, premise=premise, rank=self.rank, score=self.score)


@dataclass(frozen=True)
class Task:
    """One node to judge: which `candidates` explain `query`? `path` holds the texts from the root to its parent.

    `model_version` is the encoder version that retrieved the candidates; empty: it was not noted.
    """

    task_id: str
    run_id: str
    query: str
    path: tuple[str, ...]
    accepted: tuple[Candidate, ...]
    candidates: tuple[Candidate, ...]
    model_version: str = ""

    def to_proto(self) -> oracle_pb2.OracleTask:
        """Converts to the message, which leaves the run to the request around it."""
        return mirrored(
            oracle_pb2.OracleTask,
            self,
            accepted=as_messages(self.accepted, types_pb2.RankedPremise, "accepted"),
            candidates=as_messages(self.candidates, types_pb2.RankedPremise, "candidates"),
        )


@dataclass(frozen=True)
class Verdict:
    """The oracle's judgement of one candidate. A `leaf` explains the query and needs no explanation itself.

    `annotator` names who judged, unless it was the oracle itself. `remark` is what a person says of the candidate,
    `in_sight_ms` for how long its text was in sight.
    """

    judgement: oracle_pb2.Judgement
    leaf: bool = False
    grade: float | None = None
    annotator: str = ""
    remark: oracle_pb2.Remark = NO_REMARK
    in_sight_ms: int = 0

    def to_proto(self, premise_id: str) -> oracle_pb2.Verdict:
        """Converts to the message about a candidate."""
        return mirrored(oracle_pb2.Verdict, self, premise_id=premise_id)


Verdicts = Iterable[str] | Mapping[str, Verdict | int]  # numbers of Judgement
VerdictsT = TypeVar("VerdictsT", bound=Verdicts)
NodeVerdictName = Literal["complete", "premise_missing", "not_explainable"]


@dataclass(frozen=True)
class Answer(Generic[VerdictsT]):
    """The verdicts on a node's candidates, and what is said of the node as a whole.

    `additions` are premises of the corpus (ids) that explain the query and are missing among the candidates.
    `intermediates` are conclusions in the author's words: they become nodes of the tree and are retrieved for;
    `written` are facts that the corpus lacks, kept as suggestions. `alternatives` are sets of accepted premises (ids)
    that each explain the query, where there are several ways. `inference` says how the query follows, `node_verdict`
    whether the premises explain it entirely. `note` is kept with the pairs. `annotator` names who answers, unless it is
    the oracle itself.
    """

    verdicts: VerdictsT
    note: str = ""
    additions: Verdicts = ()
    written: Sequence[str] = ()
    intermediates: Sequence[str] = ()
    alternatives: Sequence[Sequence[str]] = ()
    inference: str = ""
    node_verdict: NodeVerdictName | int | None = None
    annotator: str = ""

    def __post_init__(self) -> None:
        for name in ("verdicts", "additions", "written", "intermediates", "alternatives"):
            if isinstance(given := getattr(self, name), Iterator):  # the code of whoever makes the answer
                object.__setattr__(self, name, list(given))

    def to_proto(self, task_id: str = "") -> oracle_pb2.Answer:
        """Converts to the message. Ids in a list explain. Raises InvalidArgument, naming what cannot be sent."""
        alternatives = listed(self.alternatives, "alternatives")
        return mirrored(
            oracle_pb2.Answer,
            self,
            task_id=task_id,
            verdicts=_messages(self.verdicts, "verdicts"),
            additions=_messages(self.additions, "additions"),
            alternatives=[
                message_of(f"alternatives[{number}]", types_pb2.PremiseSet, premise_ids=one)
                for number, one in enumerate(alternatives)
            ],
        )


def _messages(verdicts: Verdicts, name: str) -> list[oracle_pb2.Verdict]:
    if not isinstance(verdicts, Mapping):
        ids = listed(verdicts, name)
        for number, one in enumerate(ids):
            if not isinstance(one, str):
                raise errors.InvalidArgument.field(f"{name}[{number}]", f"is {shown(one)}; give a premise's id")
        verdicts = dict.fromkeys(ids, EXPLAINS)
    return [
        (one if isinstance(one, Verdict) else Verdict(cast("oracle_pb2.Judgement", one))).to_proto(premise_id)
        for premise_id, one in verdicts.items()
    ]


class Oracle:
    """Base class of an oracle. Override `judge`; `name` goes into the pair log as the annotator.

    A `judge` without `async` runs in at most `workers` threads, also inside another oracle.
    """

    name = "oracle"
    workers = 4

    def judge(self, task: Task) -> Verdicts | Answer[Any] | Awaitable[Verdicts | Answer[Any]]:
        """Says which candidates explain the query.

        Return the ids of those that do, and all others count as refused; or a mapping from id to a judgement or
        Verdict, and whatever it leaves out counts as unseen; or an Answer, which holds one of these and what is to be
        said of the node as a whole. May be a coroutine function. Anything else, such as one string or an id that is not
        among the candidates, leaves the task unanswered with an error that names it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not override judge(self, task)")

    def sent(self, task: Task, answer: oracle_pb2.Answer) -> oracle_pb2.Answer:  # noqa: ARG002 -- a hook
        """Returns the message to send for a task; override it to inspect or spoil the message in a test."""
        return answer

    @cached_property
    def _judge_threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.workers, thread_name_prefix="oracle")

    def serve(
        self,
        address: str = "127.0.0.1:50060",
        *,
        token: str | None = None,
        allow_insecure: bool = False,
        cert: Path | str | None = None,
        key: Path | str | None = None,
    ) -> None:
        """Serves until SIGINT or SIGTERM, as a program does. Options are those of `start`.

        Ends the program with one line, exit status 1, where it cannot listen.
        """
        options = {"token": token, "allow_insecure": allow_insecure, "cert": cert, "key": key}

        def listens(bound: str) -> None:
            sys.stderr.write(f"oracle {self.name} listens on {bound}\n")  # who started it waits for this line

        try:
            asyncio.run(serve_until_signal(self, listens, address, **options))
        except errors.Unavailable as error:
            sys.exit(error.message)

    async def start(
        self,
        address: str = "127.0.0.1:0",
        *,
        token: str | None = None,
        allow_insecure: bool = False,
        cert: Path | str | None = None,
        key: Path | str | None = None,
    ) -> OracleServer:
        """Starts serving and returns at once. Beyond loopback it needs a token, unless `allow_insecure`.

        With `cert` and `key` (PEM files) it speaks TLS. Raises InvalidArgument for an open address or one without a
        port, for a token that is empty or that no header holds, and for files that are no key pair.
        """
        port = _port_of(address)
        if (cert is None) != (key is None):
            raise errors.InvalidArgument("cert and key belong together; give both or neither")
        if token is not None and not token.strip():
            raise errors.InvalidArgument.field("token", "is empty; give a secret, or None for an oracle without one")
        if token is None and not allow_insecure and not _is_loopback(address):
            raise errors.InvalidArgument(
                f"{address} is reachable from other machines; give a token, or allow_insecure=True if you mean it"
            )
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((_Servicer(self, credential(token)).handlers(),))
        try:
            _check_free(address, port)
            if cert is None or key is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, grpc.ssl_server_credentials([key_pair(cert, key)]))
        except RuntimeError as error:
            raise errors.Unavailable(f"cannot listen on {address}; is another process there?") from error
        await server.start()
        return OracleServer(server, port)


def _port_of(address: str) -> int:
    """Returns a port, 0 for a socket. Raises InvalidArgument for what gRPC would take: no port for 443, 65536 for 0."""
    port = "0" if is_socket(address) else address.rpartition(":")[2]
    if not port.isdecimal() or int(port) >= 1 << 16:
        remedy = "give HOST:PORT, such as 127.0.0.1:50060, or unix:PATH"
        raise errors.InvalidArgument.field("address", f"is {shown(address)}; {remedy}")
    return int(port)


def _check_free(address: str, port: int) -> None:
    """Raises RuntimeError, as gRPC does, for an address that is taken: gRPC prints a line of its own before it."""
    if port:
        host = address.rpartition(":")[0]
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            socket.create_server((host.strip("[]"), port), family=family).close()
        except OSError as error:
            raise RuntimeError(str(error)) from error


async def serve_until_signal(oracle: Oracle, listens: Callable[[str], None], address: str, **options: Any) -> None:
    """Serves until SIGINT or SIGTERM; `listens` gets the address, port 0 resolved. Options are those of `start`."""
    server = await oracle.start(address, **options)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    listens(address if is_socket(address) else f"{address.rpartition(':')[0]}:{server.port}")
    await stop.wait()
    await server.stop()


class OracleServer:
    """A running oracle: its port, and stop()."""

    def __init__(self, server: grpc.aio.Server, port: int) -> None:
        self._server = server
        self.port = port

    async def stop(self, grace_s: float = 1.0) -> None:
        """Stops when the calls in flight are done, after `grace_s` at most."""
        await self._server.stop(grace_s)


class _Servicer(oracle_pb2_grpc.OracleServiceServicer):
    def __init__(self, oracle: Oracle, credential: list[tuple[str, str]]) -> None:
        self._oracle, self._credential = oracle, credential

    def handlers(self) -> grpc.GenericRpcHandler:
        """The generated handlers, but for bytes that are no request: for those, grpc would answer UNKNOWN."""
        judge = grpc.unary_unary_rpc_method_handler(
            self.Judge, _request, response_serializer=oracle_pb2.JudgeResponse.SerializeToString
        )
        [service] = oracle_pb2.DESCRIPTOR.services_by_name.values()
        return grpc.method_handlers_generic_handler(service.full_name, {"Judge": judge})

    async def Judge(self, request: oracle_pb2.JudgeRequest | None, context: Any) -> oracle_pb2.JudgeResponse:
        try:
            self._authenticate(context)
            request = _known(request)
            answers = await all_of(self._answer(request.run_id, task) for task in request.tasks)
        except Exception as error:  # noqa: BLE001 -- whatever a user's judge raises must reach the sampler as a status
            known, details = _told(error)
            await context.abort(status.code_of(known), status.message_of(known), ((status.DETAILS_KEY, details),))
        return oracle_pb2.JudgeResponse(answers=answers)

    def _authenticate(self, context: Any) -> None:
        sent = dict(context.invocation_metadata() or ())
        for name, value in self._credential:
            if not secrets.compare_digest(sent.get(name, "").encode(), value.encode()):
                raise errors.Unauthenticated("the oracle needs its token as `authorization: Bearer …`")

    async def _answer(self, run_id: str, message: oracle_pb2.OracleTask) -> oracle_pb2.Answer:
        task = Task(
            task_id=message.task_id,
            run_id=run_id,
            query=message.query,
            path=tuple(message.path),
            accepted=tuple(_candidate(candidate) for candidate in message.accepted),
            candidates=tuple(_candidate(candidate) for candidate in message.candidates),
            model_version=message.model_version,
        )
        answer = await answer_of(self._oracle, task)
        try:
            sent = replace(answer, annotator=answer.annotator or self._oracle.name).to_proto(task.task_id)
        except errors.InvalidArgument as error:
            raise _wrong(self._oracle, f"cannot be sent: {error.message}") from error
        return self._oracle.sent(task, sent)


def _request(data: bytes) -> oracle_pb2.JudgeRequest | None:
    try:
        return oracle_pb2.JudgeRequest.FromString(data)
    except DecodeError:
        return None


def _known(request: oracle_pb2.JudgeRequest | None) -> oracle_pb2.JudgeRequest:
    if request is None:
        raise errors.InvalidArgument("the bytes sent are not a JudgeRequest; send what its .proto says")
    return request


def _candidate(message: types_pb2.RankedPremise) -> Candidate:
    return Candidate(message.premise.id, message.premise.text, message.rank, message.score)


async def all_of(parts: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs coroutines at once and returns their results in order. The first error ends the others, then it is raised.

    A caller who asks again, as the sampler does, thus never pays for a part twice at the same time, but once more for
    the parts that were cut off.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in parts]
    except ExceptionGroup as failed:
        first = failed.exceptions[0]
    else:
        return [task.result() for task in tasks]
    raise first  # outside of `except`, so that the group is not its context


async def ask(oracle: Oracle, task: Task) -> dict[str, Verdict]:
    """Asks an oracle of this process for verdicts on all candidates of a task, by id. Raises as `answer_of` does."""
    return (await answer_of(oracle, task)).verdicts


async def answer_of(oracle: Oracle, task: Task) -> Answer[dict[str, Verdict]]:
    """Asks an oracle of this process for an answer with verdicts on all candidates of a task, by id.

    Raises as its `judge` does, and Unavailable for an answer that is not about these candidates: to take what is left
    of it would refuse the others without anybody having said so.
    """
    judge: Callable[[Task], Any] = oracle.judge
    if inspect.iscoroutinefunction(judge):
        given = judge(task)
    else:
        threads = oracle._judge_threads  # noqa: SLF001 -- private, since a subclass may have a field of any public name
        given = await asyncio.get_running_loop().run_in_executor(threads, judge, task)
    given = await given if inspect.isawaitable(given) else given
    answer: Answer[Any] = given if isinstance(given, Answer) else Answer(given)
    judged: object = answer.verdicts
    if isinstance(judged, str | bytes) or not isinstance(judged, Iterable):
        raise _wrong(oracle, f"is {type(judged).__name__} {shown(judged)}; return a list of ids, or a mapping from id")
    named = judged if isinstance(judged, Mapping) else list(judged)
    _check_names(oracle, task, named)
    if not isinstance(named, Mapping):
        named = {c.id: EXPLAINS if c.id in named else REFUSES for c in task.candidates}
    return replace(answer, verdicts={c.id: _read(oracle, c.id, named.get(c.id, UNSEEN)) for c in task.candidates})


def _check_names(oracle: Oracle, task: Task, names: Iterable[object]) -> None:
    """Raises Unavailable for a name that is not a candidate's id."""
    ids = {candidate.id for candidate in task.candidates}
    by_text = {candidate.text: candidate.id for candidate in task.candidates}
    for name in names:
        if isinstance(name, str) and name in ids:
            continue
        if isinstance(name, str) and name in by_text:
            raise _wrong(oracle, f"names the text {shown(name)}; return its id, {by_text[name]!r}")
        if isinstance(name, Candidate):
            raise _wrong(oracle, f"holds the candidate {name.id!r} itself; return its id")
        raise _wrong(oracle, f"names {shown(name)}, which is not a candidate; return ids of task.candidates")


def _read(oracle: Oracle, premise_id: str, given: object) -> Verdict:
    """Returns the verdict on one candidate. Raises Unavailable for what is neither a Verdict nor a judgement."""
    verdict = given if isinstance(given, Verdict) else Verdict(given)  # type: ignore[arg-type]  # checked below
    judgement: object = verdict.judgement
    if isinstance(judgement, bool) or not isinstance(judgement, int):
        raise _wrong(
            oracle,
            f"gives {premise_id!r} the judgement {shown(judgement)}; give EXPLAINS, REFUSES, ABSTAINS or "
            "UNSEEN of aeenc.oracle, or a Verdict",
        )
    return verdict


def _wrong(oracle: Oracle, problem: str) -> errors.Unavailable:
    error = errors.Unavailable(f"oracle {oracle.name!r}: the answer of its judge {problem}", reason="WRONG_ANSWER")
    log.error("%s", error.message)  # whoever runs the oracle must see it, not only the sampler
    return error


def _told(error: Exception) -> tuple[errors.AeencError, bytes]:
    """Returns the error that the sampler is told, and its details: any other than ours that can be sent is hidden."""
    if isinstance(error, errors.AeencError):
        # half a character, an endless pause, another exception in place of the message
        with suppress(AttributeError, ValueError, TypeError, LookupError, OverflowError):
            return error, status.details_of(error)
    log.error("judge failed", exc_info=error)
    hidden = errors.Unavailable(f"the oracle's judge failed with {type(error).__name__}; its log says more")
    return hidden, status.details_of(hidden)


def _is_loopback(address: str) -> bool:
    return is_socket(address) or is_loopback(address.rpartition(":")[0].strip("[]"))

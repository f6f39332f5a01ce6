"""What the page calls: each a call of the SDK on behalf of the person who is signed in, and nothing else."""

from __future__ import annotations

import contextlib
import heapq
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from aeenc import AsyncClient, oracle, values
from aeenc.errors import Aborted, NotFound, PermissionDenied
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, UNSEEN, Answer, Verdict
from aeenc_workbench import downloads
from aeenc_workbench.events import NO_STORE
from aeenc_workbench.plain import plain
from aeenc_workbench.sign_in import Leases, Person, person_of

Word = Literal["explains", "leaf", "refuses", "abstains"]
Said = Literal[Word, "unseen"]
B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")
Gold = tuple[str, tuple[str, ...]]  # a query and the texts of its premises
MAX_LISTED = 200
_VERDICTS = {
    "explains": Verdict(EXPLAINS),
    "leaf": Verdict(EXPLAINS, leaf=True),
    "refuses": Verdict(REFUSES),
    "abstains": Verdict(ABSTAINS),
    "unseen": Verdict(UNSEEN),
}
_YES_NO = (values.Judgement.EXPLAINS, values.Judgement.DOES_NOT_EXPLAIN)
_REMARKS = {"irrelevant": oracle.IRRELEVANT, "bad_fact": oracle.BAD_FACT}


class Body(BaseModel):
    """A request's body; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class LeaseBody(Body):
    """Which task to take. Empty: any."""

    run: str = ""
    queue: str = ""
    hypothesis: str = ""
    task: str = ""
    request: str = ""


class HeldBody(Body):
    """A lease."""

    lease: str
    reason: str = ""


class SaidBody(Body):
    """What somebody says about a task."""

    verdicts: dict[str, Said] = {}
    grades: dict[str, float] = {}
    remarks: dict[str, Literal["irrelevant", "bad_fact"]] = {}
    in_sight_ms: dict[str, Annotated[int, Field(ge=0, lt=2**32)]] = {}
    additions: dict[str, Literal["explains", "leaf"]] = {}
    written: list[str] = []
    intermediates: list[str] = []
    alternatives: list[list[str]] = []
    note: str = ""
    inference: str = ""
    node_verdict: Literal["", "complete", "premise_missing", "not_explainable"] = ""

    def whole(self) -> Answer[dict[str, Verdict]]:
        """The answer, for `submit` and `amend`."""
        return Answer(
            {premise_id: self.verdict(premise_id, word) for premise_id, word in self.verdicts.items()},
            note=self.note,
            additions={premise_id: self.verdict(premise_id, word) for premise_id, word in self.additions.items()},
            written=self.written,
            intermediates=self.intermediates,
            alternatives=self.alternatives,
            inference=self.inference,
            node_verdict=self.node_verdict or None,
        )

    def verdict(self, premise_id: str, word: Said) -> Verdict:
        """A verdict with its grade, remark and time in sight."""
        remark = _REMARKS.get(self.remarks.get(premise_id, ""), oracle.NO_REMARK)
        in_sight_ms = self.in_sight_ms.get(premise_id, 0)
        return replace(_VERDICTS[word], grade=self.grades.get(premise_id), remark=remark, in_sight_ms=in_sight_ms)


class AnswerBody(SaidBody):
    """An answer. Candidates without a verdict are refused up to `seen_upto`, and unseen beyond."""

    lease: str
    seen_upto: int = Field(0, ge=0, lt=2**31)
    elapsed_s: float | None = Field(None, ge=0, le=1e9, allow_inf_nan=False)
    seq: int = Field(gt=0, lt=2**53)


class TaskBody(Body):
    """A task of a run."""

    run: str
    task: str
    verdicts: dict[str, Word] = {}
    request: str = ""


class AmendBody(SaidBody):
    """What changes of an answer in a run."""

    run: str
    answer: str
    request: str = ""


class UndoBody(Body):
    """The run whose last answer to take back."""

    run: str
    request: str = ""


class AgainBody(Body):
    """A task to retrieve again, with the person's lease on it."""

    run: str
    task: str
    lease: str
    dry_run: bool = False


class SearchBody(Body):
    """A search in a run's corpus, with its encoder version and generation."""

    run: str
    text: str
    mode: Literal["dense", "lexical", "hybrid"] = "hybrid"
    accepted: list[str] = []
    exclude: list[str] = []
    k: int = Field(20, ge=1, le=100)


class CompareBody(Body):
    """A hypothesis, and one way to retrieve premises for it."""

    corpus: str
    text: str
    mode: Literal["dense", "lexical", "hybrid", "iterative_lexical"] = "dense"
    label: str = ""
    k: int = Field(20, ge=1, le=100)


@dataclass(frozen=True)
class Call:
    """One request of the page: the SDK's client, who is signed in, and what they sent."""

    client: AsyncClient
    person: Person
    request: Request
    session: Mapping[str, Any]

    @property
    def run(self) -> str:
        """The run in the path."""
        return str(self.request.path_params["run"])

    def lives(self) -> bool:
        """Whether the session goes on: a stream ends with it."""
        return bool(self.request.app.state.sessions.lives(self.session))

    @property
    def leases(self) -> Leases:
        """Seals and opens the ids of leases."""
        return cast("Leases", self.request.app.state.leases)

    @property
    def gold(self) -> list[Gold]:
        """The gold queries that measure encoders."""
        return cast("list[Gold]", self.request.app.state.gold)

    async def body(self, kind: type[B]) -> B:
        """Reads the body. Raises pydantic's ValidationError."""
        return kind.model_validate_json(await self.request.body())


Handler = Callable[[Call], Awaitable[Any]]


async def me(call: Call) -> Any:
    """Who is signed in."""
    return {"name": call.person.name, "role": call.person.role, "csrf": call.request.session["csrf"]}


async def queues(call: Call) -> Any:
    """All queues with counts and guidelines."""
    return await call.client.people.list_queues(call.person.name)


async def runs(call: Call) -> Any:
    """The latest runs that ask a queue, ended ones too, the latest first, with the number of their disputes."""
    return [{"run_id": run.id, "conflicts": _disputed(run), **described(run)} for run in await _asking(call)]


async def _asking(call: Call) -> list[values.Run]:
    names = {queue.name for queue in await call.client.people.list_queues()}
    return await first_of(run async for run in call.client.sampler.list_runs() if run.config.oracle in names)


def _disputed(run: values.Run) -> int:
    """How many disputes of a run can be decided: those of one that was cancelled can be once it is resumed."""
    unable = (values.WorkState.CANCELLED, values.WorkState.FAILED)
    return 0 if run.state in unable else run.progress.disputed


def described(run: values.Run) -> dict[str, Any]:
    """What names a run to people."""
    made = {"state": run.state, "queue": run.config.oracle, "created_at": run.created_at}
    return {**made, "trees": run.progress.trees}


async def lease(call: Call) -> Any:
    """The next task of the person, or null."""
    body = await call.body(LeaseBody)
    leases = await call.client.people.lease(
        call.person.name,
        run_id=body.run,
        queue=body.queue,
        hypothesis_id=body.hypothesis,
        task_id=body.task,
        request_id=body.request,
    )
    return replace(leases[0], lease_id=call.leases.seal(leases[0].lease_id, call.person)) if leases else None


async def renew(call: Call) -> Any:
    """Extends a lease."""
    body = await call.body(HeldBody)
    return {"expires_at": await call.client.people.renew(call.leases.open(body.lease, call.person))}


async def release(call: Call) -> Any:
    """Gives a task back."""
    body = await call.body(HeldBody)
    await call.client.people.release(call.leases.open(body.lease, call.person), body.reason)


async def answer(call: Call) -> Any:
    """Submits an answer."""
    body = await call.body(AnswerBody)
    held = values.Lease(lease_id=call.leases.open(body.lease, call.person))
    return await call.client.people.submit(
        held, body.whole(), seen_upto=body.seen_upto, elapsed_s=body.elapsed_s, client_seq=body.seq
    )


async def undo(call: Call) -> Any:
    """Takes the person's last answer back."""
    body = await call.body(UndoBody)
    return {"answers": await call.client.people.undo(call.person.name, body.run, request_id=body.request)}


async def amend(call: Call) -> Any:
    """Changes an answer: one's own, or as an adjudicator that of anybody."""
    body = await call.body(AmendBody)
    name = call.person.name
    if not call.person.may("adjudicator") and not await _is_own(call, body):
        raise PermissionDenied(f"answer {body.answer} is not by {name}; its author or an adjudicator changes it")
    made = await call.client.people.amend(body.answer, body.whole(), name, request_id=body.request)
    return {"answer": made}


async def _is_own(call: Call, body: AmendBody) -> bool:
    async for task in call.client.people.list_tasks(body.run, answered_by=call.person.name):
        if any(one.answer_id == body.answer for one in task.answers):
            return True
    return False


async def settle(call: Call) -> Any:
    """Lets the run go on with a decided task at once."""
    body = await call.body(TaskBody)
    return await call.client.people.settle(body.run, body.task, call.person.name, request_id=body.request)


async def again(call: Call) -> Any:
    """Has the person's task retrieved again by a newer encoder version, or (dry run) tells whether there is one."""
    body = await call.body(AgainBody)
    return await call.client.people.retrieve_again(
        body.run,
        call.person.name,
        task_id=body.task,
        lease_id=call.leases.open(body.lease, call.person),
        dry_run=body.dry_run,
    )


async def search(call: Call) -> Any:
    """Premises of a run's corpus that a query finds."""
    body = await call.body(SearchBody)
    run = await call.client.sampler.get_run(body.run)
    dense = body.mode != "lexical"
    found = await call.client.index.retrieve(
        run.config.corpus,
        [body.text],
        k=body.k,
        mode=body.mode,
        version=run.current_version if dense else None,
        accepted=[body.accepted] if body.accepted and dense else (),
        exclude=body.exclude,
        splits=("facts", run.config.split) if run.config.split else None,
        generation=run.generation,
        truncate=True,
    )
    return {"hits": found.results[0]}


async def compare(call: Call) -> Any:
    """Premises for a hypothesis by one label and mode, with the seconds that it took."""
    body = await call.body(CompareBody)
    label = body.label or None
    found = await call.client.index.retrieve(
        body.corpus, [body.text], k=body.k, mode=body.mode, label=label, truncate=True
    )
    return {"hits": found.results[0], "version": found.model_version, "generation": found.generation}


async def corpora(call: Call) -> Any:
    """The names of the corpora."""
    return [one async for one in call.client.index.list_corpora()]


async def tree(call: Call) -> Any:
    """The tree of a hypothesis."""
    return await call.client.people.get_tree(call.run, call.request.query_params.get("hypothesis", ""))


async def answers(call: Call) -> Any:
    """The latest answers in a run, the latest first: a person's own, for an adjudicator those of all."""
    if not call.person.may("adjudicator"):
        return await first_of(
            call.client.people.list_tasks(call.run, answered_by=call.person.name, page_size=MAX_LISTED)
        )
    answered = [task async for task in call.client.people.list_tasks(call.run) if task.answers]
    return heapq.nlargest(MAX_LISTED, answered, key=lambda task: max(answer.at for answer in task.answers))


async def disputes(call: Call) -> Any:
    """The disputed tasks of the latest runs that ask a queue, ended ones too, each with its run."""
    call.person.must_be("adjudicator")
    found: list[dict[str, Any]] = []
    for run in await _asking(call):
        if at_most := min(_disputed(run), MAX_LISTED - len(found)):
            with contextlib.suppress(NotFound):  # the run was deleted meanwhile
                tasks = await first_of(call.client.people.list_tasks(run.id, state="conflict"), at_most)
                found += [{"run_id": run.id, "judged": task} for task in tasks]
    return found


async def adjudicate(call: Call) -> Any:
    """Decides a conflict, unless another adjudicator has done so since the page was read."""
    call.person.must_be("adjudicator")
    body = await call.body(TaskBody)
    named = (task async for task in call.client.people.list_tasks(body.run) if task.task.task_id == body.task)
    for task in await first_of(named, 1):
        if not task.conflicts and task.decision.annotator not in ("", call.person.name):
            problem = f"{task.decision.annotator} has decided this task meanwhile; to decide it again: aeenc adjudicate"
            raise Aborted(f"{problem} {body.run} {body.task}", reason="DECIDED")
    verdicts = {premise_id: _VERDICTS[word] for premise_id, word in body.verdicts.items()}
    made = await call.client.people.adjudicate(body.run, body.task, verdicts, call.person.name, request_id=body.request)
    return {"answer": made}


async def agreement(call: Call) -> Any:
    """The agreement of a run's annotators."""
    call.person.must_be("adjudicator")
    return await call.client.people.get_agreement(call.run)


async def upheld(call: Call) -> Any:
    """How each person has judged what an adjudicator decided: `[as it was decided, in all]` by name."""
    call.person.must_be("adjudicator")
    found: dict[str, list[int]] = {}
    async for task in call.client.people.list_tasks(call.run):
        decision = {one.premise_id: one for one in task.decision.verdicts if one.annotator and one.judgement in _YES_NO}
        for answer in task.answers:
            for verdict in (*answer.verdicts, *answer.additions):
                if verdict.premise_id in decision and verdict.judgement in _YES_NO:
                    counts = found.setdefault(answer.annotator, [0, 0])
                    counts[0] += verdict.judgement is decision[verdict.premise_id].judgement
                    counts[1] += 1
    return found


async def changes(call: Call) -> Any:
    """The latest changes of a run's tasks, the latest first: the audit trail; and its answers by hour (UTC)."""
    call.person.must_be("adjudicator")
    latest: deque[values.TaskEvent] = deque(maxlen=MAX_LISTED)
    answers: Counter[datetime] = Counter()
    async for change in call.client.people.list_changes(call.run):
        latest.append(change)
        answers[change.at.replace(minute=0, second=0, microsecond=0)] += change.kind is values.TaskEventKind.ANSWERED
    by_hour = [{"at": at, "answers": count} for at, count in sorted(answers.items()) if count]
    return {"latest": list(reversed(latest)), "answers": by_hour}


async def download(call: Call) -> Any:
    """A file of a run."""
    call.person.must_be("adjudicator")
    return await downloads.download(call.client, call.run, str(call.request.path_params["form"]))


async def picture(call: Call) -> Any:
    """A tree as SVG."""
    return await downloads.picture(call.client, call.run, call.request.query_params.get("hypothesis", ""))


async def events(call: Call) -> Any:
    """All events of the queues from now on."""
    stream = call.request.app.state.events.stream(call.lives)
    return StreamingResponse(stream, media_type="text/event-stream", headers=NO_STORE)


_READS: dict[str, Handler] = {
    "/api/me": me,
    "/api/queues": queues,
    "/api/runs": runs,
    "/api/corpora": corpora,
    "/api/disputes": disputes,
    "/api/events": events,
    "/api/runs/{run}/tree": tree,
    "/api/runs/{run}/answers": answers,
    "/api/runs/{run}/agreement": agreement,
    "/api/runs/{run}/upheld": upheld,
    "/api/runs/{run}/changes": changes,
    "/api/runs/{run}/tree.svg": picture,
    "/api/runs/{run}/download/{form}": download,
}
_CHANGES: dict[str, Handler] = {
    "/api/lease": lease,
    "/api/renew": renew,
    "/api/release": release,
    "/api/answer": answer,
    "/api/undo": undo,
    "/api/amend": amend,
    "/api/settle": settle,
    "/api/again": again,
    "/api/search": search,
    "/api/compare": compare,
    "/api/adjudicate": adjudicate,
}


def routes() -> list[Route]:
    """The routes of queues, tasks and searches."""
    return make_routes(_READS, _CHANGES)


def make_routes(reads: Mapping[str, Handler], changes: Mapping[str, Handler]) -> list[Route]:
    """Makes routes of handlers by path. Both kinds need a session, `changes` its CSRF token, too."""
    got = [Route(path, _endpoint(one)) for path, one in reads.items()]
    return [*got, *(Route(path, _endpoint(one), methods=["POST"]) for path, one in changes.items())]


def _endpoint(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        person = person_of(request)
        done = await handler(Call(request.app.state.client, person, request, dict(request.session)))
        return done if isinstance(done, Response) else JSONResponse(plain(done), headers=NO_STORE)

    return endpoint


async def first_of(listed: AsyncIterator[T], at_most: int = MAX_LISTED) -> list[T]:
    """The first items of a list that may be long."""
    found: list[T] = []
    async for one in listed:
        found.append(one)
        if len(found) == at_most:
            break
    return found

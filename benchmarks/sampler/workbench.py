"""`make bench NAME=workbench`: people at the workbench, by the protocol of the page, without browsers.

    kills   20 people judge a run; sampler and workbench are killed 10 times each: what is lost, what is given twice?
    times   20 people, 16 k premises, all services on the same cores: next task, and the children after a decision
    walks   browsers at random, in two tabs and three widths: what is refused unseen, sent astray, lost, doubled?
    page    the weight of the first load

`--only PART` runs one part. `--longest-s 300 --seed N` walks other ways for each N: short runs make up a long one.
Needs `pip install clients/workbench` (`make test-browser` does it). Loopback only.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
from aeenc_workbench.sign_in import Links, Person

import aeenc
from aeenc import errors, values
from aeenc.oracle import EXPLAINS, Verdict
from aeenc.v1 import index_pb2, index_pb2_grpc
from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.rows import Rows, run_parts
from benchmarks.harness.services import CORPUS, running_retrieval, running_sampler
from services.launcher.processes import free_port
from services.sampler.people.task_store import TaskStore
from services.sampler.records.keys import RunKeys
from services.store.redis import connect
from support.service_process import RedisProcess, ServiceProcess
from support.worlds.browser_sight import Walked, Walker, windows
from support.worlds.browser_sight import check as compare
from support.worlds.people_world import People, check
from support.worlds.sampler_world import FakeIndex, serving

PEOPLE, KILLS, NAMESPACE = 20, 10, "workbench"
RETRY_S, LOOK_S = 0.3, 0.12  # of the page
SETTLE_S = 1.0  # from opening the page to asking for a task
CHILD_S = 10.0  # after which a node is taken to have no child
TEAM = {"undo_s": 0.5, "min_lease_s": 2.0, "first_lease_s": 2.0}
PAGE = Path(sys.modules["aeenc_workbench"].__file__ or "").parent / "page"
FIRST_LOAD_BYTES, NEXT_MS, CHILDREN_MS = 60_000, 150.0, 500.0
TREES, ANSWERS = 200, 15  # of `times`: of the run, and of a person
WIDTHS = (390, 1280, 1440)


class Browsers:
    """The page's calls for several people, repeated until they are answered, as the page repeats them."""

    def __init__(self, url: str, links: Links, people: aeenc.PeopleClient) -> None:
        self._url, self._links, self._people = url, links, people
        self._sessions: dict[str, tuple[httpx.AsyncClient, str]] = {}
        self.list_tasks = people.list_tasks
        self.holders: dict[str, str] = {}  # who holds a lease

    async def session(self, name: str) -> tuple[httpx.AsyncClient, str]:
        """A person's cookies and CSRF token."""
        if name not in self._sessions:
            http = httpx.AsyncClient(base_url=self._url, timeout=30)
            link = self._links.make(Person(name, "adjudicator"))
            while True:
                try:
                    await http.post(f"/sign-in?link={link}")
                    me = (await http.get("/api/me")).json()
                    self._sessions[name] = http, str(me["csrf"])
                    break
                except (httpx.TransportError, KeyError):
                    link = self._links.make(Person(name, "adjudicator"))  # the first one may have been used
                    await asyncio.sleep(RETRY_S)
        return self._sessions[name]

    async def call(self, name: str, path: str, body: dict[str, Any]) -> Any:
        """One call. Raises the sampler's refusals."""
        http, csrf = await self.session(name)
        while True:
            try:
                answer = await http.post(path, json=body, headers={"x-csrf-token": csrf})
            except httpx.TransportError:
                await asyncio.sleep(RETRY_S)
                continue
            if answer.status_code == 200:
                return answer.json()
            if answer.status_code in (503, 504):
                await asyncio.sleep(RETRY_S)
                continue
            told = answer.json()
            kind = errors.FailedPrecondition if answer.status_code == 412 else errors.NotFound
            raise kind(told["detail"], reason=told["reason"])

    async def lease(self, name: str, *, run_id: str = "", max_tasks: int = 1, **wanted: str) -> list[values.Lease]:  # noqa: ARG002 -- the page takes one
        """A person's next task, or none."""
        found = await self.call(name, "/api/lease", {"run": run_id, "request": uuid.uuid4().hex, **wanted})
        if found is None:
            return []
        task = found["task"]
        candidates = tuple(
            values.RankedPremise(premise=values.Premise(id=one["premise_id"], text=one["text"]), rank=one["rank"])
            for one in task["candidates"]
        )
        asked = values.OracleTask(task_id=task["task_id"], query=task["query"], candidates=candidates)
        lease = values.Lease(
            lease_id=found["lease_id"],
            run_id=found["run_id"],
            task=asked,
            expires_at=datetime.fromisoformat(found["expires_at"]),
            hypothesis_id=found["hypothesis_id"],
            node_id=found["node_id"],
        )
        self.holders[lease.lease_id] = name
        return [lease]

    async def renew(self, lease_id: str) -> None:
        """Extends a lease."""
        await self.call(self.holders[lease_id], "/api/renew", {"lease": lease_id})

    async def release(self, lease_id: str, reason: str) -> None:
        """Gives a task back."""
        await self.call(self.holders[lease_id], "/api/release", {"lease": lease_id, "reason": reason})

    async def submit(self, lease: values.Lease, ticked: dict[str, Verdict], *, client_seq: int) -> Any:
        """Submits an answer to all candidates."""
        body = {
            "lease": lease.lease_id,
            "verdicts": {one: "leaf" if verdict.leaf else "explains" for one, verdict in ticked.items()},
            "seen_upto": max(candidate.rank for candidate in lease.task.candidates),
            "seq": client_seq or 1,
        }
        done = await self.call(self.holders[lease.lease_id], "/api/answer", body)
        return values.SubmittedVerdicts(**done)

    async def undo(self, name: str, run_id: str, *, request_id: str) -> list[str]:
        """Takes a person's last answer back."""
        done = await self.call(name, "/api/undo", {"run": run_id, "request": request_id})
        return list(done["answers"])

    async def held_by_others(self, name: str, run_id: str, tree: str, node_id: str) -> bool:
        """Whether other people hold a child of a node."""
        http, _ = await self.session(name)
        drawn = (await http.get(f"/api/runs/{run_id}/tree", params={"hypothesis": tree})).json()
        return any(node["parent_id"] == node_id and node["holders"] for node in drawn["nodes"])

    async def close(self) -> None:
        """Closes all windows."""
        for http, _ in self._sessions.values():
            await http.aclose()


@asynccontextmanager
async def running_workbench(home: Path, sampler: str, index: str) -> AsyncIterator[tuple[ServiceProcess, str, Links]]:
    """A workbench in a process of its own; its address and links."""
    port, state = free_port(set()), home / "state"
    command = ["-m", "aeenc_workbench", "--port", str(port), "--state-dir", str(state)]
    command += ["--sampler", sampler, "--index", index]
    async with ServiceProcess("workbench", command, home, port=port, has_health=False).running() as process:
        yield process, f"http://{process.target}", Links(state)


@dataclass
class Desk:
    """A sampler over its own Redis and an index that makes premises up, a workbench over both, and clients."""

    redis: RedisProcess
    sampling: ServiceProcess
    workbench: ServiceProcess
    url: str
    links: Links
    sampler: aeenc.SamplerClient
    people: aeenc.PeopleClient


@asynccontextmanager
async def running_desk(index: FakeIndex, **settings: Any) -> AsyncIterator[Desk]:
    """Starts it; everything ends with the block. `settings` are the sampler's."""
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aeenc-bench-")))
        redis = RedisProcess(home / "redis")
        stack.callback(redis.stop)
        port = await stack.enter_async_context(serving(index_pb2_grpc.add_IndexServiceServicer_to_server, index))
        own = {"redis_url": redis.url, "namespace": NAMESPACE, "index_target": f"127.0.0.1:{port}", "poll_s": 0.1}
        sampling = ServiceProcess.of("sampler", home, **own, **settings)
        await stack.enter_async_context(sampling.running())
        started = running_workbench(home, sampling.target, own["index_target"])
        workbench, url, links = await stack.enter_async_context(started)
        sampler = aeenc.SamplerClient(aeenc.Channel(sampling.target, retry=aeenc.PATIENT))
        stack.push_async_callback(sampler.channel.close)
        yield Desk(redis, sampling, workbench, url, links, sampler, aeenc.PeopleClient(sampler.channel))


async def kills(rows: Rows, given: Any) -> None:
    """Twenty people and twenty kills."""
    roots = [(f"tree-{n}", f"hypothesis {n}") for n in range(given.hypotheses)]
    async with running_desk(FakeIndex(), queues={"team": TEAM}, lease_s=1.0) as desk:
        sampler = desk.sampler
        run = await sampler.start_run(roots, corpus="science", oracle="team", k=6)
        browsers = Browsers(desk.url, desk.links, desk.people)
        crowd = People(browsers, run.id, think_s=given.think_s)  # type: ignore[arg-type]
        persons = [asyncio.create_task(crowd.person(f"person-{n}")) for n in range(PEOPLE)]
        ended, begun, killed = asyncio.create_task(sampler.wait(run.id)), time.monotonic(), 0
        done = await _progress(sampler, run.id)
        while not ended.done():
            await asyncio.wait([ended], timeout=0.2)
            share = await _progress(sampler, run.id) if killed < 2 * KILLS else 0.0
            if killed < 2 * KILLS and (share - done) >= 0.8 / (2 * KILLS) and not ended.done():
                done, killed = share, killed + 1
                victim = desk.workbench if killed % 2 else desk.sampling
                victim.kill()
                victim.start()
        crowd.done.set()
        await asyncio.gather(*persons)
        took_s = time.monotonic() - begun
        store = TaskStore(connect(desk.redis.url), RunKeys(NAMESPACE))
        found = await check(crowd, sampler, store, 1, roots)
        counts = crowd.ledger.counts
        told = f"{len(crowd.ledger.said)} answers, {counts['late']} late, {len(crowd.ledger.undone)} undone"
        rows.note(f"{PEOPLE} people, {killed} kills of sampler and workbench", took_s / 60, "min", told)
        rows.at_most("answers acknowledged in the page and lost", len(found.lost), "answers", 0)
        rows.at_most("tasks given to two people", len(found.held_twice), "tasks", 0)
        rows.at_most("tasks without their answer; pairs that differ", len(found.unanswered) + len(found.pairs), "", 0)
        for problem in found.all()[:10]:
            print("     ", problem)
        await browsers.close()


async def _progress(sampler: aeenc.SamplerClient, run_id: str) -> float:
    try:
        run = await sampler.get_run(run_id)
    except errors.AeencError:
        return 0.0
    return run.progress.trees_done / max(run.progress.trees, 1)


async def times(rows: Rows, _: Any) -> None:
    """How long people wait: for the next task, and for the children of a node after "go on now"."""
    dataset = entailmentbank()
    roots = [(f"tree-{n}", text) for n, (_, text) in enumerate(dataset.hypotheses("train")[:TREES])]
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aeenc-bench-")))
        retrieval = await stack.enter_async_context(running_retrieval(dataset))
        queues = {"team": {"undo_s": 60.0}}
        sampling = await stack.enter_async_context(
            running_sampler(retrieval.index.process.target, {"target": "127.0.0.1:1"}, queues=queues)
        )
        started = running_workbench(home, sampling.process.target, retrieval.index.process.target)
        _, url, links = await stack.enter_async_context(started)
        people = aeenc.PeopleClient(sampling.client.channel)
        run = await sampling.client.start_run(roots, corpus=CORPUS, oracle="team", k=20, split="train")
        browsers = Browsers(url, links, people)
        names = [f"person-{n}" for n in range(PEOPLE)]
        for name in names:
            await browsers.session(name)
        while len([task async for task in people.list_tasks(run.id)]) < len(roots):  # noqa: ASYNC110 -- a look at Redis
            await asyncio.sleep(RETRY_S)  # people come to a run whose first tasks are there
        next_s: list[float] = []
        children_s: list[float] = []
        await asyncio.gather(*(_person(browsers, name, run.id, ANSWERS, next_s, children_s) for name in names))
        await browsers.close()
    premises = f"{len(dataset.candidates()):,} premises, {PEOPLE} people"
    _add(rows, f"next task and its candidates, p95; {premises}", next_s, NEXT_MS)
    _add(rows, '"go on now" to the children\'s candidates, p95', children_s, CHILDREN_MS)


def _add(rows: Rows, name: str, took_s: Sequence[float], most_ms: float) -> None:
    ordered = sorted(took_s)
    p95 = 1000 * ordered[int(0.95 * len(ordered))]
    rows.at_most(name, p95, "ms", most_ms, f"median {1000 * statistics.median(ordered):.0f}, {len(ordered)} times")


async def _person(
    browsers: Browsers, name: str, run_id: str, answers: int, next_s: list[float], children_s: list[float]
) -> None:
    rng, tree = random.Random(name), ""
    events = asyncio.Event()
    following = asyncio.create_task(_follow(browsers, name, events))
    await asyncio.sleep(SETTLE_S)
    for _ in range(answers):
        begun = time.monotonic()
        found = await browsers.lease(name, run_id=run_id, hypothesis=tree) if tree else []
        if not found:
            begun = time.monotonic()
            found = await browsers.lease(name, run_id=run_id)
        if not found:
            break
        next_s.append(time.monotonic() - begun)
        [lease] = found
        await asyncio.sleep(rng.expovariate(1 / 1.0))
        ticked = {lease.task.candidates[0].premise.id: Verdict(EXPLAINS)}
        await browsers.submit(lease, ticked, client_seq=rng.getrandbits(40))
        tree, begun = lease.hypothesis_id, time.monotonic()
        body = {"run": run_id, "task": lease.task.task_id, "request": uuid.uuid4().hex}
        await browsers.call(name, "/api/settle", body)
        while (left_s := begun + CHILD_S - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):  # nothing happens any more: this node has no child
                await asyncio.wait_for(events.wait(), left_s)
            await asyncio.sleep(LOOK_S)
            events.clear()
            if child := await browsers.lease(name, run_id=run_id, hypothesis=tree):
                children_s.append(time.monotonic() - begun)
                await browsers.release(child[0].lease_id, "measured")
                break
            if await browsers.held_by_others(name, run_id, tree, lease.node_id):
                break  # trees on the same topic ask the same: somebody else has just taken it
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError, httpx.TransportError):
        await following


async def _follow(browsers: Browsers, name: str, events: asyncio.Event) -> None:
    http, _ = await browsers.session(name)
    async with http.stream("GET", "/api/events", timeout=None) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data:") and json.loads(line[5:])["event"] in ("queued", "settled"):
                events.set()


class LongFacts(FakeIndex):
    """Finds facts of several lines, and some that are taller than a small window."""

    async def Retrieve(self, request: Any, context: Any) -> index_pb2.RetrieveResponse:
        """Answers as its parent does, with longer texts."""
        answer = await super().Retrieve(request, context)
        for found in answer.results:
            for one in found.premises:
                one.premise.text += " and so on" * (80 if int(one.premise.id.removeprefix("p")) % 15 == 0 else 4)
        return answer


async def walks(rows: Rows, given: Any) -> None:
    """People at random in browsers, beside boxes and calls that the driver records."""
    walked, patient = Walked(), {**TEAM, "min_lease_s": 30.0, "first_lease_s": 30.0}
    asked = {k: [(f"k{k}-{n}", f"k{k} hypothesis {n}") for n in range(given.answers)] for k in (9, 50)}
    async with running_desk(LongFacts(), queues={f"of {k}": patient for k in asked}) as desk:
        runs = [
            await desk.sampler.start_run(roots, corpus="science", oracle=f"of {k}", k=k, max_depth=1)
            for k, roots in asked.items()
        ]
        names = [f"{width} px, of {k}" for width in WIDTHS for k in asked]
        signed_in = [f"{desk.url}/sign-in?link={desk.links.make(Person(name, 'annotator'))}" for name in names]
        wide = [int(name.partition(" ")[0]) for name in names]
        async with windows(signed_in) as pages:
            walkers = [Walker(*one, walked, given.seed) for one in zip(pages, names, wide, strict=True)]
            for walker in walkers:
                await walker.start(walker.name.partition(", ")[2])
            begun = time.monotonic()
            await asyncio.gather(*(walker.walk(given.answers, begun + given.longest_s) for walker in walkers))
            took_s = time.monotonic() - begun
            await asyncio.sleep(SETTLE_S)
            await compare(walkers, desk.people, [run.id for run in runs], walked)
    lists = " and ".join(f"{count} to lists of {k}" for k, count in sorted(walked.lists.items()))
    acts = f"{lists}; {sum(walker.acts for walker in walkers)} acts; {walked.unread} sent unseen"
    acts += f"; {walked.changed} answers changed later"
    rows.note(f"{len(walkers)} walkers, seed {given.seed}, {walked.answers} answers", took_s / 60, "min", acts)
    told = f"of {walked.refusals}"
    rows.at_most("refusals of candidates not in sight for a second", len(walked.refused_unseen), "refusals", 0, told)
    rows.at_most("answers to another task than the one shown", len(walked.of_another_task), "answers", 0)
    rows.at_most("answers lost or twice", len(walked.lost) + len(walked.twice), "answers", 0)
    for problem in [*walked.refused_unseen, *walked.of_another_task, *walked.lost, *walked.twice][:10]:
        print("     ", problem)


def page(rows: Rows, _: Any) -> None:
    """What a browser loads first."""
    packed = sum(len(gzip.compress(path.read_bytes())) for path in PAGE.rglob("*") if path.is_file())
    rows.at_most("page weight, first load, compressed", packed, "bytes", FIRST_LOAD_BYTES)


if __name__ == "__main__":
    run_parts(
        "workbench",
        __doc__,
        {"page": page, "times": times, "kills": kills, "walks": walks},
        {
            "--hypotheses": {"type": int, "default": 400, "help": "of the run of `kills`"},
            "--think-s": {"type": float, "default": 0.5, "help": "mean seconds that a person thinks in `kills`"},
            "--answers": {"type": int, "default": 500, "help": "of `walks`"},
            "--longest-s": {"type": float, "default": 3600.0, "help": "seconds after which `walks` ends in any case"},
            "--seed": {"type": int, "default": 0, "help": "of `walks`"},
        },
    )

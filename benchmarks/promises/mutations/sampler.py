"""The RPCs of the sampler that change runs and pairs. Those of people are in `people`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from aeenc.v1 import sampler_pb2, types_pb2
from benchmarks.promises.fleet import CORPUS
from benchmarks.promises.mutations.mutation import Mutation, Subject, fresh

K = 3
TREES = 2
LIVE = (types_pb2.WORK_STATE_PENDING, types_pb2.WORK_STATE_RUNNING)
PAIRS = 5


def roots(count: int, salt: str) -> list[tuple[str, str]]:
    """Hypotheses that nobody else has."""
    return [(f"tree-{n}", f"the sun and {salt} are the same as {n}") for n in range(count)]


class RunMutation(Mutation):
    """Base of the mutations of runs: runs that wait for people who never come."""

    service = "sampler"

    async def start(self, count: int = 1, queue: str = "team") -> sampler_pb2.Run:
        """Starts a run for people."""
        options = {"corpus": CORPUS, "oracle": queue, "k": K, "max_depth": 0}
        return await self.world.client.sampler.start_run(roots(count, fresh("h")), **options)

    async def runs(self) -> dict[str, sampler_pb2.Run]:
        """All runs by id."""
        return {run.id: run async for run in self.world.client.sampler.list_runs()}

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        found = await self.runs()
        return [self.state_of(found[subject.name]) for subject in subjects]

    async def tidy(self) -> None:
        """Cancels all runs, so that their workers do not add up."""
        for run in (await self.runs()).values():
            if run.state in LIVE:
                await self.world.client.sampler.cancel(run.id)

    @staticmethod
    def state_of(run: sampler_pb2.Run) -> str:
        """Whether somebody may work on it."""
        return "live" if run.state in LIVE else types_pb2.WorkState.Name(run.state)


class StartRun(RunMutation):
    """StartRun under an idempotency key."""

    rpc = "SamplerService.StartRun"
    ignored = ("existed", "run.progress", "run.state", "run.model_version", "run.generation", "run.current_version")

    async def prepare(self, count: int) -> list[Subject]:
        return [Subject(key, self._maker(key), {"absent"}) for key in (fresh("start") for _ in range(count))]

    @staticmethod
    def _maker(key: str) -> Any:
        def request(k: int) -> list[sampler_pb2.StartRunRequest]:
            config = sampler_pb2.RunConfig(corpus=CORPUS, oracle="team", k=k, max_depth=0, idempotency_key=key)
            hypotheses = [sampler_pb2.Hypothesis(id=one, text=text) for one, text in roots(TREES, key)]
            ask = sampler_pb2.StartRunRequest
            return [ask(config=config, hypotheses=hypotheses[:1]), ask(hypotheses=hypotheses[1:])]

        return lambda: (request(K), request(K + 1), "present")

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        by_key: dict[str, list[sampler_pb2.Run]] = {}
        for run in (await self.runs()).values():
            by_key.setdefault(run.config.idempotency_key, []).append(run)
        found = []
        for subject in subjects:
            runs = by_key.get(subject.name, [])
            whole = len(runs) == 1 and runs[0].progress.trees == TREES
            found.append("present" if whole else "absent" if not runs else f"partly: {len(runs)} runs")
        return found


class CancelRun(RunMutation):
    """CancelRun of runs that wait for people."""

    rpc = "SamplerService.CancelRun"
    ignored = ("run.progress", "run.ended_at")

    async def prepare(self, count: int) -> list[Subject]:
        runs = [await self.start() for _ in range(count)]
        another = (await self.start()).id
        return [Subject(run.id, self._maker(run.id, another), {"live"}) for run in runs]

    @staticmethod
    def _maker(run_id: str, another: str) -> Any:
        ask, request_id = sampler_pb2.CancelRunRequest, fresh("r")
        requests = [ask(run_id=one, request_id=request_id) for one in (run_id, another)]
        return lambda: (*requests, "WORK_STATE_CANCELLED")


class ResumeRun(RunMutation):
    """ResumeRun of runs that were cancelled."""

    rpc = "SamplerService.ResumeRun"
    ignored = ("run.progress", "run.state", "run.model_version", "run.generation", "run.current_version")

    async def prepare(self, count: int) -> list[Subject]:
        runs = [await self.start() for _ in range(count + 1)]
        for run in runs:
            await self.world.client.sampler.cancel(run.id)
        *runs, another = runs
        return [Subject(run.id, self._maker(run.id, another.id), {"WORK_STATE_CANCELLED"}) for run in runs]

    @staticmethod
    def _maker(run_id: str, another: str) -> Any:
        ask, request_id = sampler_pb2.ResumeRunRequest, fresh("r")
        requests = [ask(run_id=one, request_id=request_id) for one in (run_id, another)]
        return lambda: (*requests, "live")


class ImportPairs(RunMutation):
    """ImportPairs as runs of their own, told apart by their corpus."""

    rpc = "SamplerService.ImportPairs"

    async def prepare(self, count: int) -> list[Subject]:
        return [Subject(corpus, self._maker(corpus), {"absent"}) for corpus in (fresh("import") for _ in range(count))]

    @staticmethod
    def _maker(corpus: str) -> Any:
        request_id = fresh("r")

        def request(salt: str) -> sampler_pb2.ImportPairsRequest:
            sign = types_pb2.PAIR_SIGN_POSITIVE
            pairs = [
                types_pb2.Pair(query=f"query {n}{salt}", premise_id=f"p{n}", premise=f"premise {n}", sign=sign)
                for n in range(PAIRS)
            ]
            return sampler_pb2.ImportPairsRequest(corpus=corpus, pairs=pairs, request_id=request_id)

        return lambda: (request(""), request(" more"), "present")

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        by_corpus = Counter(run.config.corpus for run in (await self.runs()).values())
        ids = {run.config.corpus: run.id for run in (await self.runs()).values()}
        found = []
        for subject in subjects:
            runs = by_corpus[subject.name]
            pairs = [pair async for pair in self.world.client.sampler.list_pairs(ids[subject.name])] if runs else []
            whole = runs == 1 and len(pairs) == PAIRS
            found.append("present" if whole else "absent" if not runs else f"partly: {runs} runs, {len(pairs)} pairs")
        return found


MUTATIONS = (StartRun, CancelRun, ResumeRun, ImportPairs)

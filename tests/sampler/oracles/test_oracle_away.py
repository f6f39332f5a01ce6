"""Oracles that go away and come back, ask for patience, or hang on some tasks: the run waits for them and goes on."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest

import aeenc
from aeenc import errors
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, Task, Verdict
from aeenc.oracles.client import OracleClient
from aeenc.v1 import oracle_pb2, oracle_pb2_grpc, types_pb2
from support.worlds.sampler_world import (
    HYPOTHESES,
    FakeOracle,
    SamplerWorld,
    answered_by,
    brute_force,
    chance,
    explains,
    finish,
    is_leaf,
    pair_set,
    refuse,
    serving,
)

REGISTER = oracle_pb2_grpc.add_OracleServiceServicer_to_server
SUCCEEDED, FAILED = types_pb2.WORK_STATE_SUCCEEDED, types_pb2.WORK_STATE_FAILED


async def test_a_run_waits_for_an_oracle_that_restarts(world: SamplerWorld, until_progress):
    oracle = FakeOracle(delay_s=0.02)
    async with serving(REGISTER, oracle) as port:
        pass
    settings = {"target": f"127.0.0.1:{port}", "patience_s": 60.0, "max_attempts": 1, "batch_tasks": 2}
    # It is not the breaker alone that makes the run wait, and a slow machine is no slow oracle.
    settings |= {"breaker_failures": 50, "timeout_s": 60.0}
    async with world.sampler(wave_nodes=4, oracle=settings) as client:
        async with serving(REGISTER, oracle, port):
            run = await client.start_run(HYPOTHESES, corpus="science", oracle="fake", k=6)
            await until_progress(client, run.id, nodes_judged=5)
        await asyncio.sleep(0.5)  # away for longer than all attempts take
        assert (await client.get_run(run.id)).state == types_pb2.WORK_STATE_RUNNING
        async with serving(REGISTER, oracle, port):
            run = await client.wait(run.id)
            assert run.state == SUCCEEDED
            assert await pair_set(client, run.id) == brute_force()
            assert run.progress.nodes_failed == 0


async def test_a_server_that_is_back_by_the_time_that_a_call_has_failed_was_away(world: SamplerWorld, monkeypatch):
    judge, states = OracleClient.judge, [True, False]  # after the first call, and before it

    async def refused_once(client: OracleClient, *given: Any, **more: Any) -> Any:
        if states:
            raise errors.Unavailable("connection refused")
        return await judge(client, *given, **more)

    monkeypatch.setattr(OracleClient, "connected", property(lambda _: states.pop() if states else True))
    monkeypatch.setattr(OracleClient, "judge", refused_once)
    async with world.sampler(oracle={"patience_s": 60.0, "max_attempts": 1, "batch_tasks": 1}) as client:
        run = await finish(client, hypotheses=HYPOTHESES[:1], max_depth=0)
    assert (run.state, run.progress.nodes_failed) == (SUCCEEDED, 0)


async def test_the_first_call_of_a_sampler_counts_where_a_server_has_refused_it(world: SamplerWorld):
    world.oracle.status = grpc.StatusCode.INTERNAL
    async with world.sampler(oracle={"max_attempts": 1}) as client:
        assert (await finish(client, hypotheses=HYPOTHESES[:1], max_depth=0)).state == FAILED
    assert world.oracle.calls == 1


async def test_a_run_waits_and_says_so_while_an_oracle_fails_everybody(
    world: SamplerWorld, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("services.sampler.oracles.gateway.MAX_PAUSE_S", 0.05)
    async with world.sampler(oracle={"patience_s": 60.0, "breaker_failures": 3, "max_attempts": 1}) as client:
        assert (await finish(client, hypotheses=HYPOTHESES[:1])).state == SUCCEEDED  # it has answered before
        world.oracle.calls, world.oracle.status = 0, grpc.StatusCode.UNAVAILABLE
        run = await client.start_run(HYPOTHESES, corpus="science", oracle="fake", k=6)
        await world.oracle.called(12)  # more than the one attempt together and that of each alone
        assert (await client.get_run(run.id)).state == types_pb2.WORK_STATE_RUNNING
        [waits] = (await client.info()).waiting_runs
        assert waits.run_id == run.id
        assert re.match("oracle 'fake' fails and is tried again: .*out of order", waits.reason)
        world.oracle.status = None
        assert (await client.wait(run.id)).state == SUCCEEDED
        assert (await client.info()).waiting_runs == ()
        assert await pair_set(client, run.id) == brute_force()


async def test_a_run_that_waits_can_be_cancelled_and_another_tries_at_once(world: SamplerWorld):
    world.oracle.status = grpc.StatusCode.UNAVAILABLE
    async with world.sampler(oracle={"patience_s": 60.0, "breaker_failures": 1}) as client:
        run = await client.start_run(HYPOTHESES, corpus="science", oracle="fake", k=6)
        await world.oracle.called(1)
        await client.cancel(run.id)
        world.oracle.status = None
        assert (await finish(client)).state == SUCCEEDED


class Busy(FakeOracle):
    """Refuses its first call with a delay to keep."""

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self.retry_after_s = delay_s
        self.called_at: list[float] = []

    async def Judge(self, request: Any, context: Any) -> Any:
        self.called_at.append(asyncio.get_running_loop().time())
        if len(self.called_at) == 1:
            await refuse(context, errors.Overloaded("later", retry_after_s=self.retry_after_s))
        return await super().Judge(request, context)


async def test_an_oracle_that_asks_for_a_pause_gets_it(world: SamplerWorld):
    busy = Busy(0.6)
    async with serving(REGISTER, busy) as port, world.sampler(oracle={"target": f"127.0.0.1:{port}"}) as client:
        assert (await finish(client)).state == SUCCEEDED
    assert busy.called_at[1] - busy.called_at[0] >= 0.6


class Careful(aeenc.Oracle):
    """A user's oracle of the same world; hangs on one query."""

    name = "careful"

    def __init__(self, hangs_on: str = "") -> None:
        self.hangs_on = hangs_on

    async def judge(self, task: Task) -> dict[str, Verdict]:
        if task.query == self.hangs_on:
            await asyncio.sleep(3600)
        return {
            c.id: Verdict(EXPLAINS, leaf=is_leaf(c.text)) if explains(task.query, c.text) else Verdict(REFUSES)
            for c in task.candidates
        }


@pytest.mark.slow
async def test_a_task_that_hangs_does_not_take_the_others_of_its_call_along(world: SamplerWorld):
    settings = {"timeout_s": 1.0, "max_attempts": 3, "breaker_failures": 50}
    async with answered_by(world, Careful("hypothesis 3"), **settings) as client:
        run = await finish(client)
        recorded = await pair_set(client, run.id, "+-?")
    assert (run.state, run.progress.nodes_failed) == (SUCCEEDED, 1)
    assert recorded == brute_force([h for h in HYPOTHESES if h[1] != "hypothesis 3"])


class Noisy(Careful):
    """Hangs, fails, abstains, and contradicts itself at times; a verdict is the same at each attempt."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts, self.happened = Counter[str](), Counter[str]()

    def happens(self, what: str, rate: float, *parts: object) -> bool:
        self.happened[what] += (does := chance(what, *parts) < rate)
        return does

    def abstains(self, query: str, premise: str) -> bool:
        return self.happens("abstention", 0.1, query, premise)

    async def judge(self, task: Task) -> dict[str, Verdict]:
        self.attempts[task.task_id] += 1
        at = (task.query, self.attempts[task.task_id])
        if self.happens("hang", 0.1, *at):
            await asyncio.sleep(3600)
        if self.happens("failure", 0.05, *at):
            raise errors.Unavailable("this oracle fails at times, on purpose")
        said = await super().judge(task)
        return said | {c.id: Verdict(ABSTAINS) for c in task.candidates if self.abstains(task.query, c.text)}

    def sent(self, task: Task, answer: oracle_pb2.Answer) -> oracle_pb2.Answer:
        if self.happens("contradiction", 0.05, task.query, self.attempts[task.task_id]):
            twins = [oracle_pb2.Verdict(premise_id=one.premise_id, judgement=REFUSES) for one in answer.verdicts]
            answer.verdicts.extend(twins)
        return answer


@pytest.mark.slow
async def test_of_all_that_goes_wrong_at_once_nothing_becomes_a_pair_and_the_run_finishes(world: SamplerWorld):
    oracle = Noisy()
    async with answered_by(world, oracle, timeout_s=0.5, patience_s=60.0, max_attempts=6) as client:
        run = await finish(client)
        recorded, skipped = await pair_set(client, run.id), await pair_set(client, run.id, "?")
    assert (run.state, run.progress.trees_done) == (SUCCEEDED, run.progress.trees)
    assert min(oracle.happened[what] for what in ("hang", "failure", "abstention", "contradiction")) > 0
    assert all(explains(query, premise) is (sign == "+") for query, premise, sign in recorded)
    assert not any(oracle.abstains(query, premise) for query, premise, _ in recorded)
    assert any(oracle.abstains(query, premise) for query, premise, _ in skipped)


def test_a_certificate_that_is_not_there_stops_the_start(world: SamplerWorld, tmp_path: Path):
    with pytest.raises(ValueError, match="ca"):
        world.configure(oracle={"ca": str(tmp_path / "nothing.pem")})


class Poisoned(FakeOracle):
    """Fails every call that holds one query; keeps how many tasks each call had."""

    def __init__(self, query: str) -> None:
        super().__init__()
        self.query = query
        self.sizes: list[int] = []

    async def Judge(self, request: Any, context: Any) -> Any:
        self.sizes.append(len(request.tasks))
        if any(task.query == self.query for task in request.tasks):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "poisoned")
        return await super().Judge(request, context)


async def test_after_a_failed_call_the_next_are_half_as_large_and_nothing_answered_is_asked_again(world: SamplerWorld):
    oracle = Poisoned("hypothesis 3")
    settings = {"max_attempts": 5, "breaker_failures": 50}
    async with (
        serving(REGISTER, oracle) as port,
        world.sampler(oracle={"target": f"127.0.0.1:{port}", **settings}) as client,
    ):
        await finish(client, hypotheses=HYPOTHESES[:1], max_depth=0)  # there is a connection now
        oracle.sizes.clear()
        oracle.asked.clear()
        run = await finish(client, max_depth=0)
    assert (run.state, run.progress.nodes_failed) == (SUCCEEDED, 1)
    assert sorted(oracle.sizes, reverse=True)[:6] == [9, 5, 4, 3, 2, 2]
    assert len(oracle.asked) == len(set(oracle.asked))


async def test_an_oracle_that_was_never_there_is_not_waited_for_long(
    world: SamplerWorld, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("services.sampler.oracles.gateway.FIRST_PATIENCE_S", 0.2)
    async with world.sampler(oracle={"target": "127.0.0.1:1", "patience_s": 3600.0}) as client:
        run = await finish(client)
    assert run.state == FAILED
    assert "127.0.0.1:1" in run.error

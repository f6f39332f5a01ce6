"""Reading answers: whatever they hold, a refusal is one clear refusal, and nonsense is a failure."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeenc.oracle import EXPLAINS, REFUSES, Candidate, Task
from aeenc.v1 import oracle_pb2
from aeenc.values import Answer, Judgement, Verdict
from services.sampler.acs.algorithm import JUDGEMENTS, MAX_ANNOTATOR, explains
from services.sampler.oracles.answers import read_answers
from support.worlds.sampler_world import (
    HYPOTHESES,
    SamplerWorld,
    brute_force,
    failed,
    finish,
    honest,
    pair_set,
)

IDS = ("p1", "p2", "p3")
TASKS = [Task(name, "run", "query", (), (), tuple(Candidate(i, i, 1, 0.5) for i in IDS)) for name in ("t1", "t2")]

verdicts = st.builds(
    Verdict,
    premise_id=st.sampled_from([*IDS, "other", ""]),
    judgement=st.sampled_from([0, 1, 2, 3, 4, 5, 99, -1]).map(Judgement),
    leaf=st.booleans(),
    grade=st.none() | st.floats(),
    annotator=st.text(max_size=3),
)
answers = st.builds(
    Answer,
    task_id=st.sampled_from(["t1", "t2", "t3", ""]),
    verdicts=st.lists(verdicts, max_size=6).map(tuple),
    annotator=st.text(max_size=3),
)


@given(st.lists(answers, max_size=4))
def test_a_refusal_is_read_only_from_a_single_clear_refusal(given_answers: list[Answer]):
    for judged in read_answers(TASKS, given_answers):
        mine = [answer for answer in given_answers if answer.task_id == judged.task_id]
        assert len(mine) == 1
        assert judged.verdicts.keys() == set(IDS)
        for premise_id, verdict in judged.verdicts.items():
            said = [one.judgement for one in mine[0].verdicts if one.premise_id == premise_id]
            assert (explains(verdict) is False) is (said == [REFUSES])
            assert (explains(verdict) is True) is (said == [EXPLAINS])
            assert verdict.judgement in JUDGEMENTS


def test_each_judgement_of_the_contract_says_whether_the_premise_explains_the_query():
    assert {*JUDGEMENTS, Judgement.UNSPECIFIED} == set(Judgement)


def refused(premise_id: str, **said: Any) -> Verdict:
    return Verdict(premise_id=premise_id, judgement=Judgement.DOES_NOT_EXPLAIN, **said)


@pytest.mark.parametrize("grade", [math.nan, math.inf, -math.inf])
def test_a_grade_that_is_no_number_is_dropped_and_the_verdict_kept(grade: float):
    odd = Answer(task_id="t1", verdicts=(refused("p1", grade=grade), refused("p2", grade=0.5)), annotator="it")
    [judged] = read_answers(TASKS, [odd])
    assert [judged.verdicts[one].grade for one in IDS] == [None, 0.5, None]
    assert explains(judged.verdicts["p1"]) is False


def test_an_endless_annotator_is_cut():
    given = (refused("p1", annotator="a" * 10**6), refused("p2"))
    long = Answer(task_id="t1", verdicts=given, annotator="b" * 10**6)
    [judged] = read_answers(TASKS, [long])
    assert judged.verdicts["p1"].annotator == "a" * MAX_ANNOTATOR
    assert judged.annotator == "b" * MAX_ANNOTATOR


@pytest.mark.parametrize(("named", "said_by"), [("", "team"), ("it", "it")])
def test_what_an_answer_without_an_annotator_says_is_said_by_its_oracle(named: str, said_by: str):
    answer = Answer(task_id="t1", verdicts=(refused("p1"),), note="so", annotator=named)
    [judged] = read_answers(TASKS, [answer], "team")
    assert judged.statement is not None
    assert (judged.annotator, judged.statement.annotator) == (said_by, said_by)


class Raw(grpc.GenericRpcHandler):
    """A server that answers every call with the same bytes, whatever they are, or with a broken trailer."""

    def __init__(self, content: bytes, trailer: bytes = b"") -> None:
        self.content, self.trailer = content, trailer

    def service(self, handler_call_details: Any) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            if self.trailer:
                details = (("grpc-status-details-bin", self.trailer),)
                await context.abort(grpc.StatusCode.INTERNAL, "broken", details)
            return self.content

        return grpc.unary_unary_rpc_method_handler(answer)


@asynccontextmanager
async def raw(**broken: Any) -> AsyncIterator[str]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([Raw(**broken)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ({"content": b"\xff\xfe no protobuf"}, "not a JudgeResponse"),
        ({"content": b""}, "no verdict on any candidate"),
        ({"content": b"", "trailer": b"\x0a\xff\xff\xff"}, "broken"),
    ],
    ids=["bytes", "nothing", "trailer"],
)
async def test_an_oracle_that_sends_nonsense_fails_the_run_with_a_remedy(
    world: SamplerWorld, broken: dict[str, Any], told: str
):
    async with raw(**broken) as target, world.sampler(oracle={"target": target}) as client:
        run = await failed(client, told, "resume")
        assert await pair_set(client, run.id, "+-?") == set()


async def test_every_pair_says_where_it_comes_from(world: SamplerWorld, client):
    def signed(task: oracle_pb2.OracleTask) -> list[oracle_pb2.Verdict]:
        verdicts = honest(task)
        verdicts[0].annotator, verdicts[-1].grade = "a person", 0.25
        return verdicts

    world.oracle.behaviour, world.oracle.annotator = signed, ""  # it says the operator's name for it
    run = await finish(client)
    pairs = [pair async for pair in client.list_pairs(run.id)]
    first = {(task.query, task.candidates[0].premise.id) for task in world.oracle.tasks}
    last = {(task.query, task.candidates[-1].premise.id) for task in world.oracle.tasks}
    assert len(pairs) == len(brute_force())
    for pair in pairs:
        origin = pair.provenance
        assert (origin.run_id, origin.model_version, origin.generation) == (run.id, "version-1", "generation-1")
        assert origin.node_id.partition("-")[0] in {str(n) for n in range(len(HYPOTHESES))}
        assert 1 <= origin.rank <= 6 + 8  # k and max_depth
        assert 0 < origin.score < 1
        assert origin.oracle == "fake"
        assert origin.annotator == ("a person" if (pair.query, pair.premise_id) in first else "fake")
        assert origin.grade == (0.25 if (pair.query, pair.premise_id) in last else 0.0)
        assert run.created_at <= origin.judged_at <= run.ended_at

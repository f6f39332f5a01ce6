"""A user's oracle, as short as the documentation promises, served on a real socket and called as the sampler does."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

import aeenc
from aeenc import Channel, errors
from aeenc.oracle import ABSTAINS, BAD_FACT, EXPLAINS, REFUSES, UNSEEN, Candidate, Task, Verdict, serve_until_signal
from aeenc.oracles.client import Answer, OracleClient
from aeenc.oracles.composite import CompositeOracle
from aeenc.oracles.remote import RemoteOracle
from support.waiting import reached


class WordOracle(aeenc.Oracle):
    name = "words"

    def judge(self, task):  # type: ignore[no-untyped-def]  # as a user would write it
        return [c.id for c in task.candidates if set(c.text.split()) & set(task.query.split())]


class Judging(aeenc.Oracle):
    """Judges as a function does."""

    name = "mine"

    def __init__(self, judge: Callable[[Task], Any]) -> None:
        self.judge = judge


SUN = Candidate("p1", "the sun is a star", rank=1, score=0.75)
ICE = Candidate("p2", "ice melts", rank=2, score=0.5)


def task(query: str = "a star gives light", *, task_id: str = "t1") -> Task:
    return Task(task_id, "r1", query, path=("the root",), accepted=(ICE,), candidates=(SUN, ICE))


def test_a_program_whose_port_is_taken_ends_with_one_line(capfd: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SystemExit) as ended:
            WordOracle().serve(address)
    assert ended.value.code == f"cannot listen on {address}; is another process there?"
    assert capfd.readouterr().err == "", "gRPC's line"


@asynccontextmanager
async def served(oracle: aeenc.Oracle, **options: Any) -> AsyncIterator[OracleClient]:
    server = await oracle.start("127.0.0.1:0", **options)
    channel = Channel(f"127.0.0.1:{server.port}", token=options.get("token"), timeout_s=20)
    # Connections are shared in a process: one may still take the port for that of a server that an earlier test ended.
    await asyncio.wait_for(channel.grpc.channel_ready(), 30)
    yield OracleClient(channel)
    await channel.close()
    await server.stop(0)


def judgements(answer: Answer) -> dict[str, object]:
    return {verdict.premise_id: verdict.judgement for verdict in answer.verdicts}


async def test_any_iterable_of_ids_accepts_these_and_refuses_all_others() -> None:
    for oracle in (WordOracle(), Judging(lambda task: (one for one in WordOracle().judge(task)))):
        async with served(oracle) as client:
            (answer,) = await client.judge("r1", [task()])
        assert (answer.task_id, answer.annotator) == ("t1", oracle.name)
        assert judgements(answer) == {"p1": EXPLAINS, "p2": REFUSES}


async def test_bytes_that_are_no_request_are_refused_as_such() -> None:
    async with served(WordOracle()) as client:
        raw = client.channel.grpc.unary_unary("/aeenc.v1.OracleService/Judge")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await raw(b"\x0a\x03\xed\xa0\xbd", timeout=5)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "not a JudgeRequest" in str(refused.value.details())


async def test_an_oracle_at_two_addresses_answers_and_says_whether_one_is_connected() -> None:
    first, second = await WordOracle().start(), await WordOracle().start()
    client = OracleClient(Channel(f"127.0.0.1:{first.port},127.0.0.1:{second.port}", timeout_s=5))
    assert not client.connected
    assert judgements((await client.judge("r1", [task()]))[0])["p1"] == EXPLAINS
    assert client.connected
    await first.stop(0)
    assert judgements((await reached(lambda: client.judge("r1", [task()])))[0])["p1"] == EXPLAINS
    assert client.connected
    await client.channel.close()
    await second.stop(0)


async def test_several_tasks_of_one_call_are_shown_whole_and_answered_in_their_order() -> None:
    seen: list[Task] = []
    asked = [task("ice", task_id="t1"), task("sun", task_id="t2"), task(task_id="t3")]
    async with served(Judging(lambda one: seen.append(one) or WordOracle().judge(one))) as client:
        answers = await client.judge("r1", asked)
        assert await client.judge("r1", []) == []
    assert sorted(seen, key=lambda one: one.task_id) == asked
    assert [answer.task_id for answer in answers] == ["t1", "t2", "t3"]
    assert judgements(answers[0]) == {"p1": REFUSES, "p2": EXPLAINS}


async def test_a_mapping_may_say_more_and_what_it_leaves_out_is_unseen() -> None:
    whole = Verdict(EXPLAINS, leaf=True, grade=0.5, annotator="ada", remark=BAD_FACT)

    async with served(Judging(lambda task: {"p1": whole} if task.query == "leaf" else {"p2": ABSTAINS})) as client:
        leaf, abstained = await client.judge("r1", [task("leaf", task_id="t1"), task(task_id="t2")])
    first, second = leaf.verdicts
    assert (first.judgement, first.leaf, first.grade, first.annotator, first.remark) == (EXPLAINS, True, 0.5, "ada", 2)
    assert (second.premise_id, second.judgement) == ("p2", UNSEEN)
    assert judgements(abstained) == {"p1": UNSEEN, "p2": ABSTAINS}


async def test_judge_may_be_a_coroutine_function_or_return_its_call_and_tasks_then_wait_together() -> None:
    arrived = 0
    both = asyncio.Event()

    async def judge(task: Task) -> list[str]:
        nonlocal arrived
        arrived += 1
        if arrived == 2:
            both.set()
        await both.wait()
        return ["p1"]

    def wrapping(task: Task) -> Any:
        return judge(task)

    for oracle in (Judging(judge), Judging(wrapping)):
        arrived = 0
        both.clear()
        async with served(oracle) as client:
            answers = await client.judge("r1", [task(task_id="t1"), task(task_id="t2")])
        assert [judgements(answer) for answer in answers] == [{"p1": EXPLAINS, "p2": REFUSES}] * 2


async def test_a_judge_that_raises_is_unavailable_without_internals_and_the_server_goes_on() -> None:
    def judge(task: Task) -> list[str]:
        if task.query == "bad":
            raise KeyError("secret path /etc/shadow")
        return ["p1"]

    async with served(Judging(judge)) as client:
        with pytest.raises(errors.Unavailable, match="judge failed with KeyError") as caught:
            await client.judge("r1", [task("bad")])
        assert "shadow" not in caught.value.message
        with pytest.raises(errors.Unavailable):  # never a part of the answers: a missing one is no refusal
            await client.judge("r1", [task(task_id="t1"), task("bad", task_id="t2")])
        assert judgements((await client.judge("r1", [task()]))[0])["p1"] == EXPLAINS


@pytest.mark.parametrize(
    "raised",
    [
        errors.Overloaded("later", retry_after_s=math.inf),
        errors.Overloaded("later", metadata={"asked": 3}),  # type: ignore[dict-item]
        errors.Overloaded("later", reason="HALF \ud83d"),
        errors.Overloaded(TimeoutError()),  # type: ignore[arg-type]
    ],
    ids=["pause", "metadata", "character", "message"],
)
async def test_an_error_of_a_judge_that_no_message_holds_is_told_as_any_other(raised: errors.AeencError) -> None:
    def judge(_: Task) -> list[str]:
        raise raised

    async with served(Judging(judge)) as client:
        with pytest.raises(errors.Unavailable, match=f"judge failed with {type(raised).__name__}"):
            await client.judge("r1", [task()])


async def test_a_task_that_fails_ends_the_others_of_its_call_and_its_error_arrives_whole() -> None:
    begun, ended = asyncio.Event(), []

    async def judge(task: Task) -> list[str]:
        if task.task_id == "t1":
            await begun.wait()
            raise errors.Overloaded("ask me later", retry_after_s=2.0)
        begun.set()
        try:
            await asyncio.sleep(0.3)
            ended.append("judged")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return []

    async with served(Judging(judge)) as client:
        with pytest.raises(errors.Overloaded, match="ask me later") as caught:
            await client.judge("r1", [task(task_id="t1"), task(task_id="t2")])
        assert ended == ["cancelled"], "the others have ended before the error is told"
    assert caught.value.retry_after_s == 2.0


async def test_an_oracle_judges_as_many_tasks_at_once_as_it_has_workers_also_inside_another() -> None:
    at_once = [0]

    class Careful(aeenc.Oracle):
        workers = 1

        def judge(self, task: Task) -> list[str]:
            at_once.append(at_once[-1] + 1)
            time.sleep(0.02)
            at_once.append(at_once[-1] - 1)
            return [c.id for c in task.candidates]

    composite = CompositeOracle([Careful(), WordOracle()])
    async with served(composite) as client:
        await client.judge("r1", [task(task_id=f"t{n}") for n in range(8)])
    assert (len(at_once), max(at_once)) == (17, 1)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "is NoneType None; return a list of ids"),
        (7, "is int 7; return a list of ids"),
        ("p1", "is str 'p1'; return a list of ids"),
        ("", "is str ''; return a list of ids"),
        (b"p1", "is bytes b'p1'; return a list of ids"),
        (["p1", "p9"], "names 'p9', which is not a candidate; return ids of task.candidates"),
        (["the sun is a star"], "names the text 'the sun is a star'; return its id, 'p1'"),
        ([SUN], "holds the candidate 'p1' itself; return its id"),
        ([["p1"]], r"names \['p1'\], which is not a candidate"),
        ([1], "names 1, which is not a candidate"),
        ({"p9": EXPLAINS}, "names 'p9', which is not a candidate"),
        ({"the sun is a star": REFUSES}, "names the text 'the sun is a star'; return its id, 'p1'"),
        ({"p1": "yes"}, "gives 'p1' the judgement 'yes'; give EXPLAINS, REFUSES"),
        ({"p1": True, "p2": False}, "gives 'p1' the judgement True"),
        ({"p1": Verdict("no")}, "gives 'p1' the judgement 'no'"),  # type: ignore[arg-type]
    ],
)
async def test_an_answer_that_is_not_about_the_candidates_is_named_and_refuses_nothing(answer: Any, told: str) -> None:
    async with served(Judging(lambda task: answer)) as client:
        with pytest.raises(errors.Unavailable, match=f"oracle 'mine': the answer of its judge {told}"):
            await client.judge("r1", [task()])


async def test_an_oracle_that_judges_nothing_says_what_to_override() -> None:
    with pytest.raises(NotImplementedError, match="Oracle does not override judge"):
        aeenc.Oracle().judge(task())


async def test_a_token_is_needed_where_one_is_set_and_its_line_end_is_no_part_of_it() -> None:
    async with served(WordOracle(), token="open-sesame\n") as client:
        for token in (None, "wrong"):
            stranger = OracleClient(Channel(client.channel.target, token=token, timeout_s=5))
            with pytest.raises(errors.Unauthenticated, match="its token"):
                await stranger.judge("r1", [task()])
            await stranger.channel.close()
        known = OracleClient(Channel(client.channel.target, token="open-sesame", timeout_s=5))
        assert len(await known.judge("r1", [task()])) == 1
        await known.channel.close()


@pytest.mark.parametrize(
    ("address", "options", "told"),
    [
        ("0.0.0.0:0", {}, "give a token, or allow_insecure"),
        ("[::]:0", {}, "give a token, or allow_insecure"),
        ("example.org:0", {}, "give a token, or allow_insecure"),
        ("127.0.0.1:0", {"token": "", "allow_insecure": True}, "token: is empty"),
        ("0.0.0.0:0", {"token": "  ", "allow_insecure": True}, "token: is empty"),
        ("127.0.0.1:0", {"token": "se cret"}, "token: .*not visible ASCII"),
        ("127.0.0.1", {}, "address: is '127.0.0.1'; give HOST:PORT"),
        ("127.0.0.1:70000", {"token": "secret"}, "address: is '127.0.0.1:70000'; give HOST:PORT"),
    ],
)
async def test_an_oracle_refuses_to_listen_without_a_secret_that_a_caller_can_send(
    address: str, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(errors.InvalidArgument, match=told):
        await WordOracle().start(address, **options)


@pytest.mark.parametrize(
    ("target", "options", "told"),
    [
        ("127.0.0.1", {}, "target: '127.0.0.1' is not an address"),
        ("127.0.0.1:1", {"timeout_s": 0}, "timeout_s: must be seconds above 0"),
        ("example.org:1", {"token": "secret"}, "plain_token: is off"),
    ],
)
def test_what_reaches_no_other_oracle_is_refused_before_a_task_asks_it(target, options, told) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(errors.InvalidArgument, match=told):
        RemoteOracle(target, **options)


async def test_a_socket_of_this_machine_needs_no_token_and_is_told_as_it_was_given() -> None:
    for address in (f"unix-abstract:aeenc-{uuid.uuid4().hex}", "127.0.0.1:0"):
        told: list[str] = []

        def listens(bound: str, told: list[str] = told) -> None:
            told.append(bound)
            os.kill(os.getpid(), signal.SIGTERM)

        await serve_until_signal(WordOracle(), listens, address)
        assert told[0].startswith(address.removesuffix("0"))
        assert (told == [address]) == address.startswith("unix")


async def test_a_task_of_many_long_candidates_reaches_an_oracle() -> None:
    candidates = tuple(Candidate(f"p{n}", "iron " * 1800, n, 0.5) for n in range(1000))
    async with served(WordOracle()) as client:
        [answer] = await client.judge("r", [Task("t", "r", "q", (), (), candidates)])
    assert len(answer.verdicts) == 1000


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        (Candidate("p1", 3, 1, 0.5), "text: is 3; give text"),  # type: ignore[arg-type]
        (Candidate("\ud800", "ice melts", 1, 0.5), "id: has half a character"),
        (Candidate("p1", "ice melts", -1, 0.5), "rank: is -1; give a whole number from 0"),
    ],
)
def test_a_candidate_that_cannot_be_sent_is_refused_by_the_name_of_its_field(candidate: Candidate, said: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=said):
        candidate.to_proto()

"""Several oracles as one: who is asked what, whose word counts, and what an audit finds."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from pathlib import Path

import pytest

import aeenc
from aeenc import Channel, errors
from aeenc.oracle import ABSTAINS, EXPLAINS, IRRELEVANT, REFUSES, UNSEEN, Candidate, Task, Verdict, ask
from aeenc.oracles.client import OracleClient
from aeenc.oracles.composite import AuditCounts, CompositeOracle
from aeenc.oracles.remote import RemoteOracle
from support.torn_disk import full_disk
from support.waiting import reached, until


class Scripted(aeenc.Oracle):
    """Says what its script says of a premise, and nothing of others; keeps what it was asked."""

    def __init__(self, name: str, script: dict[str, int]) -> None:
        self.name, self.script = name, script
        self.asked: list[list[str]] = []

    def judge(self, task: Task) -> dict[str, Verdict]:
        self.asked.append([candidate.id for candidate in task.candidates])
        return {c.id: Verdict(self.script[c.id]) for c in task.candidates if c.id in self.script}


def task(*ids: str) -> Task:
    return Task("t", "run", "query", ("root",), (), tuple(Candidate(i, i, n, 0.5) for n, i in enumerate(ids, start=1)))


def said(verdicts: dict[str, Verdict]) -> dict[str, tuple[int, str]]:
    return {name: (verdict.judgement, verdict.annotator) for name, verdict in verdicts.items()}


async def test_each_candidate_goes_to_the_first_that_decides_it():
    gold = Scripted("gold", {"a": EXPLAINS, "b": REFUSES})
    model = Scripted("model", {"a": REFUSES, "c": REFUSES, "d": ABSTAINS})
    person = Scripted("person", {"d": EXPLAINS, "e": ABSTAINS})
    verdicts = await ask(CompositeOracle([gold, model, person]), task("a", "b", "c", "d", "e", "f"))
    assert said(verdicts) == {
        "a": (EXPLAINS, "gold"),
        "b": (REFUSES, "gold"),
        "c": (REFUSES, "model"),
        "d": (EXPLAINS, "person"),
        "e": (ABSTAINS, "person"),
        "f": (UNSEEN, "person"),
    }
    assert (gold.asked, model.asked) == ([["a", "b", "c", "d", "e", "f"]], [["c", "d", "e", "f"]])
    await ask(CompositeOracle([gold, person]), task("a"))
    assert person.asked == [["d", "e", "f"]], "for whom all is decided, they are not asked"


async def test_an_abstention_is_not_lost_when_a_later_one_does_not_look():
    stages = [Scripted("model", {"a": ABSTAINS}), Scripted("person", {})]
    assert said(await ask(CompositeOracle(stages), task("a"))) == {"a": (ABSTAINS, "model")}


async def test_an_audit_takes_back_what_it_contradicts_and_writes_it_down(tmp_path: Path):
    model = Scripted("model", {"a": REFUSES, "b": REFUSES, "c": EXPLAINS})
    person = Scripted("person", {"a": REFUSES, "b": EXPLAINS, "c": ABSTAINS, "d": REFUSES})
    oracle = CompositeOracle([model, person], audit=1.0, audit_log=tmp_path / "audit.jsonl")
    verdicts = said(await ask(oracle, task("a", "b", "c", "d")))
    assert verdicts == {
        "a": (REFUSES, "model"),
        "b": (ABSTAINS, "model against person"),
        "c": (EXPLAINS, "model"),
        "d": (REFUSES, "person"),
    }
    assert person.asked == [["a", "b", "c", "d"]]
    assert oracle.audited == {"model": AuditCounts(agreed=1, disagreed=1)}
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(line["premise_id"], line["decision"], line["audit"]) for line in lines] == [
        ("a", "refuses", "refuses"),
        ("b", "refuses", "explains"),
    ]
    assert {line["auditor"] for line in lines} == {"person"}
    await ask(oracle, task("a"))
    assert len((tmp_path / "audit.jsonl").read_text().splitlines()) == 3


async def test_an_audit_log_that_takes_long_holds_up_no_other_call(tmp_path: Path):
    log, verdicts, others = tmp_path / "audit.jsonl", {"a": REFUSES}, threading.Event()
    oracle = CompositeOracle([Scripted("model", verdicts), Scripted("person", verdicts)], audit=1.0, audit_log=log)
    log.unlink()
    os.mkfifo(log)  # which nobody opens for writing before somebody reads it

    def read() -> tuple[bool, int]:
        went_on = others.wait(5)
        return went_on, log.read_text().count("\n")

    reading = asyncio.create_task(asyncio.to_thread(read))
    asked = asyncio.create_task(ask(oracle, task("a")))
    await until(lambda: bool(oracle.audited["model"].agreed))
    others.set()
    assert await reading == (True, 1)
    await asked


async def test_a_line_that_an_audit_log_has_no_room_for_leaves_no_half(tmp_path: Path):
    log = tmp_path / "audit.jsonl"
    verdicts = {"a": REFUSES, "b": REFUSES}
    oracle = CompositeOracle([Scripted("model", verdicts), Scripted("person", verdicts)], audit=1.0, audit_log=log)
    await ask(oracle, task("a"))
    whole = log.read_bytes()
    with full_disk(len(whole) + 40), pytest.raises(OSError, match=re.escape(f"'{log}'")):
        await ask(oracle, task("b"))
    assert log.read_bytes() == whole
    await ask(oracle, task("b"))
    assert [json.loads(line)["premise_id"] for line in log.read_text().splitlines()] == ["a", "b"]


async def test_the_audited_share_is_what_was_asked_for_and_the_same_each_time():
    ids = [f"p{n}" for n in range(500)]
    everything = dict.fromkeys(ids, REFUSES)
    person = Scripted("person", everything)
    oracle = CompositeOracle([Scripted("model", everything), person], audit=0.2, seed=3)
    await ask(oracle, task(*ids))
    await ask(oracle, task(*ids))
    first, second = person.asked
    assert first == second
    assert len(first) == pytest.approx(100, abs=30)
    await ask(CompositeOracle([Scripted("model", everything), person], audit=0.2, seed=4), task(*ids))
    assert person.asked[-1] != first


async def test_a_stage_that_fails_is_no_stage_that_abstains():
    class Broken(aeenc.Oracle):
        def judge(self, task: Task) -> list[str]:
            raise errors.Unavailable("out of order")

    person = Scripted("person", {"a": REFUSES})
    with pytest.raises(errors.Unavailable, match="out of order"):
        await ask(CompositeOracle([Broken(), person]), task("a"))
    assert person.asked == []


@pytest.mark.parametrize(("stages", "audit"), [(1, 0.0), (2, 1.5)])
def test_a_composite_of_one_or_an_impossible_share_is_refused(stages: int, audit: float):
    with pytest.raises(errors.InvalidArgument):
        CompositeOracle([Scripted(str(n), {}) for n in range(stages)], audit=audit)


async def test_a_remote_oracle_is_a_stage_and_every_verdict_travels_with_its_name():
    class Person(aeenc.Oracle):
        name = "ada"

        def judge(self, task: Task) -> dict[str, Verdict]:
            return {"b": Verdict(REFUSES, remark=IRRELEVANT, in_sight_ms=700)}

    person = await Person().start(token="secret")
    remote = RemoteOracle(f"127.0.0.1:{person.port}", token="secret", timeout_s=10)
    served = await CompositeOracle([Scripted("gold", {"a": EXPLAINS}), remote]).start()
    client = OracleClient(Channel(f"127.0.0.1:{served.port}", timeout_s=10))
    [answer] = await reached(lambda: client.judge("run", [task("a", "b", "c")]))
    assert answer.annotator == "composite"
    given = {one.premise_id: one for one in answer.verdicts}
    assert said(given) == {"a": (EXPLAINS, "gold"), "b": (REFUSES, "ada"), "c": (UNSEEN, "ada")}
    assert (given["b"].remark, given["b"].in_sight_ms) == (IRRELEVANT, 700)
    await client.channel.close()
    await remote.close()
    await served.stop(0)
    await person.stop(0)


async def test_a_remote_oracle_that_is_away_is_an_error_and_no_refusal():
    remote = RemoteOracle("127.0.0.1:1", timeout_s=0.3)
    with pytest.raises((errors.Unavailable, errors.DeadlineExceeded)):
        await ask(remote, task("a"))
    await remote.close()

"""The oracle that asks a language model: only a whole, valid answer decides; budget, cache, key and template."""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aeenc import errors
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, Candidate, Task, answer_of, ask
from aeenc.oracles.ledger import Budget, Ledger, Usage
from aeenc.oracles.llm import FORM, TEMPLATE, LanguageModelOracle, read_key
from services.launcher.processes import free_port
from support.servers.model_endpoint import KEY, KINDS, THINKING_TOKENS, ModelEndpoint

TEXTS = ["a nail is made of iron", "ice can melt", "iron is a metal"]


def task(*texts: str) -> Task:
    candidates = tuple(Candidate(f"p{n}", text, n, 0.5) for n, text in enumerate(texts or TEXTS, start=1))
    accepted = (Candidate("a", "magnetism acts at a distance", 1, 0.9),)
    return Task("t", "run", "a magnet attracts a nail", ("magnets attract things",), accepted, candidates)


@asynccontextmanager
async def asking(
    endpoint: ModelEndpoint, *, model: str = "m", **options: Any
) -> AsyncIterator[tuple[ModelEndpoint, LanguageModelOracle]]:
    """Serves an endpoint, and an oracle that asks it."""
    with endpoint.served():
        oracle = LanguageModelOracle(endpoint.url, model, key=KEY, **options)
        yield endpoint, oracle
        await oracle.close()


async def judgements(oracle: LanguageModelOracle, asked: Task) -> list[Any]:
    return [verdict.judgement for verdict in (await ask(oracle, asked)).values()]


async def test_a_whole_answer_decides_and_shows_the_model_query_path_and_accepted_premises() -> None:
    async with asking(ModelEndpoint(), candidates=2) as (endpoint, oracle):
        verdicts = list((await ask(oracle, task())).values())
    assert [(one.judgement, one.grade) for one in verdicts] == [(EXPLAINS, 1.0), (REFUSES, 0.0), (EXPLAINS, 1.0)]
    assert len(endpoint.sent) == 2  # prompts of two candidates and of one
    prompt = endpoint.sent[0].request["messages"][0]["content"]
    for shown in ('"a magnet attracts a nail"', '["magnets attract things"]', '["magnetism acts at a distance"]'):
        assert shown in prompt
    schema = endpoint.sent[0].request["response_format"]["json_schema"]
    assert schema["strict"]
    assert schema["schema"]["required"] in (["1"], ["1", "2"])


@pytest.mark.parametrize(
    ("texts", "said"),
    [(TEXTS, "complete"), (["ice can melt"], "premise_missing"), (["ice is cold"], "premise_missing")],
)
async def test_it_says_whether_what_is_accepted_proves_the_query(texts: list[str], said: str) -> None:
    async with asking(ModelEndpoint(), steps=True) as (endpoint, oracle):
        answer = await answer_of(oracle, task(*texts))
    assert (answer.node_verdict, len(answer.verdicts), len(endpoint.sent)) == (said, len(texts), 2)
    prompt = endpoint.sent[1].request["messages"][0]["content"]
    facts = ["magnetism acts at a distance", *(text for text in texts if "iron" in text)]
    assert f'1. "{" ".join(facts)}"' in prompt


async def test_one_answer_of_several_that_is_not_whole_makes_the_oracle_abstain() -> None:
    async with asking(ModelEndpoint(fault=lambda number: "prose" if number == 1 else ""), samples=3) as (_, oracle):
        assert await judgements(oracle, task()) == [ABSTAINS] * 3


@pytest.mark.parametrize(
    ("fault", "raised", "said"),
    [
        ("rate limit", errors.Overloaded, "answers 429 for model 'the-model'"),
        ("server error", errors.Unavailable, "answers 500 for model 'the-model'"),
        ("unavailable", errors.Unavailable, "answers 503 for model 'the-model'"),
        ("bad request", errors.Unavailable, r"400 \(unsupported_value\) .*'the-model'"),
        ("hang", errors.Unavailable, "cannot be reached"),
        ("hang up", errors.Unavailable, "cannot be reached"),
        ("unauthorized", errors.FailedPrecondition, "'the-model'; check the key"),
        ("not found", errors.FailedPrecondition, "'the-model'; check the key"),
    ],
)
async def test_a_refusal_that_lasts_fails_the_task_by_name_and_the_key_is_in_no_error_and_no_log(
    fault: str, raised: type[errors.AeencError], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    endpoint = ModelEndpoint(fault=lambda number: fault, code="unsupported_value" if fault == "bad request" else "")
    async with asking(endpoint, model="the-model", timeout_s=0.2 if fault.startswith("hang") else 60.0) as (_, oracle):
        with pytest.raises(raised, match=said) as told:
            await ask(oracle, task())
        assert told.value.retry_after_s == (0 if fault in {"rate limit", "server error", "unavailable"} else None)
        assert oracle.usage.calls == 0
        assert fault.startswith("hang") or oracle.usage == Usage(0, 0, 0, 0.0), "what is refused costs nothing"
    assert KEY not in f"{told.value!r} {told.value.__cause__!r} {told.value.__context__!r} {caplog.text}"


async def test_a_long_pause_that_the_endpoint_asks_for_is_left_to_the_sampler() -> None:
    async with asking(ModelEndpoint(fault=lambda number: "rate limit", retry_after="30")) as (endpoint, oracle):
        with pytest.raises(errors.Overloaded) as told:
            await asyncio.wait_for(ask(oracle, task()), 5)
        assert (told.value.retry_after_s, len(endpoint.sent)) == (30, 1)


async def test_nonsense_for_one_node_abstains_and_for_over_a_fifth_of_the_last_fails_the_task() -> None:
    nonsense = set[int]()
    async with asking(ModelEndpoint(fault=lambda number: "prose" if number in nonsense else "")) as (endpoint, oracle):

        async def judged(number: int, *, valid: bool) -> set[int]:
            if not valid:
                nonsense.add(len(endpoint.sent))
            asked = replace(task(f"fact {number}"), task_id=str(number))
            return set(await judgements(oracle, asked))

        assert await judged(0, valid=False) == {ABSTAINS}
        with pytest.raises(errors.Unavailable, match="no valid answer to 2 of the last 2 nodes"):
            await judged(1, valid=False)
        for number in range(1, 41):
            assert await judged(number, valid=True) == {REFUSES}
        for number in range(41, 60, 2):
            assert await judged(number, valid=False) == {ABSTAINS}
            assert await judged(number + 1, valid=True) == {REFUSES}
        with pytest.raises(errors.Unavailable, match="no valid answer to 11 of the last 50 nodes"):
            await judged(61, valid=False)


async def test_nonsense_about_two_nodes_in_a_row_fails_the_second_until_another_is_answered() -> None:
    async with asking(ModelEndpoint(fault=lambda number: "prose" if number in {9, 10, 11, 13} else "")) as (_, oracle):

        async def judged(number: int) -> set[int]:
            return set(await judgements(oracle, replace(task(f"fact {number}"), task_id=str(number))))

        found = [await judged(number) for number in range(10)]
        assert found == [{REFUSES}] * 9 + [{ABSTAINS}]
        for _ in range(2):
            with pytest.raises(errors.Unavailable, match="2 of the last 11 nodes"):
                await judged(10)
        assert await judged(11) == {REFUSES}
        assert await judged(10) == {ABSTAINS}


@pytest.mark.parametrize("fault", ["rate limit", "server error"])
async def test_a_passing_refusal_is_asked_again(fault: str) -> None:
    async with asking(ModelEndpoint(fault=lambda number: fault if number < 2 else "")) as (endpoint, oracle):
        assert await judgements(oracle, task()) == [EXPLAINS, REFUSES, EXPLAINS]
    assert len(endpoint.sent) == 3


@pytest.mark.parametrize("unsupported", ["max_tokens", "max_completion_tokens"])
async def test_an_answer_is_limited_by_the_name_that_the_endpoint_knows(unsupported: str) -> None:
    async with asking(ModelEndpoint(unsupported=unsupported), candidates=1) as (endpoint, oracle):
        for number in range(2):
            asked = task(f"nail {number} is made of iron", "ice can melt", "iron is a metal")
            assert await judgements(oracle, asked) == [EXPLAINS, REFUSES, EXPLAINS]
        answered = [sent for sent in endpoint.sent if not sent.fault]
        assert all({"max_tokens", "max_completion_tokens"} & sent.request.keys() for sent in answered)
        assert oracle.usage.calls == len(answered) == 4, "a refused call is none, and what is known is not asked"
        assert not any(sent.fault for sent in endpoint.sent[-1:]), "the name is learnt once"


async def test_a_prompt_that_the_endpoint_filters_abstains_even_if_it_is_the_first() -> None:
    async with asking(ModelEndpoint(fault=lambda number: "bad request", code="content_filter")) as (_, oracle):
        assert (await ask(oracle, task()))["p1"].judgement == ABSTAINS


async def test_a_prompt_that_fails_ends_the_others_of_its_task_before_they_are_paid_for() -> None:
    async with asking(
        ModelEndpoint(fault=lambda number: "" if number else "unauthorized"), candidates=1, concurrency=1
    ) as (endpoint, oracle):
        with pytest.raises(errors.FailedPrecondition, match="answers 401"):
            await ask(oracle, task(*(f"fact {n}" for n in range(8))))
        await asyncio.sleep(0.1)
        assert len(endpoint.sent) <= 2, "the one that failed, and the one that took its place"


async def test_samples_that_disagree_abstain_on_that_premise_alone() -> None:
    def verdict(text: str, number: int) -> str:
        return "explains" if "iron" in text or (number == 1 and "ice" in text) else "does_not_explain"

    async with asking(ModelEndpoint(verdict=verdict), samples=3) as (endpoint, oracle):
        assert await judgements(oracle, task()) == [EXPLAINS, ABSTAINS, EXPLAINS]
    assert len(endpoint.sent) == 3
    assert all(sent.request["temperature"] > 0 for sent in endpoint.sent)


async def test_a_valid_answer_is_paid_once_and_a_faulty_one_is_not_kept(tmp_path: Path) -> None:
    with ModelEndpoint(fault=lambda number: "prose" if number == 0 else "").served() as endpoint:
        judged = []
        for _ in range(3):
            oracle = LanguageModelOracle(endpoint.url, "m", key=KEY, cache=tmp_path / "cache")
            judged.append(await judgements(oracle, task()))
            usage = oracle.usage
            await oracle.close()
    assert judged == [[ABSTAINS] * 3, [EXPLAINS, REFUSES, EXPLAINS], [EXPLAINS, REFUSES, EXPLAINS]]
    assert len(endpoint.sent) == usage.calls == 2
    assert usage.prompt_tokens + usage.answer_tokens == sum(sent.tokens for sent in endpoint.sent)


@pytest.mark.parametrize(
    "budget", [Budget(tokens=6000), Budget(cost=0.006, prompt_price=1.0, answer_price=1.0)], ids=["tokens", "money"]
)
async def test_the_budget_holds_over_restarts_and_what_it_does_not_allow_fails_by_its_name(
    tmp_path: Path, budget: Budget
) -> None:
    decided = failed = 0
    with ModelEndpoint().served() as endpoint:
        for start in range(4):
            oracle = LanguageModelOracle(endpoint.url, "m", key=KEY, cache=tmp_path / "cache", budget=budget)
            for n in range(8):
                try:
                    verdicts = await ask(oracle, task(f"stone number {start} {n} is heavy"))
                except errors.FailedPrecondition as spent:
                    assert "raise it" in spent.message  # noqa: PT017 -- some calls succeed
                    failed += 1
                else:
                    decided += verdicts["p1"].judgement == REFUSES
            usage = oracle.usage
            await oracle.close()
    assert 0 < sum(sent.tokens for sent in endpoint.sent) <= 6000
    assert usage.cost <= (budget.cost or 0)
    assert decided == len(endpoint.sent) < 32
    assert failed == 32 - decided


async def test_an_answer_that_claims_more_tokens_than_there_are_costs_what_was_reserved() -> None:
    endpoint = ModelEndpoint(fault=lambda number: "too many tokens")
    async with asking(endpoint, budget=Budget(tokens=1_000_000)) as (_, oracle):
        assert (await ask(oracle, task()))["p1"].judgement == EXPLAINS
        assert 0 < oracle.usage.prompt_tokens < 10_000


async def test_calls_at_once_use_a_budget_up_before_one_fails() -> None:
    async with asking(ModelEndpoint(delay_s=0.05), candidates=1, budget=Budget(tokens=6000)) as (endpoint, oracle):
        with pytest.raises(errors.FailedPrecondition, match=r"6,000 tokens \(--max-tokens\)"):
            await ask(oracle, task(*(f"fact {n}" for n in range(32))))
        alone = LanguageModelOracle(endpoint.url, "m", key=KEY, candidates=1, concurrency=1, budget=Budget(tokens=6000))
        with pytest.raises(errors.FailedPrecondition):
            await ask(alone, task(*(f"fact {n}" for n in range(32))))
        assert oracle.usage.calls == alone.usage.calls > 0
        await alone.close()


async def test_a_cache_on_a_full_disk_fails_its_node_and_the_one_that_waits_for_the_budget_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spend = Ledger.spend

    def full(ledger: Ledger, *spent: Any, **calls: Any) -> None:
        monkeypatch.undo()
        spend(ledger, *spent, **calls)
        raise sqlite3.OperationalError("database or disk is full")

    async with asking(ModelEndpoint(delay_s=0.05), budget=Budget(tokens=2200)) as (_, oracle):
        monkeypatch.setattr(Ledger, "spend", full)
        both = asyncio.gather(*(ask(oracle, task(text)) for text in TEXTS[:2]), return_exceptions=True)
        failed, judged = await asyncio.wait_for(both, 20)
    assert isinstance(failed, sqlite3.OperationalError)
    assert isinstance(judged, dict)


async def test_a_call_that_has_not_reached_the_endpoint_costs_nothing() -> None:
    away = f"http://127.0.0.1:{free_port(set())}/v1"
    oracle = LanguageModelOracle(away, "m", key=KEY, budget=Budget(tokens=6000))
    for _ in range(8):
        with pytest.raises(errors.Unavailable):
            await ask(oracle, task())
    assert oracle.usage == Usage(0, 0, 0, 0.0)
    await oracle.close()


def test_what_cannot_work_is_refused_with_the_remedy(tmp_path: Path) -> None:
    for url in ("127.0.0.1/v1", "https://me:secret@host/v1", "file:///etc"):
        with pytest.raises(errors.InvalidArgument, match="http") as raised:
            LanguageModelOracle(url, "m")
        assert "secret" not in raised.value.message
    for template in ("no fields", "$query $candidates $nonsense", "$query $candidates $"):
        with pytest.raises(errors.InvalidArgument, match="candidates"):
            LanguageModelOracle("http://h/v1", "m", template=template)
    for wrong in ({"samples": 0}, {"candidates": 0}, {"concurrency": 0}, {"timeout_s": 0}, {"timeout_s": math.nan}):
        with pytest.raises(errors.InvalidArgument, match=f"{next(iter(wrong))}: "):
            LanguageModelOracle("http://h/v1", "m", **wrong)
    with pytest.raises(errors.InvalidArgument, match="prices"):
        Budget(cost=1.0)
    for wrong in (-1.0, math.nan):
        with pytest.raises(errors.InvalidArgument, match="from 0 on"):
            Budget(cost=wrong, prompt_price=1.0)
    (tmp_path / "cache").write_text("this is not a database, whatever its name says")
    with pytest.raises(errors.FailedPrecondition, match="not a database"):
        LanguageModelOracle("http://h/v1", "m", cache=tmp_path / "cache")
    used = LanguageModelOracle("http://h/v1", "m", cache=tmp_path / "used")
    with pytest.raises(errors.FailedPrecondition, match="locked"):
        LanguageModelOracle("http://h/v1", "m", cache=tmp_path / "used")
    assert used.usage.calls == 0
    assert (TEMPLATE.count("$candidates"), "scientific" in TEMPLATE, "JSON" in FORM) == (1, False, True)


def test_without_its_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(errors.FailedPrecondition, match=r"needs openai: pip install '\./clients/python\[oracle-llm\]'"):
        LanguageModelOracle("http://h/v1", "m")


def test_a_key_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    assert read_key({}, "OPENAI_API_KEY", tmp_path / "key") == KEY
    assert read_key({"OPENAI_API_KEY": KEY}, "OPENAI_API_KEY", None) == KEY
    (tmp_path / "key").write_text("")
    with pytest.raises(errors.InvalidArgument, match="one line"):
        read_key({}, "OPENAI_API_KEY", tmp_path / "key")
    with pytest.raises(errors.InvalidArgument, match="cannot be read"):
        read_key({}, "OPENAI_API_KEY", tmp_path / "absent")


async def judged_nodes(oracle: LanguageModelOracle, nodes: int = 20) -> int:
    """How many of the nodes get a verdict on each candidate."""
    judged = 0
    for number in range(nodes):
        asked = replace(task(f"iron {number} is a metal", "ice can melt"), task_id=str(number))
        judged += await judgements(oracle, asked) == [EXPLAINS, REFUSES]
    return judged


@pytest.mark.parametrize("kind", KINDS)
async def test_a_model_of_any_kind_judges_nearly_all_nodes(kind: str) -> None:
    async with asking(ModelEndpoint(kind=kind), candidates=1, thinking_tokens=THINKING_TOKENS) as (endpoint, oracle):
        assert await judged_nodes(oracle) >= 18
        refused = [sent for sent in endpoint.sent if sent.fault]
        assert len(refused) <= 4, "what the endpoint refuses is learnt once"


@pytest.mark.parametrize("kind", ["thinks", "thinks apart"])
async def test_a_model_without_room_to_think_is_refused_by_the_option_that_gives_it(kind: str) -> None:
    async with asking(ModelEndpoint(kind=kind), model="the-model") as (endpoint, oracle):
        with pytest.raises(errors.FailedPrecondition, match=r"'the-model'.*cut off at 96 tokens.*--thinking-tokens"):
            await judged_nodes(oracle)
        assert len(endpoint.sent) == 2


async def test_an_endpoint_that_names_no_field_is_asked_with_none_that_it_may_not_know() -> None:
    async with asking(ModelEndpoint(code="invalid_request")) as (endpoint, oracle):
        endpoint.fault = lambda number: "bad request" if "seed" in endpoint.asking else ""
        assert await judged_nodes(oracle) >= 18
    assert sum(bool(sent.fault) for sent in endpoint.sent) == 1


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        *((fault, "no JSON object, or a number twice") for fault in ("prose", "half of the JSON", "deep")),
        ("a verdict twice", "no JSON object, or a number twice"),
        *((fault, "no completion") for fault in ("html", "empty", "no choices", "null")),
        *((fault, "other facts than asked") for fault in ("a list", "a fact left out", "a fact nobody asked about")),
        *((fault, "an unknown verdict") for fault in ("another word", "a number")),
        ("no content", "empty"),
        ("truncated", "cut off at 128 tokens"),
        ("filtered", "filtered"),
        ("refusal", "refused by the model"),
    ],
)
async def test_an_answer_that_is_not_whole_abstains_and_the_reason_is_told_and_counted(
    fault: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with asking(ModelEndpoint(fault=lambda number: fault)) as (_, oracle):
        assert await judgements(oracle, task()) == [ABSTAINS] * 3
        assert f"not valid: {told}" in caplog.text
        assert list(oracle.invalid.items()) == [(told, 1)]
        with pytest.raises(errors.AeencError, match=f"2 of the last 2 nodes.*{told}"):
            await ask(oracle, replace(task("another fact"), task_id="u"))


async def test_a_request_refused_after_a_valid_answer_abstains_and_drops_no_field_that_the_refusal_names() -> None:
    async with asking(ModelEndpoint(code="bad_prompt")) as (endpoint, oracle):
        endpoint.fault = lambda number: "bad request" if number == 1 else ""
        endpoint.said = "the text on temperature and seeds is not allowed"
        asked = [replace(task("iron"), task_id=f"{n}", query=f"q{n}") for n in range(3)]
        assert [await judgements(oracle, one) for one in asked] == [[EXPLAINS], [ABSTAINS], [EXPLAINS]]
        assert {"temperature", "seed", "response_format"} <= endpoint.sent[-1].request.keys()

"""`aeenc oracle gold`, `model` and `composite` as processes: they say where they listen, answer, and end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from aeenc import Channel, errors
from aeenc.evaluation import load_data
from aeenc.oracle import EXPLAINS, REFUSES, UNSEEN, Candidate, Task, Verdict
from aeenc.oracles.client import OracleClient
from aeenc.oracles.gold import GoldOracle
from aeenc.oracles.llm import TEMPLATE
from aeenc.oracles.model import ModelOracle
from support.models.tiny_cross_encoders import write_tiny_classifier
from support.servers.model_endpoint import KEY, ModelEndpoint
from support.waiting import reached

AEENC = [sys.executable, "-c", "from aeenc.cli.main import main; main()", "--json", "oracle"]
TEXTS = ("iron is magnetic", "the magnet pulls the nail", "ice is light")


@contextmanager
def served(*words: object, ends_by: signal.Signals = signal.SIGTERM) -> Iterator[str]:
    """The address of an oracle that runs as a process; ended by a signal, without a complaint."""
    command = [*AEENC, *(str(word) for word in words), "--address", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            told = json.loads(line)
            assert told["oracle"].startswith(str(words[0]))
            yield told["address"]
        finally:
            process.send_signal(ends_by)
            _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr[:8] in {"", '{"note":'}) == (0, True), stderr


async def ask(address: str, query: str = "the nail moves", token: str | None = None) -> dict[str, Verdict]:
    client = OracleClient(Channel(address, token=token, timeout_s=20))
    candidates = tuple(Candidate(text, text, n, 0.5) for n, text in enumerate(TEXTS, start=1))
    try:
        [answer] = await reached(lambda: client.judge("run", [Task("t", "run", query, (), (), candidates)]))
    finally:
        await client.channel.close()
    return {one.premise_id: one for one in answer.verdicts}


@asynccontextmanager
async def gold(trees: Path, split: str) -> AsyncIterator[str]:
    """The address of a gold oracle in this process."""
    server = await GoldOracle(load_data(trees), split).start("127.0.0.1:0")
    yield f"127.0.0.1:{server.port}"
    await server.stop(0)


async def test_an_oracle_whose_port_is_taken_names_the_option(aeenc, trees):
    async with gold(trees, "train") as address:
        ended = await aeenc("--json", "oracle", "gold", "--trees", trees, "--address", address)
    assert (ended.code, ended.stdout) == (3, "")
    assert ended.error["message"].startswith(f"cannot listen on {address}")
    assert "--address HOST:PORT" in ended.error["message"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_gold_oracle_serves_until_it_is_told_to_stop(trees, number):
    with served("gold", "--trees", trees, "--mode", "subtree", "--token", "secret", ends_by=number) as address:
        with pytest.raises(errors.Unauthenticated):
            await ask(address)
        found = await ask(address, token="secret")
    assert [(one.judgement, one.leaf) for one in found.values()] == [
        (EXPLAINS, True),
        (EXPLAINS, False),
        (REFUSES, False),
    ]


async def test_a_composite_passes_on_what_gold_does_not_know(trees):
    async with gold(trees, "dev") as other:
        with served("composite", "--trees", trees, "--remote", other) as both:
            known = await ask(both)
            assert {(verdict.judgement, verdict.annotator) for verdict in known.values()} == {
                (EXPLAINS, "gold"),
                (REFUSES, "gold"),
            }
            passed_on = await ask(both, "ice floats")  # a query of dev
            assert passed_on["ice is light"].judgement == EXPLAINS
            assert {verdict.judgement for verdict in (await ask(both, "who knows")).values()} == {UNSEEN}


async def test_a_model_answers_alone_and_behind_gold_trees(trees, tmp_path):
    write_tiny_classifier(tmp_path / "nli", 2, id2label={"0": "neutral", "1": "entailment"})
    expected = ModelOracle(tmp_path / "nli").probabilities("the nail moves", TEXTS)
    with served("model", tmp_path / "nli", "--accept", 0.5, "--refuse", 0.4999) as model:
        verdicts = await ask(model)
        assert [verdict.grade for verdict in verdicts.values()] == pytest.approx(expected, abs=1e-6)
        assert [v.judgement == EXPLAINS for v in verdicts.values()] == [grade >= 0.5 for grade in expected]
    words = ("--trees", trees, "--split", "dev", "--model", tmp_path / "nli", "--accept", 0.5, "--refuse", 0.4999)
    with served("composite", *words) as both:
        assert {verdict.annotator for verdict in (await ask(both)).values()} == {"model-nli"}
        assert {verdict.annotator for verdict in (await ask(both, "ice floats")).values()} == {"gold"}


async def test_a_language_model_serves_as_an_oracle_and_its_key_stays_out_of_the_command(tmp_path):
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "template").write_bytes(b"Query: $query\r\n$candidates\r\n")
    with ModelEndpoint().served() as endpoint:
        options = ("--base-url", endpoint.url, "--model", "m", "--key-file", tmp_path / "key")
        options += ("--template", tmp_path / "template")
        with served("llm", *options, "--samples", 2) as address:
            found = await ask(address)
    assert {text: verdict.judgement for text, verdict in found.items()} == {
        "iron is magnetic": EXPLAINS,
        "the magnet pulls the nail": REFUSES,
        "ice is light": REFUSES,
    }
    prompts = [sent.request["messages"][0]["content"] for sent in endpoint.sent]
    assert [prompt.count("\r") for prompt in prompts] == [0, 0]
    assert prompts[0].startswith('Query: "the nail moves"\n1. ')
    assert prompts[0].endswith("\n"), "the template's last line has an end"


async def test_a_check_compares_a_running_oracle_or_a_language_model_with_gold_trees(aeenc, trees, tmp_path):
    wanted = ("oracle", "check", "--trees", trees, "--split", "train", "--candidates", "3")
    async with gold(trees, "train") as address:
        found = await aeenc.json(*wanted, "--remote", address)
    assert (found["precision"], found["recall"], found["kappa"], found["decided"]) == (1, 1, 1, 1)
    with ModelEndpoint(fault=lambda number: "prose" if number == 0 else "").served() as endpoint:
        found = await aeenc.json(*wanted, "--base-url", endpoint.url, "--model", "m")
    assert found["decided"] < 1
    assert found["calls"] == found["tasks"] == len(endpoint.sent)
    assert found["prompt_tokens"] + found["answer_tokens"] == sum(sent.tokens for sent in endpoint.sent)
    assert (await aeenc("--json", *wanted)).code == 2


async def test_the_help_names_the_extra_and_the_prompt_can_be_shown_without_a_model(aeenc):
    for command in ("llm", "model"):
        assert f"'./clients/python[oracle-{command}]'" in " ".join(
            (await aeenc("oracle", command, "--help")).stdout.split()
        )
    shown = await aeenc("oracle", "llm", "--show-prompt")
    assert (shown.code, shown.stdout) == (0, TEMPLATE)
    assert "JSON object" in shown.stderr


async def test_a_check_says_why_answers_were_not_valid_and_gives_room_to_think(aeenc, trees):
    wanted = ("oracle", "check", "--trees", trees, "--split", "train", "--candidates", "3", "--model", "m")
    with ModelEndpoint(kind="thinks").served() as endpoint:
        found = await aeenc(*wanted, "--base-url", endpoint.url, "--thinking-tokens", 1000)
        assert (found.code, "not valid" in found.stdout) == (0, False), found.stderr
        cut = await aeenc(*wanted, "--base-url", endpoint.url)
        assert (cut.code, "cut off at 128 tokens" in cut.stderr, "--thinking-tokens" in cut.stderr) == (4, True, True)
    with ModelEndpoint(fault=lambda number: "prose" if number == 0 else "").served() as endpoint:
        found = await aeenc(*wanted, "--base-url", endpoint.url)
        assert "answers that are not valid, no JSON object, or a number twice: 1" in found.stdout
        assert "what it refuses  " in found.stdout

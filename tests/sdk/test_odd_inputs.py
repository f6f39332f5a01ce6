"""One table of odd inputs of Retrieve through every client: the same verdict, and the field as that client calls it.

`support/odd_inputs.json` has a row for each: the parameter as the Python client calls it, its value, the status, and
who refuses it. Node's client reads the same table (clients/typescript/tests).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import aeenc
from aeenc import errors, values
from aeenc.cli.main import app
from aeenc.transport.targets import Targets
from services.index.__main__ import build
from services.index.settings import IndexSettings
from support.command import built_client
from support.worlds.index_world import RunningEncoder

TABLE = json.loads((Path(__file__).parents[1] / "support" / "odd_inputs.json").read_text())
ALIKE = ("science", ["iron"])
FACTS = [
    values.Premise(id="f1", text="iron is a metal", splits=("train",), tags=("physics",)),
    values.Premise(id="f2", text="a magnet attracts iron"),
    values.Premise(id="f3", text="the sun is a star"),
]
Verdict = tuple[str, str]  # the status, and the field that is named
Client = Callable[[str, Any], Awaitable[Verdict | None]]  # None: this client has no way to say so

LISTS = ("texts", "accepted", "exclude", "splits", "only_ids", "tags")
WORDS = ("corpus", "label", "version", "before_id", "generation", "routing_key", "mode", "precision")
OPTIONS = {"k": "-k", "splits": "--split", "only_ids": "--only", "before_id": "--before"}
# The code that opens folders refuses a name that no folder can have, and does not know the field.
UNNAMED = ("generation", ["a\0b", "../etc"])
# The command line asks for premises by names that exist, and says where there are none.
MISSING = {("splits", "unknown"), ("splits", ""), ("splits", " "), ("tags", "unknown")}


def decoded(value: Any) -> Any:
    """Makes a value of what JSON can hold of it."""
    if isinstance(value, list):
        return [decoded(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "number" in value:
        return float(value["number"])
    part, times = value["repeat"]
    return part * times if value["as"] == "text" else [part] * times


def stem(field: str) -> str:
    return re.split(r"[.\[]", field, maxsplit=1)[0]


async def by_python(call: Callable[..., Any], field: str, value: Any) -> Verdict:
    given = {"corpus": ALIKE[0], "texts": ALIKE[1], field: value}
    try:
        answer = call(given.pop("corpus"), given.pop("texts"), **given)
        _ = await answer if asyncio.iscoroutine(answer) else answer
    except errors.AeencError as error:
        return error.code, stem(error.violations[0].field) if error.violations else ""
    return "OK", ""


async def by_command(target: str, field: str, value: Any) -> Verdict | None:
    typed = [one for one in (value if isinstance(value, list) else [value]) if not isinstance(one, str)]
    if field in {"generation", "nprobe", "ef_search", "truncate"} or value is None or isinstance(value, bool):
        return None  # it has no such option, or a flag
    if field == "accepted":
        value = value[0] if len(value) == 1 and isinstance(value[0], list) and value[0] else 0
        typed = [one for one in value if not isinstance(one, str)] if value else [0]
    if (field in LISTS and (typed or not isinstance(value, list) or not value)) or (
        field in WORDS and not isinstance(value, str)
    ):
        return None
    if "\\x00" in ascii(value):  # the system has no such argument
        return None
    option = OPTIONS.get(field, f"--{field.replace('_', '-')}")
    corpus, texts = (value if field == "corpus" else ALIKE[0]), (value if field == "texts" else ALIKE[1])
    words = [f"{option}{'=' * (option != '-k')}{one}" for one in (value if isinstance(value, list) else [value])]
    words = ["--json", "--index", target, "retrieve", *([] if field in {"corpus", "texts"} else words), corpus, *texts]
    ended = await asyncio.to_thread(CliRunner().invoke, app, words)
    if ended.exit_code == 0:
        return "OK", ""
    assert ended.stderr, (words, ended.exception)
    problem = json.loads(ended.stderr.splitlines()[-1])["error"]
    named = {"texts": "TEXT", "corpus": "CORPUS"}.get(field, option)
    return problem["status"], field if named in problem["message"] else problem["message"]


async def by_gateway(http: Any, field: str, value: Any) -> Verdict | None:
    if field == "texts" and not isinstance(value, list):
        return None  # the schema has it
    body = json.dumps({"corpus": ALIKE[0], "queries": ALIKE[1], {"texts": "queries"}.get(field, field): value})
    answer = (await http.post("/v1/retrieve", content=body)).json()
    if "code" not in answer:
        return "OK", ""
    named = stem(answer["violations"][0]["field"]) if answer["violations"] else ""
    assert named != "texts"
    return answer["code"], {"queries": "texts", "body": field}.get(named, named)


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[str]:
    async with RunningEncoder() as encoder:
        settings = IndexSettings(port=0, metrics_port=0, artifacts_dir=tmp_path, encoder_target=encoder.target)
        async with build(settings) as server:
            at = f"127.0.0.1:{server.port}"
            async with aeenc.AsyncClient(index=at) as client:
                await client.index.build("science", FACTS)
            yield at


async def differences(client: Client, share: float = 0.98, **exceptions: str) -> list[str]:
    """Runs the table, of which a client can say a share; lists what ends in another way than the table says."""
    found, told = [], 0
    for field, coded, status, _ in TABLE:
        value = decoded(coded)
        verdict = await client(field, value)
        told += verdict is not None
        wanted = exceptions.get(f"{field} {coded}", status)
        is_named = wanted != "INVALID_ARGUMENT" or (field == UNNAMED[0] and value in UNNAMED[1])
        if verdict is not None and (verdict[0] != wanted or not (is_named or verdict[1] == field)):
            found.append(f"{field}={value!r:.60}: {verdict}, not {wanted}")
    assert told > len(TABLE) * share
    return found


async def test_the_awaiting_and_the_blocking_client_agree_on_every_odd_input(target: str):
    async with aeenc.AsyncClient(index=target, retry=False) as awaiting:
        assert not await differences(partial(by_python, awaiting.index.retrieve))
    with aeenc.connect(index=target, retry=False) as blocking:
        calls = partial(asyncio.to_thread, blocking.index.retrieve)
        assert not await differences(partial(by_python, calls))
    assert len(TABLE) >= 150


async def test_the_command_line_agrees_on_every_odd_input(target: str):
    missing = {f"{field} {[name]}": "INVALID_ARGUMENT" for field, name in MISSING}
    assert not await differences(partial(by_command, target), share=0.55, **missing)


async def test_the_gateway_agrees_on_every_odd_input(target: str):
    httpx, gateway = pytest.importorskip("httpx"), pytest.importorskip("aeenc_gateway")
    served = gateway.make_app(Targets(index=target))
    async with (
        served.router.lifespan_context(served),
        httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://localhost") as http,
    ):
        absent = {"k None": "OK", "mode None": "OK"}  # null in JSON
        assert not await differences(partial(by_gateway, http), **absent)


@pytest.mark.sdk
async def test_the_client_for_node_agrees_on_every_odd_input(target: str, tmp_path: Path):
    folder = await asyncio.to_thread(built_client, tmp_path)
    program = ["node", "--test", "--test-reporter=tap", "--test-name-pattern=odd input", "build/tests/client.test.js"]
    process = await asyncio.create_subprocess_exec(
        *program, cwd=folder, env={**os.environ, "AEENC_TEST_INDEX": target}, stdout=asyncio.subprocess.PIPE
    )
    told = (await process.communicate())[0].decode()
    assert process.returncode == 0, told
    assert re.search(r"^ok \d+ - the index that the environment names .*all clients$", told, re.MULTILINE)

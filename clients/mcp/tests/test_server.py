"""The server as an MCP client sees it, over stdin and stdout, beside a running index at AEENC_INDEX."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from aeenc_mcp import make_server
from mcp import Client, StdioServerParameters, stdio_client

from aeenc.calls.retrieval import Mode
from aeenc.transport.targets import Targets

QUERY = "a magnet attracts an iron nail"
COMMAND = Path(sys.executable).with_name("aeenc-mcp")
VARIABLES = {name: value for name, value in os.environ.items() if name.startswith("AEENC_")}


class InProcess:
    """Calls a server of this process. A fixture cannot hold the client: it must end in the task that began it."""

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        async with Client(make_server(Targets.find())) as connected:
            return await connected.call_tool(name, arguments)

    async def list_tools(self) -> Any:
        async with Client(make_server(Targets.find())) as connected:
            return await connected.list_tools()


@pytest.fixture
def client() -> InProcess:
    return InProcess()


async def test_a_client_that_starts_the_command_retrieves_over_stdio():
    command = StdioServerParameters(command=str(COMMAND), env=VARIABLES)
    async with Client(stdio_client(command)) as connected:
        assert {tool.name for tool in (await connected.list_tools()).tools} == {"retrieve", "explain", "status"}
        result = await connected.call_tool("retrieve", {"corpus": "science", "text": QUERY, "k": 2})
    assert not result.is_error
    answer = result.structured_content
    assert [one["rank"] for one in answer["premises"]] == [1, 2]
    assert answer["model_version"]
    assert answer["generation"]
    assert json.loads(result.content[0].text) == answer


async def test_a_running_fleets_file_leads_to_it(tmp_path):
    targets = {"index": VARIABLES["AEENC_INDEX"], "encoder": VARIABLES["AEENC_ENCODER"]}
    (tmp_path / ".aeenc").mkdir()
    (tmp_path / ".aeenc" / "fleet.json").write_text(json.dumps({"format_version": 1, "targets": targets}))
    command = StdioServerParameters(command=str(COMMAND), cwd=tmp_path)
    async with Client(stdio_client(command)) as connected:
        result = await connected.call_tool("retrieve", {"corpus": "science", "text": QUERY})
    assert len(result.structured_content["premises"]) == 10


async def test_the_same_tools_over_http_on_this_machine():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        str(COMMAND), "--transport", "streamable-http", "--port", str(port), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await listening(port)
        async with Client(f"http://127.0.0.1:{port}/mcp") as connected:
            result = await connected.call_tool("retrieve", {"corpus": "science", "text": QUERY})
        assert len(result.structured_content["premises"]) == 10
    finally:
        process.terminate()
        await process.wait()


async def listening(port: int) -> None:
    """Waits until something accepts connections."""
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


def test_a_malformed_fleet_file_stops_the_start(tmp_path):
    (tmp_path / "fleet.json").write_text("{")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AEENC_")}
    variables["AEENC_HOME"] = str(tmp_path)
    ended = subprocess.run([COMMAND], env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "fleet.json:1: not JSON" in ended.stderr


async def test_accepted_premises_are_not_found_again(client):
    first = await client.call_tool("retrieve", {"corpus": "science", "text": QUERY, "k": 1})
    best = first.structured_content["premises"][0]["id"]
    again = await client.call_tool("retrieve", {"corpus": "science", "text": QUERY, "accepted": [best]})
    assert best not in [one["id"] for one in again.structured_content["premises"]]


async def test_explain_builds_a_tree_breadth_first_and_no_premise_twice(client):
    result = await client.call_tool("explain", {"corpus": "science", "hypothesis": QUERY, "k": 2, "depth": 2})
    tree = result.structured_content
    premises = tree["premises"]
    assert [(one["depth"], one["rank"]) for one in premises] == [(1, 1), (1, 2), (2, 1), (2, 2), (2, 1), (2, 2)]
    first, second = premises[:2]
    parents = [one["parent"] for one in premises]
    assert parents == ["", "", first["id"], first["id"], second["id"], second["id"]]
    assert len({one["id"] for one in premises}) == 6
    lines = tree["outline"].splitlines()
    assert lines[:2] == [QUERY, f"  - {first['text']} [{first['id']}]"]
    assert lines[2].startswith("    - ")


async def test_the_second_premise_of_a_tree_is_the_best_given_the_first(client):
    tree = await client.call_tool("explain", {"corpus": "science", "hypothesis": QUERY, "k": 2, "depth": 1})
    first, second = tree.structured_content["premises"]
    found = await client.call_tool("retrieve", {"corpus": "science", "text": QUERY, "accepted": [first["id"]]})
    best = found.structured_content["premises"][0]
    assert (second["id"], second["score"]) == (best["id"], pytest.approx(best["score"]))


async def test_a_tree_ends_where_the_corpus_does(client):
    tree = await client.call_tool("explain", {"corpus": "science", "hypothesis": QUERY, "k": 5, "depth": 3})
    assert len(tree.structured_content["premises"]) == 10  # all there are


async def test_status_shows_corpora_labels_and_who_is_away(client):
    result = await client.call_tool("status", {})
    services = result.structured_content["services"]
    assert services["index"]["corpora"]["science"]["premises"] == 10
    assert "stable" in services["encoder"]["labels"]
    assert services["trainer"]["error"]["status"] == "UNAVAILABLE"


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("retrieve", {"corpus": "nowhere", "text": QUERY}, "NOT_FOUND"),
        ("retrieve", {"corpus": "science", "text": QUERY, "k": 0}, "greater than or equal to 1"),
        ("retrieve", {"corpus": "science", "text": QUERY, "mode": "sparse"}, "mode"),
        ("explain", {"corpus": "science", "hypothesis": QUERY, "depth": 4}, "less than or equal to 3"),
        ("explain", {"corpus": "science", "hypothesis": QUERY, "label": "nothing"}, "nothing"),
    ],
)
async def test_the_model_reads_what_was_wrong(client, tool, arguments, words):
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert words in result.content[0].text


async def test_every_mode_is_explained_and_the_label_is_the_encoders_choice(client):
    for tool in (await client.list_tools()).tools:
        told = {name: one.get("description", "") for name, one in tool.input_schema["properties"].items()}
        assert tool.name == "status" or all(f"{mode}: " in told["mode"] for mode in get_args(Mode))
        assert tool.name == "status" or "as the encoder chooses" in told["label"]


async def test_explain_says_what_it_does_not_do(client):
    tools = {tool.name: tool.description for tool in (await client.list_tools()).tools}
    assert "does NOT judge" in tools["explain"]
    assert "does NOT prove" in tools["explain"]

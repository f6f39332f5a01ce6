"""The command: where it listens, how it finds the fleet, and what stops its start."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

COMMAND = str(Path(sys.executable).with_name("aeenc-gateway"))
BARE = {name: value for name, value in os.environ.items() if not name.startswith("AEENC_")}
BARE["AEENC_GATEWAY_PORT"] = "0"
ELSEWHERE = {"AEENC_ENCODER": "192.0.2.1:1", "AEENC_INDEX": "127.0.0.1:1"}


@asynccontextmanager
async def running(*arguments: str, **options):
    process = await asyncio.create_subprocess_exec(COMMAND, *arguments, stderr=asyncio.subprocess.PIPE, **options)
    try:
        async with asyncio.timeout(30):
            told = (await process.stderr.readline()).decode()
        yield told, "".join(re.findall(r"http://\S+", told)[:1])
    finally:
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            await process.wait()


async def test_a_running_fleets_file_leads_to_it(tmp_path):
    targets = {"index": os.environ["AEENC_INDEX"], "encoder": os.environ["AEENC_ENCODER"]}
    (tmp_path / ".aeenc").mkdir()
    (tmp_path / ".aeenc" / "fleet.json").write_text(json.dumps({"format_version": 1, "targets": targets}))
    async with running(cwd=tmp_path, env=BARE) as (told, url):
        assert f"(encoder {targets['encoder']}, index {targets['index']})" in told
        async with httpx.AsyncClient(base_url=url) as http:
            assert (await http.post("/embed", json={"inputs": "sun"})).status_code == 200


async def test_settings_come_from_the_environment_and_flags_win():
    variables = {**os.environ, "AEENC_GATEWAY_PORT": "0", "AEENC_GATEWAY_BODY_BYTES": "2000"}
    async with running(env=variables) as (_, url), httpx.AsyncClient(base_url=url) as http:
        assert (await http.post("/embed", json={"inputs": "sun " * 1000})).status_code == 413
    async with running("--body-bytes", "8000", env=variables) as (_, url), httpx.AsyncClient(base_url=url) as http:
        assert (await http.post("/embed", json={"inputs": "sun " * 1000})).status_code == 400  # by the encoder


@pytest.mark.parametrize(
    "begun",
    [
        b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /embed HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
    ],
    ids=["head", "trailers"],
)
async def test_a_head_or_trailers_without_end_end_their_own_connection_alone(begun):
    async with running("--port", "0") as (_, url), httpx.AsyncClient(base_url=url) as http:
        _, writer = await asyncio.open_connection("127.0.0.1", http.base_url.port)
        writer.write(begun)

        async def endless():
            while True:
                writer.write(b"x: " + 60_000 * b"y" + b"\r\n")
                await writer.drain()

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(endless(), 10)
        assert (await http.get("/openapi.json", headers={"x": 40_000 * "y"})).status_code == 200
        assert (await http.post("/embed", content=200_000 * b" ")).status_code == 400


async def test_a_request_that_comes_with_the_end_of_a_large_body_is_answered():
    async with running("--port", "0") as (_, url):
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
        body = 200_000 * b" "
        head = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body + b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n")
        await writer.drain()
        assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 400")
        writer.write(b"Connection: close\r\n\r\n")
        assert b"HTTP/1.1 200" in await asyncio.wait_for(reader.read(), 10)


@pytest.mark.parametrize(
    ("arguments", "variables", "status", "words"),
    [
        (["--host", "0.0.0.0"], {}, 2, "is not loopback"),
        (["--host", "0.0.0.0", "--token", "t", "--tls-cert", __file__, "--tls-key", __file__], {}, 2, "not loopback"),
        (["--tls-cert", __file__], {}, 2, "belong together"),
        (["--tls-cert", "c", "--tls-key", __file__], {}, 2, "AEENC_GATEWAY_TLS_CERT (--tls-cert)"),
        (["--tls-cert", __file__, "--tls-key", __file__], {}, 1, "test_command.py cannot be used"),
        (["--ca", "c"], {}, 2, "AEENC_GATEWAY_CA (--ca)"),
        ([], {"AEENC_CA": "/none.pem"}, 1, "none.pem"),
        (["--cert", __file__], {}, 1, "cert and key belong together"),
        (["--encoder", "nonsense"], {}, 1, "encoder: 'nonsense' is not an address"),
        (["--token", ""], {}, 2, "AEENC_GATEWAY_TOKEN (--token): Value error, is blank"),
        (["--token", "  "], {}, 2, "is blank"),
        (["--token", "se cret"], {}, 2, "AEENC_GATEWAY_TOKEN (--token): Value error, is blank"),
        (["--port", "70000"], {}, 2, "AEENC_GATEWAY_PORT (--port)"),
        (["--nonsense"], {}, 2, "--nonsense"),
        ([], ELSEWHERE, 1, "plain_token: is off, so no token travels to 192.0.2.1:1"),
        ([], {"AEENC_HOME": "{home}"}, 1, "fleet.json:1: not JSON"),
    ],
)
def test_a_wrong_setting_stops_the_start_with_its_name(tmp_path, arguments, variables, status, words):
    (tmp_path / "fleet.json").write_text("{")
    env = BARE | {name: value.format(home=tmp_path) for name, value in variables.items()}
    ended = subprocess.run([COMMAND, *arguments], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (status, "")
    assert words in ended.stderr
    assert status == 2 or len(ended.stderr.splitlines()) == 1


async def test_tokens_of_callers_travel_to_another_host_without_tls_where_asked():
    async with running("--plain-token", env=BARE | ELSEWHERE) as (told, _):
        assert told == "aeenc-gateway: tokens travel to 192.0.2.1:1 without TLS (plain_token)\n"


async def test_a_port_that_is_taken_is_named():
    async with running("--port", "0") as (_, url):
        port = url.rpartition(":")[2]
        command = [COMMAND, "--port", port]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: ASYNC221
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr

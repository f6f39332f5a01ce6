"""Tokens, errors, limits, and callers that leave or talk nonsense, before a double of the services."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from dataclasses import replace

import grpc
import httpx
import openai
import pytest
from conftest import certify, serving

from aeenc import errors
from aeenc.errors import FieldViolation
from aeenc.transport.targets import Targets

TEXT = {"input": "sun"}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidArgument, 400),
        (errors.TooLarge, 400),
        (errors.Unauthenticated, 401),
        (errors.PermissionDenied, 403),
        (errors.NotFound, 404),
        (errors.AlreadyExists, 409),
        (errors.Aborted, 409),
        (errors.FailedPrecondition, 412),
        (errors.SpaceMismatch, 412),
        (errors.Overloaded, 429),
        (errors.AeencError, 500),
        (errors.DataLoss, 500),
        (errors.Unimplemented, 501),
        (errors.Unavailable, 503),
        (errors.DeadlineExceeded, 504),
    ],
)
async def test_each_status_becomes_a_problem_that_openais_client_shows(before, double, error, status):
    double.error = error("something is wrong; do this", violations=[FieldViolation("texts[0]", "is wrong")])
    async with openai.AsyncOpenAI(base_url=f"{before.base_url}/v1", api_key="any", max_retries=0) as client:
        with pytest.raises(openai.APIStatusError, match="something is wrong; do this") as caught:
            await client.embeddings.create(model="", input="sun")
    answer = caught.value.response
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    problem = answer.json()
    assert problem["status"] == status
    assert problem["type"] == "about:blank"
    assert (problem["code"], problem["reason"]) == (error.code, error.default_reason)
    assert problem["violations"] == [{"field": "input[0]", "description": "is wrong"}]
    assert problem["request_id"] == answer.headers["x-request-id"] == caught.value.request_id
    assert (caught.value.code, caught.value.param) == (error.default_reason, "input[0]")
    assert len(double.requests) == 1  # never repeated by the gateway


@pytest.mark.parametrize(
    ("error", "seconds", "milliseconds"),
    [
        (errors.Overloaded("full", retry_after_s=0.25), "1", "250"),
        (errors.Overloaded("full"), "1", "1000"),
        (errors.Unavailable("starting", retry_after_s=2.5), "3", "2500"),
        (errors.Unavailable("away"), None, None),
    ],
)
async def test_an_overloaded_service_says_when_to_come_back(before, double, error, seconds, milliseconds):
    double.error = error
    answer = await before.post("/v1/embeddings", json=TEXT)
    assert (answer.headers.get("retry-after"), answer.headers.get("retry-after-ms")) == (seconds, milliseconds)


async def test_openais_client_comes_back_by_itself(before, double):
    double.error = errors.Overloaded("full", retry_after_s=0.01)

    async with openai.AsyncOpenAI(base_url=f"{before.base_url}/v1", api_key="any", max_retries=1) as client:
        with pytest.raises(openai.RateLimitError):
            await client.embeddings.create(model="", input="sun")
    assert len(double.requests) == 2


async def test_each_call_carries_its_own_callers_token_and_no_other(before, double):
    async def call(token):
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return await before.post("/v1/embeddings", json={"input": token or "none"}, headers=headers)

    double.hold = asyncio.Event()
    calls = [asyncio.create_task(call(token)) for token in ("one", "two", None, "three")]
    for _ in calls:
        await double.asked.acquire()
    double.hold.set()
    await asyncio.gather(*calls)
    sent = zip(double.requests, double.metadata, strict=True)
    assert {request.texts[0]: metadata.get("authorization") for request, metadata in sent} == {
        "one": "Bearer one",
        "two": "Bearer two",
        "three": "Bearer three",
        "none": None,
    }


async def test_a_token_in_the_environment_is_not_the_gateways(double, monkeypatch):
    monkeypatch.setenv("AEENC_TOKEN", "of-the-operator")
    async with double.listening() as targets:
        found = Targets.find(encoder=targets.encoder, index=targets.index)
        async with serving(found) as url, httpx.AsyncClient(base_url=url) as http:
            await http.post("/v1/embeddings", json=TEXT)
    assert "authorization" not in double.metadata[0]


async def test_a_configured_token_is_for_callers_that_send_none(double):
    async with (
        double.listening() as targets,
        serving(targets, token="own") as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        await http.post("/v1/embeddings", json=TEXT)
        await http.post("/v1/embeddings", json=TEXT, headers={"authorization": "Bearer theirs"})
    assert [one["authorization"] for one in double.metadata] == ["Bearer own", "Bearer theirs"]


@pytest.mark.parametrize("token", ["tökén", "two words", "x" * 9000])
async def test_a_token_that_grpc_cannot_carry_is_refused(before, double, token):
    headers = {"authorization": f"Bearer {token}".encode()}
    answer = await before.post("/v1/embeddings", json=TEXT, headers=headers)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert not double.requests


async def test_request_id_and_trace_reach_the_services_and_come_back(before, double):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"x-request-id": "mine", "traceparent": trace}
    answer = await before.post("/v1/embeddings", json=TEXT, headers=headers)
    assert answer.headers["x-request-id"] == "mine"
    await before.post("/v1/embeddings", json=TEXT, headers={"x-request-id": b"b\xe4d", "traceparent": b"b\xe4d"})
    good, bad = double.metadata
    assert (good["x-request-id"], good["traceparent"]) == ("mine", trace)
    assert len(bad["x-request-id"]) == 32
    assert "traceparent" not in bad


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_limit_is_refused(double, declared):
    async def parts():
        for _ in range(100):
            yield b" " * 1000

    async with (
        double.listening() as targets,
        serving(targets, body_bytes=10_000) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        body = b" " * 100_000 if declared else parts()
        refused = await http.post("/v1/embeddings", content=body, headers={"content-type": "application/json"})
        assert (refused.status_code, refused.json()["reason"]) == (413, "OVER_LIMIT")
        assert "the body is over 10,000 bytes" in refused.json()["detail"]
        assert (await http.post("/v1/embeddings", json={"input": "s" * 9_000})).status_code == 200
    assert len(double.requests) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"5",
        b'"sun"',
        b"{}",
        b"[" * 100_000,
        b'{"input": 5}',
        b'{"input": null}',
        b'{"input": {"a": "b"}}',
        b'{"input": ["sun", null]}',
        b'{"input": "\\ud800"}',
        b'{"input": ["sun"], "model": "\\udfff"}',
        b'{"input": "sun", "model": 5}',
        b'{"input": "sun", "encoding_format": "int8"}',
        b'{"input": "sun", "dimensions": 1e400}',
        b'{"input": "sun", "user": ["x"]}',
        json.dumps({"input": "sun", "user": {"deep": [[[]]]}}).encode(),
    ],
)
async def test_nonsense_is_refused_and_named(before, double, body):
    answer = await before.post("/v1/embeddings", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert answer.json()["detail"]
    assert answer.json()["error"]["message"] == answer.json()["detail"]
    assert not double.requests
    assert (await before.post("/v1/embeddings", json=TEXT)).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "sun", "truncate": None, "space_id": None, "model": None, "dimensions": None}),
        ("/v1/embeddings", {"input": "sun", "encoding_format": None, "user": None}),
        ("/embed", {"inputs": "sun", "normalize": None, "truncation_direction": None, "dimensions": None}),
        ("/v1/retrieve", {"corpus": "science", "query": "sun", "k": None, "queries": None}),
        ("/v1/retrieve", {"corpus": "science", "query": "sun", "fusion": {"method": None, "features": None}}),
    ],
)
async def test_null_stands_for_an_absent_field_also_within_another(before, path, body):
    assert (await before.post(path, json=body)).status_code == 200


@pytest.mark.parametrize("content", [b"GARBAGE\r\n\r\n", b"\x16\x03\x01\x02\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
async def test_what_is_not_http_ends_its_own_connection_alone(before, content):
    reader, writer = await asyncio.open_connection("127.0.0.1", before.base_url.port)
    writer.write(content)
    writer.write_eof()
    async with asyncio.timeout(10):
        assert b"200 OK" not in await reader.read()
    writer.close()
    assert (await before.post("/v1/embeddings", json=TEXT)).status_code == 200


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/embeddings", 405), ("POST", "/v1/chat", 404)])
async def test_what_is_not_here_is_a_problem_too(before, method, path, status):
    answer = await before.request(method, path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert answer.json()["status"] == status
    assert path in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body", "accept"),
    [
        ("POST", "/v1/embeddings", TEXT, "application/json"),
        ("POST", "/v1/retrieve", {"corpus": "science", "query": "sun"}, "application/json"),
        ("POST", "/v1/retrieve", {"corpus": "science", "query": "sun"}, "application/x-ndjson"),
        ("GET", "/v1/models", None, "application/json"),
    ],
)
async def test_a_caller_that_leaves_cancels_the_call(before, double, method, path, body, accept):
    double.hold = asyncio.Event()
    sent = json.dumps(body).encode() if body else b""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nContent-Type: application/json\r\n"
    connection = socket.create_connection(("127.0.0.1", before.base_url.port))
    connection.sendall(f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent)
    async with asyncio.timeout(10):
        await double.asked.acquire()
        connection.close()
        await double.cancelled.wait()
    double.hold.set()
    assert (await before.post("/v1/embeddings", json=TEXT)).status_code == 200


async def test_a_caller_that_leaves_between_lines_cancels_the_next_call(before, double):
    body = {"corpus": "science", "queries": [str(n) for n in range(40)]}
    double.hold, double.after = asyncio.Event(), 1
    async with before.stream("POST", "/v1/retrieve", json=body, headers={"accept": "application/x-ndjson"}) as answer:
        await anext(answer.aiter_lines())
        async with asyncio.timeout(10):
            await double.asked.acquire()
            await double.asked.acquire()
    async with asyncio.timeout(10):
        await double.cancelled.wait()


async def test_many_requests_on_one_connection_are_each_answered(before):
    for number in range(50):
        answer = await before.post("/v1/embeddings", json={"input": [str(number)] * 3})
        assert len(answer.json()["data"]) == 3


async def test_a_bug_is_told_without_its_text(before, double, monkeypatch):
    monkeypatch.setattr("aeenc_gateway.embeddings.json_response", lambda _: 1 / 0)
    answer = await before.post("/v1/embeddings", json=TEXT, headers={"x-request-id": "mine"})
    assert (answer.status_code, answer.json()["code"]) == (500, "INTERNAL")
    assert "division" not in answer.text
    assert "its log has request mine" in answer.json()["detail"]
    assert answer.headers["x-request-id"] == "mine"


async def test_the_gateway_waits_for_a_fleet_that_is_down(double):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    targets = Targets(encoder=f"127.0.0.1:{port}", index=f"127.0.0.1:{port}")
    async with serving(targets) as url, httpx.AsyncClient(base_url=url) as http:
        away = await http.post("/v1/embeddings", json=TEXT)
        assert (away.status_code, away.json()["code"]) == (503, "UNAVAILABLE")
        assert f"no service answers at 127.0.0.1:{port}" in away.json()["detail"]
        assert (await http.get("/openapi.json")).status_code == 200
        async with double.listening(port), asyncio.timeout(30):
            while (await http.post("/v1/embeddings", json=TEXT)).status_code == 503:
                pass


async def test_services_that_ask_for_client_certificates_are_shown_the_gateways(double, tmp_path):
    (cert, key), (own_cert, own_key) = certify(tmp_path, "server"), certify(tmp_path, "gateway")
    pair = [(key.read_bytes(), cert.read_bytes())]
    asking = grpc.ssl_server_credentials(pair, own_cert.read_bytes(), require_client_auth=True)
    async with double.listening(credentials=asking) as targets:
        for shown, status in (({"cert": own_cert, "key": own_key}, 200), ({}, 503)):
            identity = replace(targets, ca=cert, **shown)
            async with serving(identity, timeout_s=5) as url, httpx.AsyncClient(base_url=url) as http:
                assert (await http.post("/v1/embeddings", json=TEXT)).status_code == status


async def test_a_version_is_found_once_and_then_asked_for_at_once(before, double):
    double.has_labels = False
    for _ in range(2):
        assert (await before.post("/v1/embeddings", json={"input": "sun", "model": "q7"})).status_code == 200
    asked = [(one.model.label, one.model.version) for one in double.requests]
    assert asked == [("q7", ""), ("", "q7"), ("", "q7")]


async def test_the_document_tells_every_route_its_errors_and_the_token(before):
    document = (await before.get("/openapi.json")).json()
    routes = {"/v1/embeddings", "/v1/models", "/v1/retrieve", "/embed", "/rerank", "/info", "/health"}
    assert set(document["paths"]) == routes
    for path in document["paths"].values():
        for operation in path.values():
            content = operation["responses"]["default"]["content"]
            assert set(content) == {"application/problem+json"}
            assert content["application/problem+json"]["schema"] == {"$ref": "#/components/schemas/Problem"}
            assert "422" not in operation["responses"]
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert "openapi.json" in (await before.get("/docs")).text


@pytest.mark.parametrize(
    ("host", "allowed", "status"),
    [
        ("evil.example", (), 403),
        ("evil.example:8080", (), 403),
        ("127.0.0.1.evil.example", (), 403),
        ("localhost.evil.example", (), 403),
        ("", (), 200),  # no browser leaves it out
        ("localhost:1", (), 200),
        ("127.0.0.2", (), 200),
        ("[::1]:8080", (), 200),
        ("gateway.example:443", ("Gateway.example",), 200),
        ("other.example", ("gateway.example",), 403),
        ("other.example", ("*",), 200),
    ],
)
async def test_it_answers_to_its_own_names_alone(double, host, allowed, status):
    async with (
        double.listening() as targets,
        serving(targets, allowed_hosts=allowed) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        answer = await http.post("/embed", json={"inputs": "sun"}, headers={"host": host})
        assert answer.status_code == status, answer.text
        if status == 403:
            assert "--allowed-host" in answer.json()["detail"]
        assert (await http.get("/health", headers={"host": host})).status_code != 403


@pytest.mark.parametrize("headers", [{"content-encoding": "gzip"}, {"content-encoding": "br"}, {}])
async def test_a_packed_body_is_refused_by_name(before, double, headers):
    packed = gzip.compress(b'{"input": "sun"}')
    refused = await before.post("/v1/embeddings", content=packed, headers=headers)
    assert refused.status_code == 415, refused.text
    assert f"is {headers.get('content-encoding', 'gzip')}" in refused.json()["error"]["message"]
    assert not double.requests


async def test_a_byte_order_mark_is_no_part_of_the_body(before, double):
    body = '{"input": "sun"}'.encode("utf-8-sig")
    headers = {"content-encoding": "identity"}
    assert (await before.post("/v1/embeddings", content=body, headers=headers)).status_code == 200

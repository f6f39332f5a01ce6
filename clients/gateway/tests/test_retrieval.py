"""Retrieval over HTTP: at once before the running fleet, and line by line before a double."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from aeenc_gateway.retrieval import RetrieveRequest

import aeenc
from aeenc import connect_async, errors
from aeenc.adapters.premises import OPTIONS
from aeenc.calls.retrieval import Mode
from aeenc.transport.targets import Targets

QUERY = "a magnet attracts an iron nail"
LINES = {"accept": "application/x-ndjson"}


async def test_premises_are_those_that_the_sdk_retrieves(http):
    body = {"corpus": "science", "query": QUERY, "k": 3}
    answer = (await http.post("/v1/retrieve", json=body)).raise_for_status().json()
    async with connect_async(**Targets.find().options()) as direct:
        found = await direct.index.retrieve("science", [QUERY], k=3)
    assert (answer["model_version"], answer["generation"]) == (found.model_version, found.generation)
    (result,) = answer["results"]
    assert result["query"] == QUERY
    assert [(one["id"], one["text"]) for one in result["premises"]] == [(hit.id, hit.text) for hit in found[0]]
    assert [one["score"] for one in result["premises"]] == pytest.approx([hit.score for hit in found[0]])


async def test_options_reach_the_index(http):
    first = (await http.post("/v1/retrieve", json={"corpus": "science", "query": QUERY, "k": 1})).json()
    best = first["results"][0]["premises"][0]["id"]
    options = {"mode": "hybrid", "accepted": [[best], []], "k": 20, "rerank": 20}
    body = {"corpus": "science", "queries": [QUERY, "the sun is a star"], **options}
    answer = (await http.post("/v1/retrieve", json=body)).raise_for_status().json()
    assert [one["query"] for one in answer["results"]] == body["queries"]
    assert best not in [one["id"] for one in answer["results"][0]["premises"]]
    assert answer["rerank_versions"][0].startswith("x")
    lexical = (await http.post("/v1/retrieve", json={"corpus": "science", "query": QUERY, "mode": "lexical"})).json()
    assert lexical["model_version"] == ""


async def test_every_option_of_the_client_is_one_of_the_route(before, double):
    assert set(RetrieveRequest.model_fields) >= OPTIONS - {"timeout_s"}
    fusion = {"method": "reciprocal_rank", "lexical_weight": 0.25, "features": {"first": 2.5}}
    body = {"corpus": "science", "query": QUERY, "mode": "hybrid", "fusion": fusion, "rerank": 10}
    await before.post("/v1/retrieve", json={**body, "rerank_versions": ["x1", "x2"]})
    (asked,) = double.requests
    assert asked.options.fusion == aeenc.Fusion("reciprocal_rank", 0.25, {"first": 2.5}).to_proto()
    assert list(asked.options.rerank_versions) == ["x1", "x2"]


def test_every_mode_is_explained():
    explained = RetrieveRequest.model_fields["mode"].description
    assert all(f"{mode}: " in explained for mode in get_args(Mode))


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"corpus": "nowhere", "query": QUERY}, 404, "nowhere"),
        ({"corpus": "science"}, 400, "give either query or queries"),
        ({"corpus": "science", "query": QUERY, "queries": [QUERY]}, 400, "give either query or queries"),
        ({"corpus": "science", "query": QUERY, "k": 0}, 400, "k: Input should be greater than or equal to 1"),
        ({"corpus": "science", "query": QUERY, "k": 10**30}, 400, "k: "),
        ({"corpus": "science", "query": QUERY, "k": 5000}, 400, "k: is 5000; give 1 to 1,000"),
        ({"corpus": "science", "query": QUERY, "mode": "sparse"}, 400, "mode: "),
        ({"corpus": "science", "query": QUERY, "fusion": {"weight": 1}}, 400, "fusion.weight: Extra inputs"),
        ({"corpus": "science", "query": QUERY, "top_k": 3}, 400, "top_k: Extra inputs are not permitted"),
        ({"corpus": "science", "query": QUERY, "label": "nothing"}, 412, "'nothing'"),
        ({"corpus": "science", "queries": [QUERY] * 20, "accepted": [[]] * 16}, 400, "accepted: has 16 lists for 20"),
        ({"corpus": "science", "queries": []}, 400, "empty"),
    ],
)
@pytest.mark.parametrize("headers", [{}, LINES])
async def test_a_wrong_request_is_refused_with_the_remedy(http, body, status, words, headers):
    refused = await http.post("/v1/retrieve", json=body, headers=headers)
    assert (refused.status_code, refused.headers["content-type"]) == (status, "application/problem+json")
    assert words in refused.json()["detail"]


async def test_many_queries_come_line_by_line(http):
    queries = [f"{QUERY} number {n}" for n in range(40)]
    async with http.stream(
        "POST", "/v1/retrieve", json={"corpus": "science", "queries": queries, "k": 2}, headers=LINES
    ) as answer:
        assert answer.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) async for line in answer.aiter_lines()]
    assert [line["query"] for line in lines] == queries
    assert all(len(line["premises"]) == 2 for line in lines)
    assert len({(line["model_version"], line["generation"]) for line in lines}) == 1


async def test_all_lines_come_from_the_encoder_and_the_generation_of_the_first(before, double):
    queries = [str(n) for n in range(40)]
    accepted = [[f"p{n}"] for n in range(40)]
    body = {"corpus": "science", "queries": queries, "accepted": accepted, "label": "next"}
    await before.post("/v1/retrieve", json=body, headers=LINES)
    first, *later = double.requests
    assert (first.model.label, first.generation) == ("next", "")
    assert [(one.model.version, one.generation) for one in later] == [("q1", "g1")] * 2
    assert [text for one in double.requests for text in one.texts] == queries
    assert [given.premise_ids[0] for one in double.requests for given in one.accepted] == [p for (p,) in accepted]


async def test_splits_that_no_premise_has_are_told(before, double):
    double.unknown_splits = ["tset"]
    body = {"corpus": "science", "query": QUERY, "splits": ["tset"]}
    for headers in ({}, LINES):
        assert (await before.post("/v1/retrieve", json=body, headers=headers)).json()["unknown_splits"] == ["tset"]


async def test_a_failure_after_the_first_lines_is_the_last_line(before, double):
    double.error, double.after = errors.Overloaded("the queue is full", retry_after_s=2), 1
    body = {"corpus": "science", "queries": [str(n) for n in range(40)]}
    answer = await before.post("/v1/retrieve", json=body, headers=LINES)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert answer.status_code == 200
    assert [line["query"] for line in lines[:-1]] == body["queries"][:16]
    assert (lines[-1]["status"], lines[-1]["detail"]) == (429, "the queue is full")


async def test_a_failure_before_the_first_line_has_a_status_of_its_own(before, double):
    double.error = errors.Overloaded("the queue is full", retry_after_s=2)
    body = {"corpus": "science", "queries": ["sun", "moon"]}
    answer = await before.post("/v1/retrieve", json=body, headers=LINES)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")

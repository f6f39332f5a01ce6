"""Every operation of the gateway under odd fields, bodies and headers: never a 500, and never a traceback."""

from __future__ import annotations

import asyncio
import json

import pytest
from aeenc_gateway.app import OPERATIONS

MANY = 5_000
MANY_FIELDS = {str(number): "x" for number in range(MANY)}
LONG = json.dumps(20_000 * "x")
WORDS = ['""', '" "', '"ü\\u0000"', '"\\ud800"', "null", "NaN", "Infinity", "-Infinity", "1e400", "1e39", "true", LONG]
NUMBERS = [str(number) for number in (-1, 0, 0.5, 2**31, 2**32, 2**63, -(2**63), 2**64)]
LISTS = [
    "[]",
    "{}",
    "[[null]]",
    '["\\u0000"]',
    '["x"]',
    '[["x"]]',
    '{"x": 1e39}',
    '{"x": null}',
    '{"method": "toString"}',
    *(json.dumps(many) for many in (MANY * [0], MANY * [None], MANY * [[0]], MANY_FIELDS)),
]
BODIES = ["", " ", "\0", "null", "[]", "{", '"\\ud800"', 5_000 * "[", "\ufeff{}", json.dumps(10 * 2**20 * "x")]
HEADERS = ["", "tök", "\x80", "-1", str(2**64), 9_000 * "x"]
NAMES = ["authorization", "x-request-id", "traceparent", "content-type", "accept", "content-encoding", "host"]
KNOWN = {"input": "x", "inputs": "x", "query": "x", "texts": ["x"], "corpus": "science"}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.path)
async def test_no_field_body_or_header_makes_an_operation_fail(before, double, operation):
    double.scores = {"x1": [0.5]}
    fields = operation.body.model_fields if operation.body else {}
    whole = {name: value for name, value in KNOWN.items() if name in fields}
    sent = [
        json.dumps({**whole, name: "ODD"}).replace('"ODD"', odd) for name in fields for odd in WORDS + NUMBERS + LISTS
    ]
    many = json.dumps({**whole, **MANY_FIELDS})
    asked = [(body, {}) for body in [*BODIES, many, *sent]]
    asked += [(json.dumps(whole), {name: odd.encode()}) for name in NAMES for odd in HEADERS]
    asked += [(json.dumps(whole), {"authorization": b"Bearer " + odd.encode()}) for odd in HEADERS[1:]]
    at_once = asyncio.Semaphore(16)

    async def answer(body, headers):
        async with at_once:
            return await before.request(operation.method, operation.path, content=body.encode(), headers=headers)

    answers = await asyncio.gather(*(answer(*one) for one in asked))
    wrong = [
        (body[:200], headers, answered.text[:200])
        for (body, headers), answered in zip(asked, answers, strict=True)
        if answered.status_code == 500 or "Traceback" in answered.text or len(answered.content) > 50_000
    ]
    assert not wrong, f"{len(wrong)} of {len(asked)}: {wrong[:8]}"

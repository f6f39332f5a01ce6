"""docs/api.md: its tables are what the code says, and each call has one example, in messages of today."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor_pool import Default
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass

from aeenc.v1 import (  # noqa: F401 -- registers the messages
    encoder_pb2,
    index_pb2,
    oracle_pb2,
    people_pb2,
    registry_pb2,
    sampler_pb2,
    trainer_pb2,
)
from tools.docs import proto_files
from tools.pages import api

SECTION = re.compile(r"^### (\w+)$(.*?)(?=^##)", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^(\w+) (\{.*?)^→ (\{.*?)(?=^\w|\Z)", re.MULTILINE | re.DOTALL)
RPCS = [(service.name, method.name) for one in proto_files() for service in one.service for method in service.method]


@pytest.fixture(scope="module")
def page() -> str:
    return api.PATH.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def examples(page: str) -> dict[tuple[str, str], tuple[str, str]]:
    """The request and the answer of each call."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for service, text in SECTION.findall(page):
        for block in re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            for call, request, answer in EXAMPLE.findall(block):
                assert (service, call) not in found, "one example for each call"
                found[service, call] = request, answer
    return found


def messages(text: str) -> Iterator[Any]:
    """One message, or those of a stream one after another."""
    while text := text.strip():
        message, end = json.JSONDecoder().raw_decode(text)
        yield message
        text = text[end:]


def test_the_tables_of_the_page_are_what_the_code_says(page: str):
    assert page == api.render(page), "run python -m tools.pages.api"
    written = re.findall(r"^<!-- (\w+): ", page, re.MULTILINE)
    assert sorted(written) == sorted({"limits", "statuses", *(service for service, _ in RPCS)})


def test_every_call_has_an_example_and_no_other_call_has(examples: dict[tuple[str, str], tuple[str, str]]):
    assert sorted(examples) == sorted(RPCS)


@pytest.mark.parametrize(("service", "call"), RPCS)
def test_an_example_is_a_request_and_an_answer_of_its_call(examples: Any, service: str, call: str):
    method = Default().FindServiceByName(f"aeenc.v1.{service}").FindMethodByName(call)
    request, answer = examples[service, call]
    for text, kind, streams in (
        (request, method.input_type, method.client_streaming),
        (answer, method.output_type, method.server_streaming),
    ):
        parsed = [ParseDict(message, GetMessageClass(kind)()) for message in messages(text)]
        assert len(parsed) == 1 or streams

"""The reference that `make docs` writes: nothing of what it describes is left out. The site itself: tests/sdk."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from typer.main import get_command

import aeenc
from aeenc.cli.main import app
from tools import docs

PROTOS = ("encoder", "index", "oracle", "people", "registry", "sampler", "trainer")
MODULES = ("errors", "evaluation", "exports", "loop", "oracle", "oracles.composite", "oracles.gold", "oracles.llm")
MODULES += ("oracles.model", "oracles.remote", "trees")


def commands(command: Any, path: str) -> Iterator[str]:
    """A command and all below it, as the anchors of their headings."""
    yield path.replace(" ", "-")
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{path} {name}")


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {"cli.md": docs.cli_page(), **docs.rpc_pages(), **docs.sdk_pages()}


def test_the_reference_has_a_heading_for_each_rpc_and_its_comment(pages: dict[str, str]):
    text = "\n".join(text for name, text in pages.items() if name.startswith("rpc/"))
    for name in PROTOS:
        for service in import_module(f"aeenc.v1.{name}_pb2").DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                assert f"### {service.name}.{method.name} {{#{service.name}.{method.name}}}" in text
    assert "- FAILED_PRECONDITION (SPACE_MISMATCH): the vectors belong to another space." in text


def test_the_reference_has_a_heading_for_each_command_and_a_row_for_its_options(pages: dict[str, str]):
    headings = {line.lstrip("# ").replace(" ", "-") for line in pages["cli.md"].splitlines() if line.startswith("#")}
    assert set(commands(get_command(app), "aeenc")) <= headings
    assert "| `--data <path>` |" in pages["cli.md"]


def test_every_public_name_is_handed_to_mkdocstrings(pages: dict[str, str]):
    handed = {line[4:] for text in pages.values() for line in text.splitlines() if line.startswith("::: ")}
    for name in aeenc.__all__:
        assert {f"aeenc.{name}", getattr(getattr(aeenc, name), "__module__", "aeenc.errors")} & handed, name
    assert {f"aeenc.{name}" for name in MODULES} <= handed

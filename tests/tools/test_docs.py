"""The reference that `make docs` writes: nothing of what it describes is left out. The site itself: tests/sdk."""

from __future__ import annotations

import pytest

import aeenc
from benchmarks.sdk import documented
from tools import docs


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {"cli.md": docs.cli_page(), **docs.rpc_pages(), **docs.sdk_pages()}


def test_the_reference_has_a_heading_for_each_rpc_and_its_comment(pages: dict[str, str]):
    text = "\n".join(text for name, text in pages.items() if name.startswith("rpc/"))
    for (name,) in documented.rpcs():
        assert f"### {name} {{#{name}}}" in text
    assert "- NOT_FOUND: unknown corpus or generation, or no active generation." in text


def test_the_reference_has_a_heading_for_each_command_and_a_row_for_its_options(pages: dict[str, str]):
    headings = {line.lstrip("# ").replace(" ", "-") for line in pages["cli.md"].splitlines() if line.startswith("#")}
    for (name,) in documented.commands(documented.get_command(documented.app), "aeenc"):
        assert name in headings
    assert "| `--data <path>` |" in pages["cli.md"]


def test_every_public_name_is_handed_to_mkdocstrings(pages: dict[str, str]):
    handed = {line[4:] for text in pages.values() for line in text.splitlines() if line.startswith("::: ")}
    for name in aeenc.__all__:
        assert {f"aeenc.{name}", getattr(getattr(aeenc, name), "__module__", "aeenc.errors")} & handed, name
    assert {f"aeenc.{name}" for name in documented.MODULES} <= handed

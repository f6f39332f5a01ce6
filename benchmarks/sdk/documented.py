"""Builds the site and looks in its pages for every RPC, setting, command and public name of the SDK.

The names come from the descriptors, the settings classes, the parser and the imported modules; the pages are the HTML
that a reader gets.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from typer.main import get_command

import aeenc
from aeenc.cli.main import app
from benchmarks.harness.rows import ROOT, Rows
from services.kit.settings import ServiceSettings
from services.sampler.settings import OracleSettings, QueueSettings
from tools.settings_doc import SERVICES

PROTOS = ("encoder", "index", "oracle", "people", "registry", "sampler", "trainer")
MODULES = ("errors", "evaluation", "exports", "loop", "oracle", "oracles.composite", "oracles.gold", "oracles.llm")
MODULES += ("oracles.model", "oracles.noisy", "oracles.remote", "trees")
# What a browser fetches by itself.
_FOREIGN = re.compile(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="((?:https?:)?//[^"]+)')


def documented(rows: Rows) -> None:
    """The site builds strictly, and nothing public lacks a place in it."""
    built = subprocess.run([sys.executable, "-m", "tools.docs"], cwd=ROOT, capture_output=True, text=True, check=False)
    told = [line for line in built.stderr.splitlines() if line.startswith(("WARNING", "ERROR"))]
    rows.add("the site builds strictly", built.returncode == 0, "", "True", built.returncode == 0, told or None)
    site = ROOT / "site"
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    foreign = sorted({found for page in pages for found in _FOREIGN.findall(page)})
    rows.add(
        "scripts, styles, pictures from elsewhere", len(foreign), "", "0", bool(pages) and not foreign, foreign or None
    )
    places = ids_of(site / "reference")
    shown = settings_of(site / "settings.html")
    missing(rows, "RPCs", rpcs(), places)
    missing(rows, "settings", settings(), shown)
    missing(rows, "commands", commands(get_command(app), "aeenc"), places)
    missing(rows, "public names of the SDK", sdk_names(), places)


def missing(rows: Rows, what: str, names: Iterable[tuple[str, ...]], places: set[str]) -> None:
    """A row: how many of the names, each with its spellings, have no place. Prints them."""
    expected = list(names)
    lacking = [spellings[0] for spellings in expected if not places.intersection(spellings)]
    for name in lacking:
        print(f"      no page has {name}")
    rows.add(f"{what} without a page", len(lacking), "names", f"0 of {len(expected)}", bool(expected) and not lacking)


def ids_of(folder: Path) -> set[str]:
    """The anchors of all pages below a folder."""
    pages = folder.rglob("*.html")
    return {found for page in pages for found in re.findall(r'\bid="([^"]+)"', page.read_text(encoding="utf-8"))}


def settings_of(page: Path) -> set[str]:
    """`section/NAME` of each setting in a table of the page; a section is the anchor of its heading."""
    text = page.read_text(encoding="utf-8")
    sections = re.split(r'<h2 id="([^"]+)"', text)
    found = zip(sections[1::2], sections[2::2], strict=True)
    return {f"{at}/{name}" for at, part in found for name in re.findall(r"<td><code>(\w+)</code></td>", part)}


def rpcs() -> Iterator[tuple[str, ...]]:
    """Every method of every service of the protos."""
    for name in PROTOS:
        file = import_module(f"aeenc.v1.{name}_pb2").DESCRIPTOR
        for service in file.services_by_name.values():
            yield from ((f"{service.name}.{method.name}",) for method in service.methods)


def settings() -> Iterator[tuple[str, ...]]:
    """Every field of the settings classes, under the heading where a reader looks for it."""
    shared = set(ServiceSettings.model_fields) - {"port"}
    for service in SERVICES:
        for name in service.model_fields:
            section = "every-service" if name in shared else f"aeenc_{service.service}_"
            yield (f"{section}/{name.upper()}",)
    yield from ((f"an-oracle-in-aeenc_sampler_oracles/{name}",) for name in OracleSettings.model_fields)
    yield from ((f"a-queue-in-aeenc_sampler_queues/{name}",) for name in QueueSettings.model_fields)


def commands(command: Any, path: str) -> Iterator[tuple[str, ...]]:
    """A command and all below it, as the anchors of their headings."""
    yield (path.replace(" ", "-"),)
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{path} {name}")


def sdk_names() -> Iterator[tuple[str, ...]]:
    """Yields the public names of `aeenc` and its modules, with the methods and properties of public classes."""
    exported: dict[str, Any] = {f"aeenc.{name}": getattr(aeenc, name) for name in aeenc.__all__}
    for module in (import_module(f"aeenc.{name}") for name in MODULES):
        local = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        public = [name for name in getattr(module, "__all__", local) if not name.startswith("_")]
        exported |= {f"{module.__name__}.{name}": getattr(module, name) for name in public}
    for name, value in exported.items():
        # A class has several names (`aeenc.Client`, `aeenc.connect`); one of them is described with its methods.
        names = [name, *(other for other, same in exported.items() if same is value and inspect.isclass(value))]
        yield tuple(names)
        members = vars(value).items() if inspect.isclass(value) else ()
        for own, member in members:
            if not own.startswith("_") and (callable(member) or isinstance(member, property)):
                yield tuple(f"{one}.{own}" for one in names)

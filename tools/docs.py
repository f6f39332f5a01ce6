"""`make docs`: writes the reference from what it describes, and builds the site into site/, with every link checked.

    protos/      services, RPCs, messages and their comments ──▶ build/reference/rpc/
    aeenc.cli    the parser of the command line              ──▶ build/reference/cli.md
    aeenc        the public names; mkdocstrings fills them   ──▶ build/reference/sdk/
                       build/reference/, docs/ and README.md ──mkdocs──▶ site/

MkDocs lives in `.venv-docs`, pinned by `requirements/docs.lock` and made on first use.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
)
from typer.main import get_command

import aeenc
from aeenc.cli.main import app
from tools.pinned_venv import ROOT, PinnedVenv, SetupError, key_of
from tools.protos import buf

LOCK = ROOT / "requirements" / "docs.lock"
# The script that draws diagrams in a browser; its digest is that of dist/mermaid.min.js.
MERMAID, MERMAID_SHA256 = "11.16.0", "74d7c46dabca328c2294733910a8aa1ed0c37451776e8d5295da38a2b758fb9b"
REFERENCE = ROOT / "build" / "reference"
SITE = ROOT / "site"
_ORACLES = ("gold", "model", "llm", "composite", "remote", "agreement", "controls")
# Pages of the SDK beside those of the names in `aeenc` itself: their titles and their modules.
MODULES: dict[str, tuple[str, Sequence[str]]] = {
    "oracle": ("Your own oracle", ("aeenc.oracle",)),
    "errors": ("Errors", ("aeenc.errors",)),
    "oracles": ("Ready-made oracles", [f"aeenc.oracles.{name}" for name in _ORACLES]),
    "loop": ("The loop", ("aeenc.loop",)),
    "files": ("Trees, exports and metrics", ("aeenc.trees", "aeenc.exports", "aeenc.evaluation")),
}
# Where source_code_info keeps the comment on a part of a file: the numbers of descriptor.proto's fields.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_PARTS = 2  # a message's fields, a service's methods and an enum's values alike


def main() -> int:
    """Build the site; returns the exit status."""
    try:
        write_reference()
        return build()
    except SetupError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 1


def write_reference() -> None:
    """Write the pages of build/reference anew."""
    shutil.rmtree(REFERENCE, ignore_errors=True)
    pages = {"cli.md": cli_page(), **rpc_pages(), **sdk_pages()}
    for name, text in pages.items():
        path = REFERENCE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def build() -> int:
    """Run MkDocs in its own environment; a broken link, anchor or name fails it."""
    venv = PinnedVenv(ROOT / ".venv-docs")
    key = key_of((LOCK,))
    if not venv.is_current(key):
        venv.create()
        venv.install_lock(LOCK)
        venv.mark_current(key)
    fetch_mermaid(venv.path / "mermaid.min.js")
    command = [str(venv.python), "-m", "mkdocs", "build", "--strict", "--site-dir", str(SITE)]
    done = subprocess.run(command, cwd=ROOT, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    if not done.returncode:
        print(f"docs: open {SITE / 'index.html'}")
    return done.returncode


def fetch_mermaid(target: Path) -> None:
    """Get the script that draws the diagrams, from npm; without npm, the site shows them as text."""
    if target.is_file() or not shutil.which("npm"):
        return
    with tempfile.TemporaryDirectory() as folder:
        fetch = ["npm", "pack", "--silent", f"mermaid@{MERMAID}"]
        if subprocess.run(fetch, cwd=folder, stdout=subprocess.DEVNULL, check=False).returncode:
            print("docs: npm cannot fetch mermaid (above); diagrams are shown as text", file=sys.stderr)
            return
        with tarfile.open(Path(folder, f"mermaid-{MERMAID}.tgz")) as archive:
            member = archive.extractfile("package/dist/mermaid.min.js")
            script = member.read() if member else b""
    if hashlib.sha256(script).hexdigest() != MERMAID_SHA256:
        raise SetupError(f"mermaid {MERMAID} from npm is not the one that tools/docs.py names; compare MERMAID_SHA256")
    target.write_bytes(script)


def sdk_pages() -> dict[str, str]:
    """The pages that mkdocstrings fills, and a list of all public names that leads to them."""
    beside = {module for _, modules in MODULES.values() for module in modules}
    kinds: dict[str, list[str]] = {"client": [], "awaiting": [], "values": []}
    for name in aeenc.__all__:
        if name in {"connect", "Client"}:
            kinds["client"].append(f"aeenc.{name}")
        elif name in {"connect_async", "Channel"} or name.endswith("Client"):
            kinds["awaiting"].append(f"aeenc.{name}")
        elif not {f"aeenc.{name}", getattr(getattr(aeenc, name), "__module__", "")} & beside:
            kinds["values"].append(f"aeenc.{name}")
    blocking = [name for name in vars(import_module("aeenc.blocking")) if name.startswith("Blocking")]
    kinds["client"] += [f"aeenc.blocking.{name}" for name in blocking]
    titles = {"client": "The client", "awaiting": "The client for asyncio", "values": "Values and encoders"}
    pages = {f"sdk/{kind}.md": _sdk_page(titles[kind], names) for kind, names in kinds.items()}
    pages |= {f"sdk/{name}.md": _sdk_page(title, modules) for name, (title, modules) in MODULES.items()}
    rows = [f"- [`{name}`][aeenc.{name}]: {_sentence(getattr(aeenc, name))}" for name in aeenc.__all__]
    others = [
        f"- [{title}]({name}.md): {', '.join(f'`{module}`' for module in modules)}"
        for name, (title, modules) in MODULES.items()
    ]
    lines = ["# Python SDK", "", "Each name of `aeenc`:", "", *rows, "", "Modules beside them:", "", *others, ""]
    return {**pages, "sdk/index.md": "\n".join(lines)}


def _sdk_page(title: str, names: Sequence[str]) -> str:
    lines = [f"# {title}", ""]
    for name in names:
        lines += [f"::: {name}", "    options:", "      show_root_heading: true", "      show_root_toc_entry: true", ""]
    return "\n".join(lines)


def _sentence(value: Any) -> str:
    """The first sentence of a docstring."""
    text = " ".join((value.__doc__ or "").split("\n\n")[0].split())
    return text.split(". ")[0].rstrip(".") + "."


def cli_page() -> str:
    """Every command of `aeenc`, with what its parser knows."""
    lines = ["# Command line", "", "`aeenc --help` and `aeenc COMMAND --help` print the same."]
    root = get_command(app)
    for path, command, context in _commands(root, ("aeenc",), None):
        # The anchor is the command with hyphens, as a heading's text would give it.
        lines += ["", f"{'#' * min(len(path) + 1, 3)} {' '.join(path)}", "", f"    {command.get_usage(context)[7:]}"]
        lines += ["", *(line.strip() for line in (command.help or "").splitlines())]
        lines += _parameters(command, context)
        lines += ["", *(line.strip() for line in (command.epilog or "").splitlines())]
    return "\n".join([*lines, ""])


def _commands(command: Any, path: tuple[str, ...], parent: Any) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """A command and all below it, in the order of `--help`."""
    context = command.context_class(command, info_name=path[-1], parent=parent, terminal_width=10_000)
    yield path, command, context
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from _commands(command.get_command(context, name), (*path, name), context)


def _parameters(command: Any, context: Any) -> list[str]:
    rows = []
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record and "--help" not in parameter.opts:
            names = record[0].strip().replace("|", "\\|")
            rows.append(f"| `{names}` | {_cell(record[1])} |")
    return ["", "| | |", "|---|---|", *rows] if rows else []


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("[", "\\[").split())


def proto_files() -> list[FileDescriptorProto]:
    """The files of protos/, with their comments."""
    image = subprocess.run([buf(), "build", "-o", "-"], cwd=ROOT, capture_output=True, check=False)
    if image.returncode:
        raise SetupError(f"buf cannot read protos/: {image.stderr.decode().strip()}")
    return [one for one in FileDescriptorSet.FromString(image.stdout).file if one.package == "aeenc.v1"]


def sentences(files: Sequence[FileDescriptorProto]) -> Iterator[tuple[str, str, MethodDescriptorProto, str]]:
    """Each RPC as its file's name, its service's name, itself, and the first sentence of its comment."""
    for one in files:
        comments = _comments(one)
        for s, service in enumerate(one.service):
            for m, method in enumerate(service.method):
                told = _flat(comments[_SERVICES, s, _PARTS, m]).split(". ")[0].split("<br>")[0].rstrip(".:")
                yield Path(one.name).name, service.name, method, told


def rpc_pages() -> dict[str, str]:
    """A page for each file of protos/: its services, messages and enums with their comments."""
    files = proto_files()
    pages = {f"rpc/{Path(one.name).name}.md": _RpcPage(one, files).text() for one in files}
    rows = [
        f"| [`{service}.{method.name}`]({file}.md#{service}.{method.name}) | {told} |"
        for file, service, method, told in sentences(files)
    ]
    head = ["# RPCs", "", "Package `aeenc.v1`. Any language that has gRPC can call them.", "", "| RPC | |", "|---|---|"]
    return {**pages, "rpc/index.md": "\n".join([*head, *rows, ""])}


class _RpcPage:
    """One file of protos/ as a page; types link to where they are described."""

    def __init__(self, file: FileDescriptorProto, files: Sequence[FileDescriptorProto]) -> None:
        self._file = file
        self._comments = _comments(file)
        self._places = {
            f".aeenc.v1.{name}": f"{Path(other.name).name}.md#{name}"
            for other in files
            for name in [*(one.name for one in other.message_type), *(one.name for one in other.enum_type)]
        }

    def text(self) -> str:
        """The page."""
        lines = [f"# {Path(self._file.name).name}"]
        for s, service in enumerate(self._file.service):
            lines += ["", _heading(2, service.name), "", self._comments[_SERVICES, s]]
            for m, method in enumerate(service.method):
                asks = ("stream " if method.client_streaming else "") + self._link(method.input_type)
                gives = ("stream " if method.server_streaming else "") + self._link(method.output_type)
                lines += ["", _heading(3, f"{service.name}.{method.name}"), "", f"{asks} → {gives}", ""]
                lines += [self._comments[_SERVICES, s, _PARTS, m]]
        for number, message in enumerate(self._file.message_type):
            lines += ["", _heading(2, message.name), "", self._comments[_MESSAGES, number]]
            rows = [
                f"| `{field.name}` | {self._type(field, message)} | {_flat(self._comments[_MESSAGES, number, 2, f])} |"
                for f, field in enumerate(message.field)
            ]
            lines += ["", "| field | type | |", "|---|---|---|", *rows] if rows else []
        for number, enum in enumerate(self._file.enum_type):
            lines += ["", _heading(2, enum.name), "", self._comments[_ENUMS, number], "", "| value | |", "|---|---|"]
            lines += [
                f"| `{value.name}` = {value.number} | {_flat(self._comments[_ENUMS, number, 2, v])} |"
                for v, value in enumerate(enum.value)
            ]
        return "\n".join([*lines, ""])

    def _link(self, name: str) -> str:
        return f"[{name.rpartition('.')[2]}]({self._places[name]})" if name in self._places else name.lstrip(".")

    def _type(self, field: FieldDescriptorProto, message: Any) -> str:
        for entry in message.nested_type:
            if field.type_name.endswith(f".{entry.name}") and entry.options.map_entry:
                return f"map of {self._type(entry.field[0], entry)} to {self._type(entry.field[1], entry)}"
        kind = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
        shown = self._link(field.type_name) if field.type_name else kind
        if field.label == FieldDescriptorProto.LABEL_REPEATED:
            return f"repeated {shown}"
        if field.proto3_optional:
            return f"optional {shown}"
        if field.HasField("oneof_index"):
            return f"{shown}, one of `{message.oneof_decl[field.oneof_index].name}`"
        return shown


def _heading(level: int, name: str) -> str:
    return f"{'#' * level} {name} {{#{name}}}"


def _comments(file: FileDescriptorProto) -> dict[tuple[int, ...], str]:
    """The comment on each part of a file, by its path; `buf lint` asks for one on every part."""
    return {
        tuple(place.path): "\n".join(line.removeprefix(" ") for line in place.leading_comments.splitlines())
        for place in file.source_code_info.location
    }


def _flat(comment: str) -> str:
    """A comment as the cell of a table."""
    lines = comment.replace("|", "\\|").replace("\n\n", "<br>").replace("\n- ", "<br>• ")
    return " ".join(lines.split())


if __name__ == "__main__":
    sys.exit(main())

"""The part `snippets` of the SDK's benchmark: what type checkers find in the Python of the docs and the examples.

    README, docs, clients' READMEs ─ fenced blocks ─┐
    examples/*.py ──────────────────────────────────┼─▶ a folder ─▶ mypy --strict, basedpyright (strict)
    examples/notebooks/*.ipynb ─ code cells ────────┘

The checkers see what a user has: the SDK and the integrations installed from their folders, not editable, in an
environment of its own (installed on first use; needs a package index). `strict` is pyright's rule set: it finds errors,
and types that our packages leave unknown. basedpyright's own set, `recommended`, asks for a style beyond that.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness.rows import ROOT, Rows
from tools.pinned_venv import PinnedVenv, key_of

PAGES = ("README.md", "docs/**/*.md", "examples/*.md", "clients/*/README.md")
CLIENTS = ROOT / "clients"
CHECKERS = ("basedpyright==1.40.2", "mypy==2.4.1")
# What examples import beside our packages, and stubs as users of mypy install them.
ALSO = ("grpcio-reflection", "httpx", "openai", "types-grpcio", "types-grpcio-reflection", "types-protobuf")
_BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def snippets(rows: Rows) -> None:
    """Errors of both checkers, and in how many snippets."""
    venv = _environment()
    with tempfile.TemporaryDirectory() as folder:
        found = dict(extracted())
        for name, text in found.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        cache = str(Path(folder, ".cache"))
        mypy = _output(venv, "mypy", "--strict", "--python-executable", str(venv.python), "--cache-dir", cache, folder)
        errors = [line for line in mypy.splitlines() if ": error:" in line]
        is_clean = mypy.startswith("Success") and not errors
        rows.add("snippets: errors of mypy --strict", len(errors), "errors", "0", is_clean, errors or len(found))

        settings = Path(folder, "pyrightconfig.json")
        settings.write_text(json.dumps({"typeCheckingMode": "strict"}), encoding="utf-8")
        pyright = json.loads(
            _output(venv, "basedpyright", "--outputjson", "--project", folder, "--pythonpath", str(venv.python))
        )
        told = [
            f"{Path(one['file']).name}:{one['range']['start']['line'] + 1}: {one['message']}"
            for one in pyright["generalDiagnostics"]
            if one["severity"] == "error"
        ]
        is_clean = not told and pyright["summary"]["filesAnalyzed"] == len(found)
        rows.add("snippets: errors of basedpyright, strict", len(told), "errors", "0", is_clean, told or len(found))


def extracted() -> Iterator[tuple[str, str]]:
    """Yields the snippets as modules: their file names and texts."""
    pages = {page for pattern in PAGES for page in ROOT.glob(pattern)}
    for page in sorted(pages):
        for number, (_, text) in enumerate(_BLOCK.findall(page.read_text(encoding="utf-8"))):
            yield _module(page, number), textwrap.dedent(text)
    for path in sorted(ROOT.glob("examples/*.py")):
        yield _module(path), path.read_text(encoding="utf-8")
    for path in sorted(ROOT.glob("examples/notebooks/*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        yield _module(path), _program(["".join(one["source"]) for one in cells if one["cell_type"] == "code"])


def _program(cells: list[str]) -> str:
    """A notebook's cells as a coroutine, for they may await; a value that a cell shows at its end is printed."""
    body: list[ast.stmt] = []
    for cell in cells:
        body += compile(cell, "cell", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT).body
        if isinstance(shown := body[-1], ast.Expr) and not isinstance(shown.value, ast.Call | ast.Await):
            body[-1] = ast.parse(f"print({ast.unparse(shown)})").body[0]
    imports = [one for one in body if isinstance(one, ast.Import | ast.ImportFrom)]
    rest = [one for one in body if one not in imports]
    function = textwrap.indent("\n".join(map(ast.unparse, rest)), "    ")
    return "\n".join([*map(ast.unparse, imports), "async def notebook() -> None:", function, ""])


def _module(path: Path, *numbers: int) -> str:
    """The name of a snippet's file, from its page's path: a name that no package has."""
    parts = ["snippet", *path.relative_to(ROOT).with_suffix("").parts, *map(str, numbers)]
    return re.sub(r"\W", "_", "_".join(parts)).lower() + ".py"


def _environment() -> PinnedVenv:
    """An environment with the checkers and copies of all our clients, as they are now."""
    folders = sorted(path.parent for path in CLIENTS.glob("*/pyproject.toml"))
    venv = PinnedVenv(ROOT / ".aeenc" / "bench" / "snippets")
    sources = [path for folder in folders for path in sorted(folder.rglob("*.py*")) if path.is_file()]
    key = key_of([Path(__file__), *(path for path in sources if path.suffix != ".pyc")])
    if not venv.is_current(key):
        with tempfile.TemporaryDirectory() as copies:
            ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", ".*_cache")
            placed = [str(shutil.copytree(one, Path(copies, one.name), ignore=ignored)) for one in folders]
            venv.create()
            venv.install(*CHECKERS, *ALSO, *placed)
        venv.mark_current(key)
    return venv


def _output(venv: PinnedVenv, command: str, *arguments: str) -> str:
    """Runs a checker, whose exit status only says whether it found anything."""
    done = subprocess.run(
        [str(venv.python.with_name(command)), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode > 1:
        raise SystemExit(f"{command} failed: {done.stderr or done.stdout}")
    return done.stdout

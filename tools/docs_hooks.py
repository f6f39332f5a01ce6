"""MkDocs calls these while it builds the site: pages written for a repository become pages of a site.

    docs/*.md, README.md, build/reference/**/*.md    the pages
      └─ files that they link to, outside docs/      become pages too, so that no link leaves the site
      └─ lists                                       are indented by four, as Python-Markdown wants them

MkDocs checks links and anchors, those to other files of the repository too; `mkdocs build --strict` fails on one that
leads nowhere.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.superfences import fence_code_format

ROOT = Path(__file__).resolve().parents[1]
GENERATED = ROOT / "build"  # holds reference/, which tools/docs.py writes
LANGUAGES = {".js": "js", ".json": "json", ".proto": "proto", ".py": "python", ".sh": "bash", ".yml": "yaml"}
_LINK = re.compile(r"(?<=\]\()[^)\s]+")
_FENCE = re.compile(r"^( *)(```+).*?^ *\2 *$", re.DOTALL | re.MULTILINE)
_ITEM = re.compile(r" {0,3}([-*+]|\d{1,9}[.)]) +(?=\S)")
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
MERMAID = ROOT / ".venv-docs" / "mermaid.min.js"  # where tools/docs.py puts it, if it could be had
# site page -> the file of the repository that it shows; links on the page are relative to that file
_sources: dict[str, str] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Writes folders of the navigation out (`results/`: its index, then its pages), and has diagrams drawn."""
    config["nav"] = [_expanded(entry) for entry in config["nav"] or []]
    if MERMAID.is_file():
        fence = {"name": "mermaid", "class": "mermaid", "format": fence_code_format}
        config["mdx_configs"]["pymdownx.superfences"] = {"custom_fences": [fence]}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the home page, the reference, and whatever else of the repository a page links to."""
    _sources.clear()
    for page in sorted((GENERATED / "reference").rglob("*.md")):
        uri = page.relative_to(GENERATED).as_posix()
        files.append(File.generated(config, uri, content=page.read_text(encoding="utf-8")))
    for file in files.documentation_pages():
        if file.generated_by is None:
            _sources[file.src_uri] = f"docs/{file.src_uri}"
    if MERMAID.is_file():
        files.append(File.generated(config, MERMAID.name, abs_src_path=str(MERMAID)))
    waiting = ["README.md", *_named(config["nav"]), *_sources.values()]
    for path in waiting:  # grows while it is walked
        text, uri = _text(path), _page(path)
        if uri not in _sources and not (path.startswith("docs/") and not (ROOT / path).is_dir()):
            _sources[uri] = f"{path}/index.md" if (ROOT / path).is_dir() else path
            files.append(File.generated(config, uri, content=text))
        waiting += (found for found in _linked(_sources.get(uri, path), text) if _page(found) not in _sources)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Points links to files of the repository at their pages, and indents lists."""
    source = _sources.get(page.file.src_uri)
    if source is None:
        return _four_spaces(markdown)
    if Path(source).suffix not in {".md", ".ipynb"}:
        return markdown

    def moved(link: re.Match[str]) -> str:
        path, anchor = _target(source, link[0])
        if not path or not (ROOT / path).exists():
            return link[0]  # MkDocs says that it leads nowhere
        return posixpath.relpath(_page(path), posixpath.dirname(page.file.src_uri) or ".") + anchor

    return _four_spaces(_outside_code(markdown, lambda text: _LINK.sub(moved, text)))


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Loads the script for diagrams on the pages that have some; otherwise the theme would load it from elsewhere."""
    if 'class="mermaid"' not in output:
        return output
    script = posixpath.relpath(MERMAID.name, posixpath.dirname(page.file.dest_uri) or ".")
    return output.replace("</body>", f'<script src="{script}"></script></body>')


def _expanded(entry: Any) -> Any:
    """A navigation entry with the pages of its folder instead of the folder."""
    if isinstance(entry, dict):
        return {title: _expanded(value) for title, value in entry.items()}
    if isinstance(entry, list):
        return [_expanded(value) for value in entry]
    if not entry.endswith("/"):
        return entry
    places = (ROOT / "docs" / entry, GENERATED / entry)
    pages = sorted(path.name for place in places if place.is_dir() for path in place.glob("*.md"))
    return [f"{entry}index.md", *(entry + name for name in pages if name != "index.md")]


def _named(entry: Any) -> Iterator[str]:
    """The files and folders of the repository that the navigation names and docs/ does not hold as pages."""
    if isinstance(entry, (dict, list)):
        for value in entry.values() if isinstance(entry, dict) else entry:
            yield from _named(value)
    elif entry.startswith("repository/"):
        yield entry.removeprefix("repository/")
    elif entry.endswith("/index.md") and not (ROOT / "docs" / entry).is_file():
        folder = entry.removesuffix("/index.md")
        if (ROOT / "docs" / folder).is_dir():
            yield f"docs/{folder}"


def _page(path: str) -> str:
    """The site's page for a file or folder of the repository."""
    if path == "README.md":
        return "index.md"
    if (ROOT / path).is_dir():
        name = "README.md" if (ROOT / path / "README.md").is_file() else "index.md"
        path = f"{path}/{name}"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path}" if path.endswith(".md") else f"repository/{path}.md"


def _text(path: str) -> str:
    """A file or folder of the repository as Markdown."""
    whole = ROOT / path
    if whole.is_dir():
        readme = whole / "README.md"
        return readme.read_text(encoding="utf-8") if readme.is_file() else _list_of(whole)
    text = whole.read_text(encoding="utf-8")
    if whole.suffix == ".ipynb":
        return _notebook(json.loads(text))
    if whole.suffix == ".md":
        return text
    return f"# {whole.name}\n\n`{path}`\n\n````{LANGUAGES.get(whole.suffix, 'text')}\n{text}````\n"


def _list_of(folder: Path) -> str:
    """A folder's pages by title, or the names of its files where it has no pages."""
    pages = sorted(folder.glob("*.md"))
    titles = {page.name: _TITLE.search(page.read_text(encoding="utf-8")) for page in pages}
    lines = [f"- [{title[1] if title else name}]({name})" for name, title in titles.items()]
    lines = lines or [f"- `{path.name}`" for path in sorted(folder.iterdir()) if not path.name.startswith((".", "_"))]
    return "\n".join([f"# {folder.name.capitalize()}", "", *lines, ""])


def _notebook(notebook: dict[str, Any]) -> str:
    """A notebook's cells: text as it is, code and what it has printed as blocks."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            parts.append(f"```text\n{''.join(text).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _linked(source: str, text: str) -> Iterator[str]:
    """The files and folders of the repository that a text links to."""
    found: list[str] = []

    def note(link: re.Match[str]) -> str:
        path, _ = _target(source, link[0])
        if path and (ROOT / path).exists() and (not path.startswith("docs/") or (ROOT / path).is_dir()):
            found.append(path)
        return link[0]

    if Path(source).suffix in {".md", ".ipynb"}:
        _outside_code(text, lambda part: _LINK.sub(note, part))
    yield from found


def _target(source: str, link: str) -> tuple[str, str]:
    """The path in the repository that a link in `source` means, and its anchor; no path for links elsewhere."""
    path, sharp, anchor = link.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return "", ""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), path)), sharp + anchor


def _outside_code(text: str, change: Any) -> str:
    """The text with all but its fenced blocks changed."""
    parts, at = [], 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, change(text[at:])])


def _four_spaces(text: str) -> str:
    """Indents what belongs to an item of a list by four for each level; CommonMark lets it start below the item's text.

    Also leaves a line before a list that follows a paragraph at once.
    """
    lines: list[str] = []
    levels: list[int] = []  # of the items around this line: the column of their text
    fence = ""
    for line in text.split("\n"):
        column = len(line) - len(line.lstrip())
        while line.strip() and not fence and levels and column < levels[-1]:
            levels.pop()
        around = levels[-1] if levels else 0
        rest = line[around:] if column >= around else line.lstrip()
        if rest.lstrip().startswith("```"):
            ticks = rest.lstrip()
            fence = "" if fence and ticks.startswith(fence) else fence or "`" * (len(ticks) - len(ticks.lstrip("`")))
        item = None if fence else _ITEM.match(rest)
        if item and not levels and lines and lines[-1].strip() and not _ITEM.match(lines[-1].lstrip()):
            lines.append("")
        if item:
            rest = f"{item[1]} {rest[item.end() :]}"
        lines.append("    " * len(levels) + rest if line.strip() else "")
        if item:
            levels.append(around + item.end())
    return "\n".join(lines)

"""Files of facts, for a corpus that comes from no trees. The suffix says the form; a mistake is named by file and line.

    *.txt and others   one fact a line
    *.jsonl            one object with `id` and `text` a line
    *.json             a list of such objects, or one object from id to text

A fact without an id gets one from its text, so that the same fact has the same id in every file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from aeenc.errors import InvalidArgument
from aeenc.v1 import types_pb2


def read_facts(path: Path) -> list[types_pb2.Premise]:
    """The facts of a file in its order. Raises InvalidArgument naming file and line."""
    try:
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise InvalidArgument(f"{path}:{line}: not UTF-8; save the file as UTF-8") from None
    facts: dict[str, str] = {}
    for place, fact_id, text in _facts(path, content):
        if facts.setdefault(fact_id, text) != text:
            raise InvalidArgument(f"{place}: the id {fact_id!r} has stood before with another text")
    if not facts:
        raise InvalidArgument(f"{path}:1: holds no facts; write one a line")
    return [types_pb2.Premise(id=fact_id, text=text) for fact_id, text in facts.items()]


def _facts(path: Path, content: str) -> Iterator[tuple[str, str, str]]:
    """(place, id, text) of each fact."""
    if path.suffix == ".json":
        listed = _parse(f"{path}", content)
        if isinstance(listed, dict):
            listed = [{"id": fact_id, "text": text} for fact_id, text in listed.items()]
        if not isinstance(listed, list):
            raise InvalidArgument(f"{path}:1: must be a list of objects with `id` and `text`, or an object id to text")
        for number, item in enumerate(listed, start=1):
            place = f"{path}: fact {number}"
            yield place, *_fact(place, item)
        return
    for number, line in enumerate(content.split("\n"), start=1):
        place = f"{path}:{number}"
        if not line.strip():
            continue
        if path.suffix in {".jsonl", ".ndjson"}:
            yield place, *_fact(place, _parse(place, line))
        else:
            yield place, *_fact(place, line.strip())


def _parse(place: str, content: str) -> object:
    try:
        parsed: object = json.loads(content)
    except json.JSONDecodeError as error:
        line = "" if place.rpartition(":")[2].isdigit() else f":{error.lineno}"
        raise InvalidArgument(f"{place}{line}: no JSON ({error.msg})") from None
    return parsed


def _fact(place: str, item: object) -> tuple[str, str]:
    """(id, text) of a text, or of an object with `text` and perhaps `id`."""
    fact = item if isinstance(item, dict) else {"text": item}
    text = fact.get("text")
    if not isinstance(text, str) or not text.strip():
        raise InvalidArgument(f"{place}: `text` is missing, empty or no string")
    fact_id = fact.get("id", f"text-{hashlib.sha256(text.encode()).hexdigest()[:16]}")
    if not isinstance(fact_id, str) or not fact_id:
        raise InvalidArgument(f"{place}: `id` is empty or no string")
    return fact_id, text

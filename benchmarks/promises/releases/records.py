"""Every stored record of a stopped fleet, in Redis and on disk: its kind, and what another release would write."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from services.index.building.journal import _crc32_of  # type: ignore[attr-defined]
from services.store.redis import key_prefix

FIELD, VALUE = "next_release", "has written this"
FORMAT, MAJOR = 1, 99
_ID = re.compile(r"\b[a-z]?[0-9a-f]{12,}\b|(?<=-)[0-9a-f]{12,}\b|\b[0-9a-f]{8}\b|(?<=:)\d+$")
_SKIPPED = {"tokenizer.json", "config.json", "probes.json", "metrics.json"}  # content of a checkpoint, not a record

Edit = Callable[[dict[str, Any]], dict[str, Any]]


def next_minor(record: dict[str, Any]) -> dict[str, Any]:
    """The record with a field that this release does not know."""
    return {**record, FIELD: VALUE}


def next_major(record: dict[str, Any]) -> dict[str, Any]:
    """The record as a release wrote it that this one must not read."""
    return {**record, "format_version": type(record["format_version"])(MAJOR)}


@dataclass(frozen=True)
class Place:
    """Where a record stands: a Redis key or a path, and its kind."""

    kind: str
    key: str = ""
    path: Path = Path()


async def places(redis: Redis, namespace: str, home: Path) -> list[Place]:
    """All records with a `format_version`."""
    prefix, found = key_prefix(namespace), []
    async for key in redis.scan_iter(f"{prefix}*"):
        if await _edit_key(redis, key, None):
            found.append(Place(f"redis {_ID.sub('*', key.removeprefix(prefix))}", key=key))  # noqa: PERF401 -- plainer
    return found + _files(home)


def _files(home: Path) -> list[Place]:
    return [
        Place(f"file {_ID.sub('*', str(path.relative_to(home)))}", path=path)
        for path in sorted(home.rglob("*"))
        if path.is_file() and path.name not in _SKIPPED and edit_file(path, None)
    ]


async def edit(redis: Redis, place: Place, change: Edit) -> None:
    """Rewrites a record as another release would have."""
    if place.key:
        await _edit_key(redis, place.key, change)
    else:
        edit_file(place.path, change)


def _changed(text: str, change: Edit | None) -> str | None:
    """JSON text after a change of the record in it; None for what is no record."""
    try:
        record = json.loads(text)
    except ValueError:
        return None
    if isinstance(record, list) and record[:1] == [FORMAT] and len(record) > 1:  # it has places, and gains none
        return json.dumps([MAJOR, *record[1:]]) if change is next_major else text
    if not isinstance(record, dict) or "format_version" not in record:
        return None
    return json.dumps(change(record)) if change else text


async def _edit_key(redis: Any, key: str, change: Edit | None) -> bool:
    kind = await redis.type(key)
    if kind == "string":
        text = _changed(await redis.get(key), change)
        if text is not None and change:
            await redis.set(key, text, keepttl=True)
        return text is not None
    if kind == "hash":
        return await _edit_hash(redis, key, change)
    if kind == "stream":
        entries = await redis.xrange(key)
        if not entries or "format_version" not in entries[0][1]:
            return False
        if change:
            await redis.delete(key)
            for entry_id, values in entries:
                await redis.xadd(key, change(values), id=entry_id)
        return True
    return False


async def _edit_hash(redis: Any, key: str, change: Edit | None) -> bool:
    row = await redis.hgetall(key)
    found = "format_version" in row
    if found and change:
        await redis.hset(key, mapping=change(row))
    for name, value in row.items():
        text = _changed(value, change)
        if text is not None and change and not (found and change is next_major):
            await redis.hset(key, name, text)
        found = found or text is not None
    return found


def edit_file(path: Path, change: Edit | None) -> bool:
    """Rewrites a file's record, if it is one. Whether it is."""
    if path.suffix == ".safetensors":
        return _edit_safetensors(path, change)
    if path.suffix not in {".json", ".result"} and path.name != "VERSION":
        return False
    text = _changed(path.read_text(errors="replace"), change)
    if text is None or change is None:
        return text is not None
    record = json.loads(text)
    if "crc32" in record:  # of a build's journal
        record["crc32"] = _crc32_of({"request": record["request"], "kept": record["kept"]})
    path.write_text(json.dumps(record))
    return True


def _edit_safetensors(path: Path, change: Edit | None) -> bool:
    data = path.read_bytes()
    [length] = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.get("__metadata__", {})
    if "format_version" not in metadata:
        return False
    if change:
        header["__metadata__"] = change(metadata)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    return True


def kinds(found: list[Place]) -> Iterator[str]:
    """The kinds of records, each once."""
    yield from sorted({place.kind for place in found})

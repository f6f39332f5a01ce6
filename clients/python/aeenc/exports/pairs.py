"""Pairs as lines of JSON, to keep, to read elsewhere, and to import again. Errors name the line.

    {"format_version": 1, "query": …, "premise_id": …, "premise": …, "sign": "positive" | "negative" | "skipped",
     "run_id": …, "node_id": …, "rank": …, "score": …, "model_version": …, "generation": …, "oracle": …,
     "annotator": …, "judged_at": "2026-01-31T12:00:00Z", "grade": …, "note": …, "amended": true,
     "source": "retrieved" | "searched", "reason": …, "seq": …}

Only query, premise and sign are required. `source` follows from the rank and is not read. A file without
`format_version` counts as version 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from aeenc import values
from aeenc.errors import InvalidArgument
from aeenc.files.lines import json_lines, refuse_half
from aeenc.files.whole import write_json_lines
from aeenc.values.writing import shown, timestamp

FORMAT_VERSION = 1
_SIGNS = ("positive", "negative", "skipped")
_TEXTS = ("run_id", "node_id", "model_version", "generation", "oracle", "annotator", "note")
_NUMBERS = {"rank": int, "score": float, "grade": float}
FLOAT32_END = 2**128 - 2**103  # of the messages' numbers: rounds to infinity


def record_of(pair: values.Pair) -> dict[str, Any]:
    """Converts a pair to a JSON object without its empty fields."""
    record: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "query": pair.query,
        "premise_id": pair.premise_id,
        "premise": pair.premise,
        "sign": sign if (sign := pair.sign.name.lower()) in _SIGNS else "skipped",
    }
    origin = pair.provenance
    record |= {name: value for name in _TEXTS if (value := getattr(origin, name))}
    record |= {name: value for name in _NUMBERS if (value := getattr(origin, name)) and math.isfinite(value)}
    if origin.judged_at is not None:
        record["judged_at"] = timestamp(origin.judged_at, "judged_at").ToJsonString()
    if origin.amended:
        record["amended"] = True
    if origin.rank or origin.node_id:
        record["source"] = "retrieved" if origin.rank else "searched"
    if pair.reason:
        record["reason"] = pair.reason
    if pair.seq:
        record["seq"] = pair.seq
    return record


def pair_of(record: object) -> values.Pair:
    """Reads a pair from a JSON object; the sampler sets `seq`. Raises InvalidArgument naming the field."""
    if not isinstance(record, dict):
        raise InvalidArgument("the line must be a JSON object; write one a line")
    if record.get("format_version", FORMAT_VERSION) != FORMAT_VERSION:
        raise InvalidArgument(
            f"format_version is {shown(record['format_version'])}; this release reads {FORMAT_VERSION}"
        )
    for name in ("query", "premise"):
        if not _text(record, name).strip():
            raise InvalidArgument(f"`{name}` must be a string that is not empty")
    if record.get("sign") not in _SIGNS:
        raise InvalidArgument(f"`sign` is {shown(record.get('sign'))}; write {', '.join(_SIGNS)}")
    fields: dict[str, Any] = {name: _text(record, name) for name in _TEXTS}
    fields |= {name: _number(record, name, kind) for name, kind in _NUMBERS.items()}
    at = _text(record, "judged_at")
    origin = values.Provenance(
        **fields,
        judged_at=_time(at) if at else None,
        amended=_flag(record, "amended"),
    )
    return values.Pair(
        query=record["query"],
        premise_id=_text(record, "premise_id"),
        premise=record["premise"],
        sign=values.PairSign[record["sign"].upper()],
        provenance=origin,
        reason=_text(record, "reason"),
    )


def write_pairs(path: Path | str, pairs: Iterable[values.Pair]) -> int:
    """Writes a file of pairs; returns how many. A reader sees the whole file or none of it."""
    return write_json_lines(path, map(record_of, pairs))


def read_pairs(path: Path | str) -> Iterator[values.Pair]:
    """Reads a file of pairs line by line. Raises InvalidArgument whose message starts with `file:line:`."""
    for place, record in json_lines(path):
        try:
            yield pair_of(record)
        except InvalidArgument as error:
            raise InvalidArgument(f"{place}: {error.message}") from None


def _text(record: dict[str, Any], name: str) -> str:
    value = record.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidArgument(f"`{name}` is {shown(value)}; write a string")
    refuse_half(f"`{name}`", value)
    return value


def _flag(record: dict[str, Any], name: str) -> bool:
    value = record.get(name) or False
    if value is not True and value is not False:
        raise InvalidArgument(f"`{name}` is {shown(value)}; write true, or leave it out")
    return value


def _number(record: dict[str, Any], name: str, kind: type[int] | type[float]) -> float:
    value = record.get(name) or 0
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < FLOAT32_END
    if not number or (kind is int and not 0 <= value == int(value) < 2**32):
        raise InvalidArgument(f"`{name}` is {shown(value)}; write a {'whole' if kind is int else 'finite'} number")
    return kind(value)


def _time(text: str) -> datetime:
    at = Timestamp()
    try:
        at.FromJsonString(text)
    except ValueError:
        raise InvalidArgument(f"`judged_at` is {shown(text)}; write it as 2026-01-31T12:00:00Z") from None
    return at.ToDatetime(tzinfo=UTC)

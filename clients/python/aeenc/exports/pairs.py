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
from datetime import datetime
from pathlib import Path
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from aeenc import values
from aeenc.errors import InvalidArgument
from aeenc.files.lines import json_lines
from aeenc.files.whole import write_json_lines
from aeenc.v1 import types_pb2
from aeenc.values.writing import message, shown, timestamp

FORMAT_VERSION = 1
_SIGNS = {values.PairSign.POSITIVE: "positive", values.PairSign.NEGATIVE: "negative"}
_PLAIN = ("query", "premise_id", "premise", "sign", "reason")
_PROVENANCE = tuple(types_pb2.Provenance.DESCRIPTOR.fields_by_name)


def record_of(pair: values.Pair) -> dict[str, Any]:
    """Converts a pair to a JSON object without its empty fields."""
    origin = pair.provenance
    record: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "query": pair.query,
        "premise_id": pair.premise_id,
        "premise": pair.premise,
        "sign": _SIGNS.get(pair.sign, "skipped"),
    }
    for name in _PROVENANCE:
        value = getattr(origin, name)
        if isinstance(value, datetime):
            record[name] = timestamp(value, name).ToJsonString()
        elif value and not (isinstance(value, float) and not math.isfinite(value)):
            record[name] = value
    if origin.rank or origin.node_id:
        record["source"] = "retrieved" if origin.rank else "searched"
    return record | {name: value for name in ("reason", "seq") if (value := getattr(pair, name))}


def pair_of(record: object) -> values.Pair:
    """Reads a pair from a JSON object; the sampler sets `seq`. Raises InvalidArgument naming the field."""
    if not isinstance(record, dict):
        raise InvalidArgument("the line must be a JSON object; write one a line")
    if record.get("format_version", FORMAT_VERSION) != FORMAT_VERSION:
        raise InvalidArgument(
            f"format_version is {shown(record['format_version'])}; this release reads {FORMAT_VERSION}"
        )
    for name in ("query", "premise", "sign"):
        if not isinstance(text := record.get(name), str) or not text.strip():
            raise InvalidArgument(f"{name}: is {shown(text)}; write a string that is not empty")
    given = {name: value for name, value in record.items() if value not in (None, "")}
    origin = {name: given[name] for name in _PROVENANCE if name in given}
    if isinstance(rank := origin.get("rank"), float) and rank.is_integer():  # as table programs write them
        origin["rank"] = int(rank)
    if "judged_at" in origin:
        origin["judged_at"] = _time(origin["judged_at"])
    made = message(
        types_pb2.Pair,
        provenance=message(types_pb2.Provenance, **origin),
        **{name: given[name] for name in _PLAIN if name in given},
    )
    for name in ("rank", "score", "grade"):
        if isinstance(given.get(name), bool) or not math.isfinite(getattr(made.provenance, name)):
            raise InvalidArgument(f"{name}: is {shown(given[name])}; write a finite number")
    return values.Pair.from_message(made)


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


def _time(given: Any) -> Timestamp:
    at = Timestamp()
    try:
        at.FromJsonString(given)
    except ValueError:
        raise InvalidArgument(f"judged_at: is {shown(given)}; write it as 2026-01-31T12:00:00Z") from None
    return at

"""Lines of UTF-8 and the JSON in them, each with its place in the file. What it says is the caller's."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

from aeenc.errors import InvalidArgument

HALF = re.compile("[\ud800-\udfff]")  # of a character outside the basic plane, which JSON can hold
STDIN = Path("-")
CSV_FIELD_CHARS = 16 * 1024 * 1024  # of any column; so much is read after a quote that nothing closes
_PACKED = (b"\x1f\x8b", b"PK\x03\x04", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")  # how gzip, zip, xz and zstd begin


def opened(path: Path) -> BinaryIO:
    """Opens a file to read, or standard input by `-`."""
    return sys.stdin.buffer if path == STDIN else path.open("rb")


def text_lines(path: Path | str) -> Iterator[tuple[str, str]]:
    """Yields place (`file:line`) and text of each line, with its end; of `-`, those of standard input.

    Raises InvalidArgument for a line that is not UTF-8, or has a NUL or a CR inside.
    """
    with opened(Path(path) if isinstance(path, str) else path) as file:  # else of an object store
        for number, line in enumerate(file, start=1):
            place = f"{path}:{number}"
            yield place, decoded(place, line, first=number == 1)


def json_lines(path: Path | str) -> Iterator[tuple[str, object]]:
    """Yields place and content of each line of JSON; blank ones are left out. Raises as `text_lines` and `parsed`."""
    for place, line in text_lines(path):
        if line.strip():
            yield place, parsed(place, line)


def json_file(path: Path | str) -> object:
    """Reads a file that is one JSON value, with the line at which it ends to be JSON. Raises as `json_lines` does."""
    content = "".join(line for _, line in text_lines(path))
    return parsed(str(path), content, lambda error: f":{error.lineno}")


def digest(value: object) -> str:
    """Hashes values that JSON has a form for, and dataclasses of them by those fields that differ from their defaults.

    So the hash stays the same in a later release, which may have further fields.
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_plain).encode()).hexdigest()


def _plain(value: Any) -> object:
    if not is_dataclass(value):
        return dict(value) if isinstance(value, Mapping) else str(value)
    usual = {
        one.name: one.default if one.default_factory is MISSING else one.default_factory() for one in fields(value)
    }
    return {name: chosen for name, default in usual.items() if (chosen := getattr(value, name)) != default}


def records(path: Path, lines: Iterable[str], **dialect: Any) -> Iterator[tuple[str, list[str]]]:
    """Yields the cells of each record of a table, and the place where it begins; `dialect` as of `csv.reader`.

    Raises InvalidArgument, naming the place, for quotes that the dialect does not allow.
    """
    csv.field_size_limit(max(csv.field_size_limit(), CSV_FIELD_CHARS))
    reader = csv.reader(lines, **dialect)
    begins = 1
    try:
        for cells in reader:
            place, begins = f"{path}:{begins}", reader.line_num + 1
            yield place, cells
    except csv.Error as error:
        raise InvalidArgument(f"{path}:{begins}: {error}; see RFC 4180 for quotes") from None


def decoded(place: str, line: bytes, *, first: bool) -> str:
    """Decodes a line, the `first` of a file without its byte order mark.

    Raises InvalidArgument for one that is not UTF-8, or has a NUL or a CR inside.
    """
    if first and line.startswith(_PACKED):
        raise InvalidArgument(f"{place}: the file is packed; unpack it first")
    try:
        text = line.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{place}: byte {error.start + 1} is not UTF-8; save the file as UTF-8") from None
    if "\0" in text:
        raise InvalidArgument(f"{place}: a NUL; the file is damaged, or not UTF-8")
    if "\r" in text.removesuffix("\n").removesuffix("\r"):
        raise InvalidArgument(f"{place}: a CR inside a line; save the file with line ends LF or CRLF")
    return text


def parsed(place: str, content: str, line: Callable[[json.JSONDecodeError], str] = lambda _: "") -> object:
    """Reads JSON; `line` adds to the place where it ends to be JSON. Raises InvalidArgument naming the place.

    Refused are names that stand twice in one object, too, of which readers keep one in silence.
    """
    try:
        found: object = _JSON.decode(content)
    except json.JSONDecodeError as error:
        raise InvalidArgument(f"{place}{line(error)}: not JSON ({error.msg})") from None
    except KeyError as error:
        raise InvalidArgument(f"{place}: {error} is there twice in one object; rename one, or leave it out") from None
    except RecursionError:
        raise InvalidArgument(f"{place}: nested too deeply; write flat objects") from None
    except ValueError:
        raise InvalidArgument(f"{place}: a number has too many digits; write it as a string") from None
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes an object of its names and values. Raises KeyError for a name that is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise KeyError(next(name for name in names if names.count(name) > 1))
    return found


_JSON = json.JSONDecoder(object_pairs_hook=_object)


def refuse_half(name: str, text: str) -> None:
    """Raises InvalidArgument for a text with half a character: no message can hold it."""
    if half := HALF.search(text):
        escape = half[0].encode("ascii", "backslashreplace").decode()
        raise InvalidArgument(f"{name} has half a character ({escape}); write both halves, or the character")

"""Lines of UTF-8, each with its place in the file. What is written in them is the caller's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from aeenc.errors import InvalidArgument

HALF = re.compile("[\ud800-\udfff]")  # of a character outside the basic plane, which JSON can hold


def text_lines(path: Path | str) -> Iterator[tuple[str, str]]:
    """Yields place (`file:line`) and text of each line, with its end.

    Raises InvalidArgument for a line that is not UTF-8 or has a NUL.
    """
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            place = f"{path}:{number}"
            yield place, decoded(place, line, first=number == 1)


def decoded(place: str, line: bytes, *, first: bool) -> str:
    """Decodes a line, the `first` of a file without its byte order mark.

    Raises InvalidArgument for one that is not UTF-8 or has a NUL.
    """
    try:
        text = line.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{place}: byte {error.start + 1} is not UTF-8; save the file as UTF-8") from None
    if "\0" in text:
        raise InvalidArgument(f"{place}: a NUL; the file is damaged, or not UTF-8")
    return text


def refuse_half(name: str, text: str) -> None:
    """Raises InvalidArgument for a text with half a character: no message can hold it."""
    if half := HALF.search(text):
        escape = half[0].encode("ascii", "backslashreplace").decode()
        raise InvalidArgument(f"{name} has half a character ({escape}); write both halves, or the character")

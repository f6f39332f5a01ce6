"""The format of stored records, on disk and in Redis: what every release reads, and what it refuses by name.

`format_version` is a whole number that changes only when older releases must not read a record. What a release adds
beside that are further fields: readers pass over those that they do not know, and who rewrites a record keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from aeenc import errors

T = TypeVar("T")
_adapter: Any = cache(TypeAdapter)  # to make one takes milliseconds


class NewerFormat(errors.FailedPrecondition):
    """A newer release has written the record. It is sound: nobody may replace or remove it as damaged."""


class Unnumbered(errors.DataLoss, ValueError):
    """The record has no format number: it is damaged. A reader who knows a remedy catches it as a ValueError."""


RESTORE = "restore it from a backup"
_DAMAGED = f"; it is damaged, {RESTORE}"
UNREADABLE = (NewerFormat, errors.DataLoss)  # raised for one record, which must keep nobody from all others


def check_format(record: Mapping[str, Any], readable: int, what: str) -> None:
    """Raises NewerFormat, naming `what`, for a record with a `format_version` above `readable`.

    Raises Unnumbered for a record without a whole number from 1.
    """
    try:
        found = int(record["format_version"])
    except (KeyError, TypeError, ValueError) as error:
        raise Unnumbered(f"{what} has no format_version{_DAMAGED}") from error
    if found < 1:
        raise Unnumbered(f"{what} has format_version {found}{_DAMAGED}")
    if found > readable:
        raise NewerFormat(
            f"{what} has format_version {found}, this release reads up to {readable}; update this service, "
            "or bring back what the older release wrote"
        )


def check_same(request_id: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises AlreadyExists naming what a request asks for now and, as its record says, did not ask for before."""
    names = sorted({*before, *now}, key=lambda name: (name != "rpc", name))
    differing = [name for name in names if before.get(name) != now.get(name)]
    if differing:
        shown = differing[:1] if differing[0] == "rpc" else differing
        said = "; ".join(f"{name} {before.get(name)!r}, now with {now.get(name)!r}" for name in shown)
        raise errors.AlreadyExists(f"request id {request_id[:80]!r} was used with {said[:400]}; choose another id")


@contextmanager
def damage_is_data_loss(what: object, remedy: str) -> Iterator[None]:
    """Turns what reading damaged content raises into DataLoss, a line that names it and a remedy; NewerFormat stays."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        # One line without another remedy; some errors name each damaged number, or hold the content.
        told = " ".join(str(error).removesuffix(_DAMAGED).split())[:200]
        raise errors.DataLoss(f"{what} cannot be read ({type(error).__name__}: {told}); {remedy}") from error


def made_of(cls: type[T], record: Any) -> T:
    """Makes a dataclass, and those in it, of a record; passes over what they do not know.

    Raises ValueError for a value of another kind, and for one that is missing.
    """
    try:
        made: T = _adapter(cls).validate_python(record)
    except ValidationError as error:  # it has three lines for each value, one of them a link
        raise ValueError(" ".join(str(error).partition("    For further")[0].split())) from error
    return made


def unknown_fields(cls: type[Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of a record that `cls` does not know, to be kept where the record is rewritten."""
    known = {"format_version", *(field.name for field in fields(cls))}
    return {name: value for name, value in record.items() if name not in known}

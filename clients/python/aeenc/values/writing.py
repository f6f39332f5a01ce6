"""Messages made of what callers give. What Python or protobuf would refuse is InvalidArgument, by the field's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NoReturn, ParamSpec, TypeVar

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from aeenc.errors import InvalidArgument
from aeenc.values.reading import EPOCH

P = ParamSpec("P")
MessageT = TypeVar("MessageT", bound=Message)

_PLAIN = frozenset({str, bool, int, float, list, tuple, dict})  # of most fields, and known at once
_AT_HAND = (bytes, Message, Mapping, *_PLAIN)  # other iterables can be gone through once, perhaps
_REFUSALS = (TypeError, ValueError, KeyError, AttributeError, OverflowError)  # of protobuf, for a caller's value
PARAMETERS = {  # fields that the clients call something else
    "exclude_ids": "exclude",
    "any_split": "splits",
    "expected_generation": "expected",
    "versions": "version",
    "wait": "wait_s",
}
_WHOLE = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_KINDS = {
    FieldDescriptor.CPPTYPE_STRING: "text",
    FieldDescriptor.CPPTYPE_BOOL: "True or False",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
}


def message(kind: Callable[P, MessageT], /, *args: P.args, **fields: P.kwargs) -> MessageT:
    """Makes a message of a kind. A value of an enum may be given by its name, "cross_encoder" or "MODE_CROSS_ENCODER".

    Raises InvalidArgument, naming the field and the item, for a value it cannot hold, and for one string in place of a
    list, which would count as a list of its characters. Numbers of enums are the service's to judge.
    """
    make: Any = kind  # all fields of a message go by name
    read = _read_otherwise(make)
    given = {
        name: _read(name, value, read[name])
        if isinstance(value, str) and name in read
        else (value if type(value) in _PLAIN else _listed(value))
        for name, value in fields.items()
    }
    try:
        made: MessageT = make(*args, **given)
    except _REFUSALS as error:
        _refuse(make, given, error)
    return made


def mirrored(kind: type[MessageT], source: object, **others: Any) -> MessageT:
    """Makes a message of what `source` has under the names of its fields, unless `others` has it. Raises as `message`.

    For values whose attributes are called as the contract calls them.
    """
    names = [name for name in kind.DESCRIPTOR.fields_by_name if name not in others and hasattr(source, name)]
    return message(kind, **{name: getattr(source, name) for name in names}, **others)


def message_of(place: str, kind: Callable[P, MessageT], /, *args: P.args, **fields: P.kwargs) -> MessageT:
    """Makes a message that is a part of a request. An error names the place that it has for the caller."""
    try:
        return message(kind, *args, **fields)
    except InvalidArgument as error:
        _, bracket, item = error.violations[0].field.partition("[")
        raise InvalidArgument.field(place + bracket + item, error.violations[0].description) from None


def as_message(given: Any, kind: type[MessageT], field: str) -> MessageT:
    """Returns the message of a value of ours, or a message itself. Raises InvalidArgument for anything else."""
    if isinstance(given, kind):
        return given
    convert = getattr(given, "to_message", None) or getattr(given, "to_proto", None)
    made = None if isinstance(given, type) or convert is None else convert()
    if isinstance(made, kind):
        return made
    raise InvalidArgument.field(field, f"is {shown(given)}; give a {kind.DESCRIPTOR.name}")


def as_messages(items: Any, kind: type[MessageT], field: str) -> list[MessageT]:
    """Returns the messages of all items, as `as_message` does."""
    if isinstance(items, str | type) or not isinstance(items, Iterable):
        raise InvalidArgument.field(field, f"is {shown(items)}; give a list of {kind.DESCRIPTOR.name}")
    return [as_message(one, kind, f"{field}[{number}]") for number, one in enumerate(items)]


def duration(seconds: float, field: str) -> Duration:
    """Returns the message of a length of time, 0 for a negative one, cut to whole nanoseconds."""
    made = Duration()
    try:
        made.FromNanoseconds(int(max(seconds, 0.0) * 1e9))
    except _REFUSALS:
        raise InvalidArgument.field(field, f"is {shown(seconds)}; give seconds") from None
    return made


def length(of: timedelta) -> Duration:
    """Returns the message of a length of time."""
    made = Duration()
    made.FromTimedelta(of)
    return made


def timestamp(at: datetime, field: str) -> Timestamp:
    """Returns the message of a time, which needs a time zone."""
    try:
        passed: timedelta = at - EPOCH
    except TypeError:
        raise InvalidArgument.field(field, f"is {shown(at)}; give a datetime with a time zone") from None
    return Timestamp(seconds=passed.days * 86_400 + passed.seconds, nanos=passed.microseconds * 1000)


def shown(value: object) -> str:
    """Shows the begin of a value in an error, by ASCII letters alone: no stream fails to print it."""
    text = ascii(value[:60] if isinstance(value, str | bytes) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _listed(value: Any) -> Any:
    """Goes through an iterable here, so that what the caller's own code raises is not taken for protobuf's refusal."""
    return list(value) if isinstance(value, Iterable) and not isinstance(value, _AT_HAND) else value


@cache
def _read_otherwise(kind: Any) -> dict[str, dict[str, int] | None]:
    """Returns the fields of a message in which a text is not itself: numbers by name of an enum, None of a list."""
    fields = [one for one in kind.DESCRIPTOR.fields if one.enum_type is not None or _is_repeated(one)]
    return {one.name: None if _is_repeated(one) else _numbers(one.enum_type) for one in fields}


def _read(name: str, text: str, numbers: dict[str, int] | None) -> int:
    """Returns the number of an enum's name. Raises InvalidArgument for an unknown one, and for one string as a list."""
    where = PARAMETERS.get(name, name)
    if numbers is None:
        raise InvalidArgument.field(where, f"is one string ({shown(text)}); give a list of strings")
    number = numbers.get(text.replace("-", "_"))
    if number is None:
        raise InvalidArgument.field(where, f"is {shown(text)}; give one of {_choices(numbers)}")
    return number


def _numbers(enum: EnumDescriptor) -> dict[str, int]:
    """Returns the numbers of an enum by the contract's names and by short ones in lower case; "unspecified" is none."""
    zero, *others = enum.values
    prefix = zero.name.removesuffix("UNSPECIFIED")
    short = {one.name.removeprefix(prefix).lower(): one.number for one in others}
    return short | {one.name: one.number for one in others}


def _choices(numbers: dict[str, int]) -> str:
    return ", ".join(name for name in numbers if name.islower())


def _is_repeated(field: FieldDescriptor) -> bool:
    return isinstance(field.default_value, list)  # the lowest protobuf has no `is_repeated`, the highest no `label`


def _refuse(make: Any, given: Mapping[str, Any], error: Exception) -> NoReturn:
    """Raises InvalidArgument about the first field that fails alone, and the first of its items."""
    for name, value in given.items():
        if not _fails(make, name, value):
            continue
        field = make.DESCRIPTOR.fields_by_name[name]
        where = PARAMETERS.get(name, name)
        if type(value) is dict and field.message_type is not None and not _is_repeated(field):
            if unknown := [one for one in value if one not in {*field.message_type.fields_by_name}]:
                raise InvalidArgument.field(where, f"has {shown(unknown[0])}, which {field.message_type.name} lacks")
            message(GetMessageClass(field.message_type), **value)  # names the field within
        if _is_repeated(field) and isinstance(value, list | tuple):
            for number, one in enumerate(value):
                if _fails(make, name, [one]):
                    raise InvalidArgument.field(f"{where}[{number}]", _wrong(field, one)) from None
        plural = "; give a list" if _is_repeated(field) else ""
        raise InvalidArgument.field(where, f"is {shown(value)}{plural}" if plural else _wrong(field, value)) from None
    raise InvalidArgument(f"{make.DESCRIPTOR.name}: {shown(str(error))}") from None


def _fails(make: Any, name: str, value: Any) -> bool:
    try:
        make(**{name: value})
    except _REFUSALS:
        return True
    return False


def _wrong(field: FieldDescriptor, value: Any) -> str:
    if isinstance(value, str) and field.cpp_type == field.CPPTYPE_STRING:
        return f"has half a character ({shown(value)}); give whole characters"
    if field.cpp_type in _WHOLE:
        least, most = _WHOLE[field.cpp_type]
        return f"is {shown(value)}; give a whole number from {least:,} to {most:,}"
    if field.enum_type is not None:
        return f"is {shown(value)}; give one of {_choices(_numbers(field.enum_type))}"
    kind = field.message_type.name if field.message_type is not None else _KINDS.get(field.cpp_type, "another value")
    return f"is {shown(value)}; give {kind}"

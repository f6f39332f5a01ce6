"""The values that the clients return, beside the messages that they are read from."""

import dataclasses
import importlib
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from google.protobuf.message import Message

from aeenc import values
from aeenc.errors import InvalidArgument
from aeenc.v1 import sampler_pb2, types_pb2
from aeenc.values.reading import Choice
from tools.values import FILES, GIVEN, RETURNED

MESSAGES = {
    RETURNED.get(name, name): getattr(module, name)
    for module in (importlib.import_module(f"aeenc.v1.{file}_pb2") for file in FILES)
    for name in module.DESCRIPTOR.message_types_by_name
    if RETURNED.get(name, name) in values.__all__
}
AT = datetime(2026, 3, 1, 12, 0, 0, 250, tzinfo=UTC)


def filled(kind: type[Message], numbers: count) -> Message:
    """A message in which every field has a value of its own."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        number = next(numbers)
        if field.message_type is not None and field.message_type.full_name.startswith("google."):
            time = getattr(message, field.name)
            time.seconds, time.nanos = int(AT.timestamp()) + number, 250_000
        elif field.message_type is not None:
            held = filled(field.message_type._concrete_class, numbers)
            if field.is_repeated:
                getattr(message, field.name).append(held)
            else:
                getattr(message, field.name).CopyFrom(held)
        elif field.enum_type is not None:
            given = field.enum_type.values[number % (len(field.enum_type.values) - 1) + 1].number
            _put(message, field, given)
        else:
            _put(message, field, {9: f"text {number}", 8: True}.get(field.type, number))
    return message


def _put(message, field, value):
    if field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


def plain(message: Message, field) -> object:
    """What the value of a field must be equal to, read from the message by other means than the value's own."""
    given = getattr(message, field.name)
    if field.message_type is None:
        return tuple(given) if field.is_repeated else given
    name = field.message_type.name
    if name == "Timestamp":
        return given.ToDatetime(tzinfo=UTC)
    if name == "Duration":
        return given.ToTimedelta()
    read = getattr(values, RETURNED.get(name, name)).from_message
    return tuple(read(one) for one in given) if field.is_repeated else read(given)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_value_has_every_field_of_its_message(name):
    message = filled(MESSAGES[name], count(1))
    oneofs = [fields for fields in message.DESCRIPTOR.oneofs if len(fields.fields) > 1]
    value = getattr(values, name).from_message(message)
    assert [field.name for field in dataclasses.fields(value)] == list(message.DESCRIPTOR.fields_by_name)
    for field in message.DESCRIPTOR.fields:
        if oneofs and not message.HasField(field.name):
            assert getattr(value, field.name) is None
            continue
        assert getattr(value, field.name) == plain(message, field), field.name
        if field.enum_type is not None:
            one = getattr(value, field.name)
            assert isinstance(one[0] if field.is_repeated else one, Choice)


@pytest.mark.parametrize("name", [RETURNED.get(name, name) for name in GIVEN])
def test_what_is_handed_back_is_what_was_read(name):
    message = filled(MESSAGES[name], count(1))
    assert getattr(values, name).from_message(message).to_message() == message
    empty = MESSAGES[name]()
    again = getattr(values, name).from_message(empty).to_message()
    assert (
        getattr(values, name).from_message(again)
        == getattr(values, name)()
        == getattr(values, name).from_message(empty)
    )


def test_an_enum_has_the_numbers_of_the_contract_and_keeps_those_of_a_newer_service():
    assert {one.name: one.value for one in values.WorkState} == {
        name.removeprefix("WORK_STATE_"): number for name, number in types_pb2.WorkState.items()
    }
    run = values.Run.from_message(sampler_pb2.Run(state=99))
    assert (run.state, run.state.name, repr(run.state)) == (99, "UNKNOWN_99", "<WorkState.UNKNOWN_99: 99>")
    assert values.WorkState.SUCCEEDED == types_pb2.WORK_STATE_SUCCEEDED


def test_a_value_is_frozen_has_no_room_for_other_names_and_can_be_copied_and_hashed():
    run = values.Run.from_message(sampler_pb2.Run(id="r", state=3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.id = "s"
    with pytest.raises((AttributeError, TypeError)):
        object.__setattr__(run, "colour", "blue")
    assert dataclasses.replace(run, id="s").id == "s"
    assert len({run, values.Run.from_message(sampler_pb2.Run(id="r", state=3))}) == 1


def test_what_is_not_set_is_none_and_times_are_utcs_to_the_microsecond():
    run = sampler_pb2.Run()
    run.created_at.FromDatetime(AT)
    read = values.Run.from_message(run)
    assert (read.created_at, read.ended_at, read.config.max_depth, read.config.model) == (AT, None, None, None)
    timings = types_pb2.Timings()
    timings.total.FromMicroseconds(1_500_001)
    assert values.Timings.from_message(timings).total == timedelta(seconds=1, microseconds=500_001)


@pytest.mark.parametrize(("kind", "field"), [("Answer", "at"), ("TaskEvent", "at"), ("Provenance", "judged_at")])
def test_a_time_without_a_zone_is_refused_by_the_name_of_its_field(kind: str, field: str):
    value = getattr(values, kind)(**{field: AT.replace(tzinfo=None)})
    with pytest.raises(InvalidArgument, match=f"^{field}: is .* give a datetime with a time zone"):
        value.to_message()


def test_a_value_that_is_not_there_is_named():
    with pytest.raises(AttributeError, match=r"'aeenc\.values' has no attribute 'Walk'"):
        values.Walk  # noqa: B018 -- the look-up is the test

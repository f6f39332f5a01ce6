"""Looks into an ONNX file before a runtime does: no tensor outside the file or larger than it, no foreign operator.

A scan of the protobuf's field tags, without the `onnx` package, which a serving image does not carry. It does not
validate the graph; the runtime does.
"""

from __future__ import annotations

from collections.abc import Iterator

from aeenc.errors import DataLoss

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
ALLOWED_DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft"}
MAX_DEPTH = 16

# Field numbers of onnx.proto that lead to tensors, nodes and further graphs: message -> {field: message}.
_CHILDREN = {
    "model": {7: "graph", 8: "opset", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 9: "opset"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
_DOMAIN_FIELD = {"opset": 1, "node": 7}
_DIMS, _EXTERNAL_DATA, _DATA_LOCATION = 1, 13, 14
_TENSOR_DATA = {4, 5, 6, 7, 9, 10, 11}
_LARGEST_NUMBER_BYTES = 8
VALUES_A_BYTE = 2  # of the densest type, four bits


def check_onnx(data: memoryview, name: str) -> None:
    """Raises DataLoss, naming the file, for external data, missing data, foreign operators or what is no protobuf."""
    try:
        _check(data, "model", name, 0)
    except (IndexError, ValueError) as error:
        raise DataLoss(f"{name} is no ONNX model ({error}); export it again") from error


def _check(data: memoryview, kind: str, name: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    children = _CHILDREN.get(kind, {})
    for field, wire, value in _fields(data):
        if kind == "tensor" and (field == _EXTERNAL_DATA or (field == _DATA_LOCATION and value != 0)):
            raise DataLoss(f"{name} keeps tensors in other files; export it with all data inside")
        if wire != _BYTES or not isinstance(value, memoryview):
            continue
        if field == _DOMAIN_FIELD.get(kind):
            domain = bytes(value).decode("utf-8", "replace")
            if domain not in ALLOWED_DOMAINS:
                raise DataLoss(f"{name} uses operators of domain {domain!r}; export it with standard operators only")
        elif field in children:
            _check(value, children[field], name, depth + 1)
    if kind == "tensor":
        _check_size(data, name)


def _check_size(tensor: memoryview, name: str) -> None:
    """Refuses a tensor that declares more values than it holds: a runtime would reserve memory for them."""
    values, held_bytes = 1, 0
    for field, _, value in _fields(tensor):
        if field == _DIMS:
            for dim in _numbers(value):
                values *= dim
        elif field in _TENSOR_DATA:
            held_bytes += len(value) if isinstance(value, memoryview) else _LARGEST_NUMBER_BYTES
    if values > VALUES_A_BYTE * held_bytes:
        raise DataLoss(f"{name} declares a tensor of {values:,} values and holds {held_bytes:,} bytes of it")


def _numbers(value: int | memoryview) -> Iterator[int]:
    """One number, or all numbers of a packed field."""
    if isinstance(value, int):
        yield value
        return
    position = 0
    while position < len(value):
        number, position = _varint(value, position)
        yield number


def _fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        field, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, position = _varint(data, position)
            yield field, wire, value
            continue
        if wire == _BYTES:
            size, position = _varint(data, position)
        elif wire in {_FIXED64, _FIXED32}:
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if position + size > len(data):
            raise ValueError("cut short")
        yield field, wire, data[position : position + size]
        position += size


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("varint too long")

"""ONNX files: checked before a runtime reads them, then opened as sessions of onnxruntime on a CPU or with CUDA.

The check scans the protobuf's field tags. It refuses tensors outside the file or larger than it, foreign operators, and
every field that it does not know.
It needs no `onnx` package, which a serving image lacks, and leaves the validation of the graph to the runtime.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnxruntime as ort

from aeenc.errors import DataLoss, FailedPrecondition
from services.onnx_devices import CPU, Placement

CPUINFO = Path("/proc/cpuinfo")
_INT8_PRODUCTS = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"}  # instructions of x86 and ARM
_SLOWER_FUSIONS = ["SkipLayerNormFusion"]  # on a CPU the fused kernel is slower than the two that it replaces

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
ALLOWED_DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft"}
MAX_DEPTH = 16

# The fields of onnx.proto that a file may have, by message; all others are refused. A field leads to a message that is
# checked as well, or to None. Left out are functions, sparse tensors and training, which no export of ours has.
_FIELDS: Mapping[str, Mapping[int, str | None]] = {
    "model": {**dict.fromkeys([1, 2, 3, 4, 5, 6, 14]), 7: "graph", 8: "opset"},
    "opset": dict.fromkeys([1, 2]),
    "graph": {**dict.fromkeys([2, 10, 11, 12, 13, 14, 16]), 1: "node", 5: "tensor"},
    "node": {**dict.fromkeys([1, 2, 3, 4, 6, 7, 8, 9]), 5: "attribute"},
    "attribute": {
        **dict.fromkeys([1, 2, 3, 4, 7, 8, 9, 13, 14, 15, 20]),
        5: "tensor",
        6: "graph",
        10: "tensor",
        11: "graph",
    },
    "tensor": dict.fromkeys([1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16]),
}
_ONE_TENSOR = ("attribute", 5)  # a second one is merged into the first, whose values then are not those checked
_DOMAIN_FIELD = {"opset": 1, "node": 7}
_DIMS, _EXTERNAL_DATA, _DATA_LOCATION = 1, 13, 14
_TENSOR_DATA = {4, 5, 6, 7, 9, 10, 11}
_LARGEST_NUMBER_BYTES = 8
VALUES_A_BYTE = 2  # of the densest type, which has four bits


def multiplies_int8() -> bool:
    """Whether this CPU has instructions for products of 8-bit integers, with which int8 is faster than float32."""
    words = CPUINFO.read_text(encoding="utf-8", errors="replace").split() if CPUINFO.exists() else ()  # else not Linux
    return not _INT8_PRODUCTS.isdisjoint(words)


def open_session(
    path: Path, placement: Placement, output: str, optional_inputs: Iterable[str] = ()
) -> ort.InferenceSession:
    """Opens a model file with the inputs `input_ids` and `attention_mask` and the named output.

    It opens the path, not bytes: so the runtime neither blocks the interpreter nor keeps a second copy. A session
    creates no threads, so a thread of low priority may open it. Raises DataLoss, or FailedPrecondition when the session
    is not at the first provider.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1  # several workers run in parallel, each with its own batch
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_cpu_mem_arena = False  # lengths vary; an arena would grow to the sum of all shapes and stay
    options.log_severity_level = 3
    providers = list(placement.providers)
    slower = _SLOWER_FUSIONS if providers == [CPU] else []
    try:
        session = ort.InferenceSession(
            path, options, providers=providers, provider_options=placement.options, disabled_optimizers=slower
        )
    except Exception as error:  # the runtime raises its own unexported classes
        raise DataLoss(f"{path} is refused by onnxruntime: {str(error)[:500]}") from error
    if providers[0] not in session.get_providers():
        raise FailedPrecondition(
            f"{path} was to be computed by {providers[0]}, and its session is on {', '.join(session.get_providers())}; "
            "look at the device's memory and driver"
        )
    inputs = inputs_of(session)
    outputs = [o.name for o in session.get_outputs()]
    if inputs - set(optional_inputs) != {"input_ids", "attention_mask"} or output not in outputs:
        raise DataLoss(f"{path} has inputs {sorted(inputs)} and outputs {outputs}; export it again")
    return session


def inputs_of(session: ort.InferenceSession) -> set[str]:
    """Returns the names of a session's inputs."""
    return {one.name for one in session.get_inputs()}


def check_onnx(data: memoryview, name: str) -> None:
    """Raises DataLoss naming the file for external or missing data, foreign operators or unknown fields."""
    try:
        _check(data, "model", name, 0)
    except (IndexError, ValueError) as error:
        raise DataLoss(
            f"{name} is not an ONNX model that is served ({error}); export it without functions, sparse tensors and "
            "training"
        ) from error


def _check(data: memoryview, kind: str, name: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    known, tensors = _FIELDS[kind], 0
    for field, wire, value in _fields(data):
        if kind == "tensor" and (field == _EXTERNAL_DATA or (field == _DATA_LOCATION and value != 0)):
            raise DataLoss(f"{name} keeps tensors in other files; export it with all data inside")
        tensors += (kind, field) == _ONE_TENSOR
        if field not in known or tensors > 1:
            raise ValueError(f"field {field} of a {kind} is {'there twice' if tensors > 1 else 'unknown'}")
        if not isinstance(value, memoryview):
            continue
        if wire == _BYTES and field == _DOMAIN_FIELD.get(kind):
            domain = bytes(value).decode("utf-8", "replace")
            if domain not in ALLOWED_DOMAINS:
                raise DataLoss(f"{name} uses operators of domain {domain!r}; export it with standard operators only")
        elif wire == _BYTES and (child := known[field]) is not None:
            _check(value, child, name, depth + 1)
    if kind == "tensor":
        _check_size(data, name)


def _check_size(tensor: memoryview, name: str) -> None:
    """Refuses a tensor that declares more values than it holds; a runtime would reserve memory for them."""
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
    """Yields one number, or all numbers of a packed field."""
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

"""The scan of ONNX files: whatever a runtime would read and it does not walk is refused."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
from onnx import TensorProto, helper

from aeenc.errors import DataLoss
from services.encoder.runtime.onnx_session import check_onnx

MANY = 2**33
EXTERNAL = TensorProto(data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
EXTERNAL.external_data.add(key="location", value="secret.bin")
HUGE = TensorProto(data_type=TensorProto.FLOAT, dims=[MANY], raw_data=bytes(4))
ONE = TensorProto(data_type=TensorProto.FLOAT, dims=[1], raw_data=bytes(4))


def model_of(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"]), *nodes], "g", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def constant(tensor: TensorProto) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["c"], value=tensor)


PLACES: dict[str, Callable[[onnx.ModelProto, TensorProto], object]] = {
    "an initializer": lambda model, tensor: model.graph.initializer.append(tensor),
    "an attribute": lambda model, tensor: model.graph.node.append(constant(tensor)),
    "a list of tensors": lambda model, tensor: model.graph.node.add().attribute.add(name="t", tensors=[tensor]),
    "a branch": lambda model, tensor: model.graph.node.append(
        helper.make_node("If", ["x"], ["z"], then_branch=helper.make_graph([constant(tensor)], "b", [], []))
    ),
    "a function": lambda model, tensor: model.functions.append(
        onnx.FunctionProto(name="f", domain="com.microsoft", node=[constant(tensor)])
    ),
    "a default of a function": lambda model, tensor: model.functions.append(
        onnx.FunctionProto(name="f", attribute_proto=[helper.make_attribute("value", tensor)])
    ),
    "training": lambda model, tensor: model.training_info.append(
        onnx.TrainingInfoProto(initialization=onnx.GraphProto(initializer=[tensor]))
    ),
    "sparse values": lambda model, tensor: model.graph.sparse_initializer.append(
        onnx.SparseTensorProto(values=tensor, dims=[1])
    ),
    "a sparse attribute": lambda model, tensor: model.graph.node.add().attribute.add(
        name="sparse_value", sparse_tensor=onnx.SparseTensorProto(values=tensor, dims=[MANY])
    ),
}


@pytest.mark.parametrize(
    ("tensor", "said"),
    [(EXTERNAL, "keeps tensors in other files"), (HUGE, "declares a tensor")],
    ids=["external", "huge"],
)
@pytest.mark.parametrize("put", PLACES.values(), ids=PLACES)
def test_a_tensor_outside_its_file_or_larger_is_refused_wherever_a_runtime_would_read_it(
    put: Callable[[onnx.ModelProto, TensorProto], object], tensor: TensorProto, said: str
) -> None:
    model = model_of()
    check_onnx(memoryview(model.SerializeToString()), "a")
    put(model, tensor)
    with pytest.raises(DataLoss, match=f"{said}|is unknown"):
        check_onnx(memoryview(model.SerializeToString()), "a")


def varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80]) + varint(number >> 7) if number > 0x7F else bytes([number])


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def in_a_node(attribute: bytes) -> bytes:
    return message(7, message(1, message(4, b"Constant") + message(5, attribute)))


MORE = TensorProto(dims=[1000], raw_data=bytes(500)).SerializeToString()
ENCODED = {
    "a field of a later onnx": message(99, b"?"),
    "a field number over 32 bits, which some parsers cut to 14, the place of the data": message(
        7, message(5, ONE.SerializeToString() + varint((1 << 32 | 14) << 3) + varint(1))
    ),
    "two tensors that a parser merges into one of 1,000 x 1,000 values": in_a_node(message(5, MORE) + message(5, MORE)),
    "a group": bytes([7 << 3 | 3, 7 << 3 | 4]),
    "a device configuration": message(26, b""),
}


@pytest.mark.parametrize("added", ENCODED.values(), ids=ENCODED)
def test_bytes_that_parsers_may_read_in_another_way_are_refused(added: bytes) -> None:
    model = model_of().SerializeToString()
    check_onnx(memoryview(model + in_a_node(message(5, MORE))), "a")
    with pytest.raises(DataLoss, match="is not an ONNX model that is served"):
        check_onnx(memoryview(model + added), "a")

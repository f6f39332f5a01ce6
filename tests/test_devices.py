"""A lack of memory is told from other failures, by what runtimes say on a CPU; the arena is the same on a card."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper

from services.devices import is_out_of_memory

TOO_MANY = 2**46  # values, more than an address space
LIMIT_BYTES = 2**20


def zeros(count: int, *, arena: bool = True, shared: bool = False) -> object:
    """Has onnxruntime allocate so many float32: in the session's arena, in none, or in a bounded one of the process."""
    node = helper.make_node("ConstantOfShape", ["shape"], ["zeros"])
    sides = (
        [helper.make_tensor_value_info("shape", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("zeros", TensorProto.FLOAT, [None])],
    )
    model = helper.make_model(
        helper.make_graph([node], "zeros", *sides), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = arena
    if shared:
        place = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
        ort.create_and_register_allocator(place, ort.OrtArenaCfg({"max_mem": LIMIT_BYTES}))
        options.add_session_config_entry("session.use_env_allocators", "1")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"shape": np.array([count])})


@pytest.mark.parametrize(
    ("fails", "words", "expected"),
    [
        (lambda: zeros(TOO_MANY), "BFCArena.* Failed to allocate memory for requested buffer", True),
        (lambda: zeros(LIMIT_BYTES, shared=True), "BFCArena.* is smaller than requested bytes", True),
        (lambda: zeros(TOO_MANY, arena=False), "std::bad_alloc", True),
        (lambda: torch.empty(TOO_MANY), "can't allocate memory", True),
        (lambda: np.empty(TOO_MANY), "Unable to allocate", True),
        (lambda: zeros(-1), "ConstantOfShape", False),
        (lambda: torch.empty(2) @ torch.empty(3), "inconsistent tensor size", False),
    ],
    ids=["arena", "bounded arena", "no arena", "torch", "numpy", "onnxruntime's other", "torch's other"],
)
def test_a_lack_of_memory_is_told_from_other_failures(fails: Callable[[], object], words: str, expected: bool) -> None:
    with pytest.raises(Exception, match=f"(?s){words}") as caught:
        fails()
    assert is_out_of_memory(caught.value) is expected

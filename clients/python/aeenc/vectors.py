"""Embeddings on the wire: numpy matrices to `aeenc.v1.Embeddings` and back, without a copy where possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aeenc.errors import InvalidArgument
from aeenc.v1 import types_pb2

if TYPE_CHECKING:  # numpy is imported where there are vectors: `aeenc status` has none
    import numpy as np
    from numpy.typing import NDArray

_WIRE = {types_pb2.D_TYPE_FLOAT32: "<f4", types_pb2.D_TYPE_FLOAT16: "<f2"}  # numpy's names


def to_proto(matrix: NDArray[np.floating]) -> types_pb2.Embeddings:
    """Packs a matrix (n, dim). float16 stays as it is, everything else becomes float32.

    Raises InvalidArgument unless it has two dimensions, of numbers.
    """
    import numpy as np

    try:
        matrix = np.asarray(matrix)
    except ValueError:  # rows of different lengths
        raise InvalidArgument("vectors have rows of unlike length; give a matrix (n, dim), one row a vector") from None
    if matrix.ndim != 2:
        raise InvalidArgument(f"vectors have shape {matrix.shape}; give a matrix (n, dim), one row a vector")
    if matrix.dtype.kind not in "fiub":
        raise InvalidArgument(f"vectors are of type {matrix.dtype}; give a matrix (n, dim) of real numbers")
    dtype = types_pb2.D_TYPE_FLOAT16 if matrix.dtype == np.float16 else types_pb2.D_TYPE_FLOAT32
    data = np.ascontiguousarray(matrix, dtype=_WIRE[dtype]).tobytes()
    return types_pb2.Embeddings(data=data, dtype=dtype, rows=matrix.shape[0], dim=matrix.shape[1])


def from_proto(message: types_pb2.Embeddings) -> NDArray[np.float32]:
    """Unpacks a matrix (rows, dim) as float32. The result may be read-only.

    Raises InvalidArgument for an unknown dtype or when the size of `data` is not rows x dim x size of dtype.
    """
    import numpy as np

    if message.dtype not in _WIRE:
        raise InvalidArgument.field(
            "vectors.dtype", f"{message.dtype} is unknown; use D_TYPE_FLOAT32 or D_TYPE_FLOAT16"
        )
    dtype = np.dtype(_WIRE[message.dtype])
    data, rows, dim = message.data, message.rows, message.dim  # each reading of `data` makes a copy
    expected = rows * dim * dtype.itemsize
    if len(data) != expected:
        raise InvalidArgument.field(
            "vectors.data", f"{len(data)} bytes; {rows} rows x {dim} dim of {dtype} need {expected}"
        )
    return np.asarray(np.ndarray((rows, dim), dtype, data), dtype=np.float32)


def floats(scores: Sequence[float]) -> NDArray[np.float32]:
    """Converts the repeated floats of a message to an array (n,)."""
    import numpy as np

    return np.asarray(scores, dtype=np.float32)

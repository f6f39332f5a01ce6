"""Embeddings on the wire: numpy matrices to `aeenc.v1.Embeddings` and back, without a copy where possible."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import InvalidArgument
from aeenc.v1 import types_pb2

_WIRE: dict[int, np.dtype[Any]] = {
    types_pb2.D_TYPE_FLOAT32: np.dtype("<f4"),
    types_pb2.D_TYPE_FLOAT16: np.dtype("<f2"),
}


def to_proto(matrix: NDArray[np.floating]) -> types_pb2.Embeddings:
    """Packs a matrix (n, dim). float16 stays as it is, everything else becomes float32.

    Raises InvalidArgument unless it has two dimensions, of numbers.
    """
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
    dtype = _WIRE.get(message.dtype)
    if dtype is None:
        raise InvalidArgument.field(
            "vectors.dtype", f"{message.dtype} is unknown; use D_TYPE_FLOAT32 or D_TYPE_FLOAT16"
        )
    data, rows, dim = message.data, message.rows, message.dim  # each reading of `data` makes a copy
    expected = rows * dim * dtype.itemsize
    if len(data) != expected:
        raise InvalidArgument.field(
            "vectors.data", f"{len(data)} bytes; {rows} rows x {dim} dim of {dtype} need {expected}"
        )
    return np.asarray(np.ndarray((rows, dim), dtype, data), dtype=np.float32)

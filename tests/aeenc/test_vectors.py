"""Embeddings on the wire: what is packed is unpacked, and sizes that lie are refused."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from aeenc import errors, vectors
from aeenc.v1 import types_pb2


def matrix(rows: int, dim: int, dtype: str = "<f4") -> NDArray[np.floating]:
    return np.random.default_rng(0).normal(size=(rows, dim)).astype(dtype)


@pytest.mark.parametrize(("rows", "dim"), [(1, 1), (3, 384), (0, 384)])
def test_a_matrix_comes_back_bit_by_bit(rows: int, dim: int) -> None:
    sent = matrix(rows, dim)
    received = vectors.from_proto(types_pb2.Embeddings.FromString(vectors.to_proto(sent).SerializeToString()))
    assert received.dtype == np.float32
    assert received.shape == (rows, dim)
    assert received.tobytes() == sent.tobytes()


def test_float16_travels_in_half_the_bytes_and_comes_back_as_float32() -> None:
    sent = matrix(4, 8, "<f2")
    message = vectors.to_proto(sent)
    assert message.dtype == types_pb2.D_TYPE_FLOAT16
    assert len(message.data) == 4 * 8 * 2
    received = vectors.from_proto(message)
    assert received.dtype == np.float32
    assert np.array_equal(received, sent.astype(np.float32))


@pytest.mark.parametrize("dtype", ["<f8", ">f4", "<i4"])
def test_other_numbers_travel_as_little_endian_float32(dtype: str) -> None:
    sent = (matrix(2, 3) * 100).astype(dtype)
    message = vectors.to_proto(sent)
    assert message.dtype == types_pb2.D_TYPE_FLOAT32
    assert np.array_equal(vectors.from_proto(message), sent.astype("<f4"))


@pytest.mark.parametrize("view", [lambda m: m[::2], lambda m: m.T, np.asfortranarray], ids=["strided", "T", "F"])
def test_a_matrix_that_is_not_contiguous_is_sent_in_row_order(view: object) -> None:
    assert callable(view)
    sent = view(matrix(4, 6))
    assert np.array_equal(vectors.from_proto(vectors.to_proto(sent)), sent)


@pytest.mark.parametrize("shape", [(6,), (1, 2, 3), ()])
def test_an_array_that_is_no_matrix_is_refused_with_its_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"give a matrix \(n, dim\)"):
        vectors.to_proto(np.zeros(shape, np.float32))


@pytest.mark.parametrize(("rows", "dim"), [(2, 4), (3, 3), (0, 3), (2**32 - 1, 2**32 - 1)])
def test_data_of_a_wrong_size_is_refused_before_anything_is_allocated(rows: int, dim: int) -> None:
    message = vectors.to_proto(matrix(2, 3))
    message.rows, message.dim = rows, dim
    with pytest.raises(errors.InvalidArgument, match=rf"24 bytes; {rows} rows x {dim} dim of float32 need") as caught:
        vectors.from_proto(message)
    assert caught.value.violations[0].field == "vectors.data"


@pytest.mark.parametrize("dtype", [types_pb2.D_TYPE_UNSPECIFIED, 99])
def test_an_unknown_dtype_is_refused(dtype: int) -> None:
    message = vectors.to_proto(matrix(2, 3))
    message.dtype = dtype  # type: ignore[assignment]
    with pytest.raises(errors.InvalidArgument, match="use D_TYPE_FLOAT32 or D_TYPE_FLOAT16"):
        vectors.from_proto(message)

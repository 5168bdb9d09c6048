"""Arrow columns as the flat arrays that kernels walk, and back."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.arrow_bytes import binary_slices, column_of
from airflow_cdc_provider.formats.kernels import Bytes, Ints
from airflow_cdc_provider.lake.reconcile.shapes import Flat

_MOST_BYTES: Final = 2**31 - 1


def one_array(column: pa.ChunkedArray | pa.Array, type_: pa.DataType | None = None) -> Any:
    """Return a column as one array without chunks; binary columns get 64-bit offsets, to fit any size."""
    if pa.types.is_binary(column.type):
        column = column.cast(pa.large_binary())
    elif type_ is not None and column.type != type_:
        column = column.cast(type_)
    if isinstance(column, pa.ChunkedArray):
        return (
            column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [_empty(column)])
        )
    return column


def _empty(column: pa.ChunkedArray) -> Any:
    return pa.array([], column.type)


def flat(array: Any) -> Flat:
    """View a large binary array as flat arrays, its bytes without a copy; a null becomes empty."""
    data, starts, ends, valid = binary_slices(array)
    return Flat(_read_only(data), _read_only(starts), _read_only(np.where(valid, ends, starts)))


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # Kernels are compiled per type, and the type includes whether an array is writable.
    array.flags.writeable = False
    return array


def numbers(array: Any) -> npt.NDArray[Any]:
    """View a fixed-width array without nulls as a NumPy array."""
    return _read_only(array.to_numpy(zero_copy_only=False).view())


def reject_nulls(column: str, array: Any) -> None:
    """Check that a column has no nulls.

    Raises:
        CorruptInput: It has one; the error names the first row.
    """
    if array.null_count:
        row = int(array.is_null().index(True).as_py())
        raise CorruptInput(f"Contribution {row} has no {column}", expected="a value", found="null")


def large_binary(data: Bytes, offsets: Ints) -> pa.Array:
    """Build an Arrow array from flat arrays; an empty value becomes null."""
    return column_of(pa.large_binary(), data, offsets, offsets[1:] > offsets[:-1])


def to_table(columns: dict[str, Any], schema: pa.Schema) -> pa.Table:
    """Build a table of a schema; binary columns too large for Arrow's 32-bit offsets are chunked."""
    fitted = []
    for field in schema:
        column = columns[field.name]
        if pa.types.is_large_binary(column.type) and pa.types.is_binary(field.type):
            column = pa.chunked_array(_chunks(column), field.type)
        fitted.append(column)
    return pa.table(fitted, schema=schema)


def _chunks(array: Any) -> list[Any]:
    if len(array) < 2 or int(array.nbytes) <= _MOST_BYTES:
        return [array.cast(pa.binary())]
    half = len(array) // 2
    return _chunks(array.slice(0, half)) + _chunks(array.slice(half))

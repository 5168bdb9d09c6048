"""Data frames of a few rows, which go to Spark as Arrow: no Python worker has to start or to convert them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import MapType, StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame_of(spark: SparkSession, rows: Iterable[tuple[Any, ...]], schema: StructType | str) -> DataFrame:
    """Return rows as a data frame.

    Args:
        spark: The session.
        rows: Values in the order of the columns; a struct's are a tuple.
        schema: The columns, as types or in SQL.
    """
    columns = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    table = pa.Table.from_pylist([_named(row, columns) for row in rows], to_arrow_schema(columns))
    return spark.createDataFrame(table, columns)


def _named(row: tuple[Any, ...], columns: StructType) -> dict[str, Any]:
    return {
        field.name: _arrow_value(value, field.dataType) for field, value in zip(columns, row, strict=True)
    }


def _arrow_value(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, StructType):
        return _named(value, kind)
    return list(value.items()) if isinstance(kind, MapType) else value

"""Schema evolution of Iceberg tables by metadata changes only: no row is rewritten.

Allowed, at any depth: a new column or struct field, ``int`` to ``bigint``, ``float`` to ``double``, a greater
decimal precision at the same scale. A column whose source type became narrower keeps its type: values still
fit. A drift (:mod:`airflow_cdc_provider.changes.drift`) describes changes that names don't show: columns are
renamed with their values, dropped, or replaced by another column of the same name, which starts empty. Any
other change, and any in keys of maps, is rejected before the table is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.changes.drift import Drift
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.lake.iceberg_java import to_java_schema, to_spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructField, StructType


@dataclass(frozen=True)
class Addition:
    """A new column ``name`` under ``parent`` (empty at the top), right after ``after`` (empty: first)."""

    parent: str
    name: str
    type: DataType
    after: str

    def __str__(self) -> str:
        return f"added {join(self.parent, self.name)} {self.type.simpleString()}"


@dataclass(frozen=True)
class Widening:
    """A column at ``path`` whose type is widened."""

    path: str
    old: DataType
    type: DataType

    def __str__(self) -> str:
        return f"widened {self.path} from {self.old.simpleString()} to {self.type.simpleString()}"


@dataclass(frozen=True)
class Removal:
    """A column that is dropped, with its values."""

    path: str

    def __str__(self) -> str:
        return f"dropped {self.path}"


@dataclass(frozen=True)
class Renaming:
    """A column or field at ``path`` that is renamed to ``name``."""

    path: str
    name: str

    def __str__(self) -> str:
        return f"renamed {self.path} to {self.name}"


Change = Addition | Widening | Removal | Renaming


def evolve(spark: SparkSession, table: Any, schema: StructType, table_name: str, drift: Drift) -> list[str]:
    """Change a table's columns in one metadata commit, or in two if a column gets a name that another had.

    After a kill between the two, the next call makes the remaining changes.

    Args:
        spark: The session.
        table: Iceberg's table.
        schema: The target schema.
        table_name: For messages.
        drift: Changes that names don't show.

    Returns:
        Descriptions of the changes.

    Raises:
        ConfigurationError: A type changed in a way that Iceberg doesn't support.
    """
    target = to_spark_schema(spark, to_java_schema(spark, schema))  # in Iceberg's types: tinyint is int
    changes = list(difference(to_spark_schema(spark, table.schema()), target, table_name, drift))
    released = {change.path for change in changes if isinstance(change, Renaming)}
    first: list[Change] = []
    if any(isinstance(c, Addition) and join(c.parent, c.name) in released for c in changes):
        first = [c for c in changes if isinstance(c, (Removal, Renaming))]
        _commit(spark, table, first)
        table.refresh()
        changes = list(difference(to_spark_schema(spark, table.schema()), target, table_name, drift))
    if changes:
        _commit(spark, table, changes)
    return [str(change) for change in (*first, *changes)]


def _commit(spark: SparkSession, table: Any, changes: Iterable[Change]) -> None:
    update = table.updateSchema()
    for change in changes:
        if isinstance(change, Addition):
            path = join(change.parent, change.name)
            update = update.addColumn(change.parent or None, change.name, _java_type(spark, change.type))
            if change.after:
                update = update.moveAfter(path, join(change.parent, change.after))
            else:
                update = update.moveFirst(path)
        elif isinstance(change, Widening):
            update = update.updateColumn(change.path, _java_type(spark, change.type))
        elif isinstance(change, Renaming):
            update = update.renameColumn(change.path, change.name)
        else:
            update = update.deleteColumn(change.path)
    update.commit()


def difference(have: StructType, want: StructType, table_name: str, drift: Drift) -> Iterator[Change]:
    """Yield the changes that evolve ``have`` to hold the values of ``want``, removals first.

    Raises:
        ConfigurationError: Iceberg doesn't support the change.
    """
    names = want.fieldNames()
    known: dict[str, StructField] = dict(zip(names[: drift.keys], have.fields, strict=False))
    for field in have.fields[drift.keys :]:
        if field.name in drift.replaced or field.name in known or (drift.exact and field.name not in names):
            yield Removal(field.name)
        else:
            known[field.name] = field
    after = ""
    for field in want.fields:
        if field.name in known:
            old = known[field.name].name
            if old != field.name:
                yield Renaming(old, field.name)
            yield from _type_difference(known[field.name].dataType, field.dataType, table_name, old, drift)
            after = old
        else:
            yield Addition("", field.name, field.dataType, after)
            after = field.name


def _field_difference(
    have: StructType, want: StructType, table_name: str, path: str, drift: Drift
) -> Iterator[Change]:
    if drift.exact:
        pairs = dict(zip(want.fieldNames(), have.fields, strict=False))
    else:
        pairs = {field.name: field for field in have.fields}
    after = ""
    for field in want.fields:
        old = pairs.get(field.name)
        if old is None:
            yield Addition(path, field.name, field.dataType, after)
        else:
            old_path = join(path, old.name)
            if old.name != field.name:
                yield Renaming(old_path, field.name)
            yield from _type_difference(old.dataType, field.dataType, table_name, old_path, drift)
        after = old.name if old else field.name


def _type_difference(
    have: DataType, want: DataType, table_name: str, path: str, drift: Drift
) -> Iterator[Change]:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(have, StructType) and isinstance(want, StructType):
        yield from _field_difference(have, want, table_name, path, drift)
    elif isinstance(have, ArrayType) and isinstance(want, ArrayType):
        element = join(path, "element")
        yield from _type_difference(have.elementType, want.elementType, table_name, element, drift)
    elif (
        isinstance(have, MapType)
        and isinstance(want, MapType)
        and not [*_type_difference(have.keyType, want.keyType, table_name, join(path, "key"), drift)]
    ):
        yield from _type_difference(have.valueType, want.valueType, table_name, join(path, "value"), drift)
    elif have == want or _holds(have, want):
        return
    elif _holds(want, have):
        yield Widening(path, have, want)
    else:
        raise ConfigurationError(
            f"column {path} of {table_name} can't change its type",
            expected=f"{have.simpleString()}, or a wider type of its kind",
            found=want.simpleString(),
            remedy="drop the table and take a new snapshot of its source table",
        )


def _holds(wide: DataType, narrow: DataType) -> bool:
    """Return whether Iceberg can promote ``narrow`` to ``wide``."""
    from pyspark.sql.types import DecimalType, DoubleType, FloatType, IntegerType, LongType

    if isinstance(wide, DecimalType) and isinstance(narrow, DecimalType):
        return wide.scale == narrow.scale and wide.precision >= narrow.precision
    pairs = ((LongType, IntegerType), (DoubleType, FloatType))
    return any(isinstance(wide, w) and isinstance(narrow, n) for w, n in pairs)


def join(parent: str, name: str) -> str:
    """Join a path and a name in Iceberg's notation of nested columns."""
    return f"{parent}.{name}" if parent else name


def _java_type(spark: SparkSession, data_type: DataType) -> Any:
    from pyspark.sql.types import StructField, StructType

    return to_java_schema(spark, StructType([StructField("c", data_type)])).columns()[0].type()

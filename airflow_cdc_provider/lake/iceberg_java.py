"""Access to Iceberg's Java API from Python: names, snapshots, errors and schemas.

All calls go through py4j and take about a millisecond; none starts a Spark job.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaClass, JavaMember
from py4j.protocol import STATIC_PREFIX, Py4JJavaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


_SCHEMA_UTIL = "org.apache.iceberg.spark.SparkSchemaUtil"


def quote(*parts: str) -> str:
    """Quote the parts of a name for Spark SQL and join them by dots."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a class, for its static methods and constructors.

    ``spark._jvm.org.apache...`` would make the JVM search all of Spark's jars for a class at each dot.
    """
    return JavaClass(name, spark._jvm._gateway_client)


def call_static(spark: SparkSession, class_name: str, method: str, *arguments: Any) -> Any:
    """Call a static method that has the name of an instance method, which py4j would find instead."""
    call = JavaMember(method, None, STATIC_PREFIX + class_name, spark._jvm._gateway_client)
    return call(*arguments)


def lineage(table: Any, snapshot: Any) -> Iterator[Any]:
    """Yield a snapshot and its unexpired ancestors, newest first."""
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parentId()
        snapshot = None if parent is None else table.snapshot(parent)


def own_properties(spark: SparkSession, snapshot: Any) -> dict[str, str]:
    """Return a snapshot's ``cdc.*`` properties."""
    text = java_class(spark, "org.apache.iceberg.SnapshotParser").toJson(snapshot)
    return {k: v for k, v in json.loads(text).get("summary", {}).items() if k.startswith("cdc.")}


def throwables(error: BaseException) -> Iterator[Any]:
    """Yield Java's exception behind an error of py4j or PySpark, and its causes."""
    throwable = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    while throwable is not None:
        yield throwable
        throwable = throwable.getCause()


def java_error(error: BaseException, *names: str) -> bool:
    """Return whether the error or a cause of it has one of these Java classes (simple names)."""
    return any(throwable.getClass().getSimpleName() in names for throwable in throwables(error))


def to_spark_schema(spark: SparkSession, java_schema: Any) -> StructType:
    """Convert an Iceberg schema to a Spark schema."""
    from pyspark.sql.types import StructType

    converted = java_class(spark, _SCHEMA_UTIL).convert(java_schema)
    return StructType.fromJson(json.loads(converted.json()))


def to_java_schema(spark: SparkSession, schema: StructType) -> Any:
    """Convert a Spark schema to an Iceberg schema."""
    java_struct = java_class(spark, "org.apache.spark.sql.types.DataType").fromJson(schema.json())
    return java_class(spark, _SCHEMA_UTIL).convert(java_struct)

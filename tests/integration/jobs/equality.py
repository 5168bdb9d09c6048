"""Mirrors compared with their source by other means than the package: drivers and Python values."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import bson
from bson import json_util
from bson.raw_bson import RawBSONDocument

from server_kit.cassandra import table_definition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MIRROR_COLUMN = "_cdc"


def assert_mirror_equals_table(spark: SparkSession, session: Any, mirror: str, table: str) -> int:
    """Compare ``SELECT *`` of a Cassandra table with its mirror; return the number of rows.

    A static columns table is compared with ``SELECT DISTINCT`` of them, and joined with the mirror.
    """
    meta = table_definition(session, table)
    frame = spark.table(f"lake.{mirror}").drop(MIRROR_COLUMN)
    source = list(session.execute(f"SELECT * FROM {table}", timeout=60))
    if spark.catalog.tableExists(f"lake.{mirror}__static_columns"):
        partition = [c.name for c in meta.partition_key]
        names = [c.name for c in meta.columns.values() if c.is_static]
        static_rows = spark.table(f"lake.{mirror}__static_columns").drop(MIRROR_COLUMN)
        assert sorted(static_rows.columns) == sorted([*partition, *names])
        assert not set(names) & set(frame.columns)
        quoted = ", ".join(f'"{column}"' for column in (*partition, *names))
        found = session.execute(f"SELECT DISTINCT {quoted} FROM {table}", timeout=60)
        valued = [row for row in found if any(getattr(row, name) is not None for name in names)]
        _assert_same_rows(valued, static_rows, partition, f"{mirror}__static_columns")
        assert not frame.where(" OR ".join(f"{c.name} IS NULL" for c in meta.clustering_key)).count()
        frame = frame.join(static_rows, partition, "full_outer")
    return _assert_same_rows(source, frame, [c.name for c in meta.primary_key], mirror)


def _assert_same_rows(source: Sequence[Any], frame: DataFrame, keys: Sequence[str], mirror: str) -> int:
    rows = [row.asDict(recursive=False) for row in frame.collect()]
    by_key = {tuple(_key(row[k]) for k in keys): row for row in rows}
    assert len(by_key) == len(rows), f"{mirror} holds a row twice"
    expected = {tuple(_key(getattr(row, k)) for k in keys): row for row in source}
    absent, excess = sorted(map(repr, expected.keys() - by_key)), sorted(map(repr, by_key.keys() - expected))
    assert not (absent or excess), f"{mirror} lacks {absent[:20]} and has {excess[:20]} too many"
    for key, row in expected.items():
        for column in row._fields:
            found = by_key[key][column]
            assert same(getattr(row, column), found), (
                f"{mirror} {key}: {column} is {getattr(row, column)!r} at the source, here {found!r}"
            )
    return len(rows)


def _key(value: Any) -> Any:
    return str(value) if isinstance(value, uuid.UUID) else value


def same(source: Any, mirror: Any) -> bool:
    """Return whether a driver's value and a mirror's value are the same value."""
    if source is None or mirror is None:
        return source is None and mirror is None
    if isinstance(source, bool | str | int) and isinstance(mirror, bool | int):
        return bool(source == mirror)
    if isinstance(source, float):
        return (math.isnan(source) and math.isnan(mirror)) or (
            source == mirror and math.copysign(1, source) == math.copysign(1, mirror)
        )
    if isinstance(source, Decimal):
        return source.as_tuple() == Decimal(mirror).as_tuple()
    if isinstance(source, int) and isinstance(mirror, str):
        return source == int(mirror)
    if isinstance(source, uuid.UUID):
        return str(source) == mirror
    if isinstance(source, dt.datetime):
        return source.replace(tzinfo=dt.UTC) == mirror.astimezone(dt.UTC)
    if isinstance(source, bytes):
        return source == bytes(mirror)
    if isinstance(source, str):
        return bool(source == mirror)
    if isinstance(source, Mapping):
        return _same_all(source.keys(), mirror.keys()) and _same_all(source.values(), mirror.values())
    if isinstance(source, Iterable):
        return _same_all(source, mirror)
    raise AssertionError(f"no rule for {type(source)}")


def _same_all(source: Iterable[Any], mirror: Iterable[Any]) -> bool:
    left, right = list(source), list(mirror)
    return len(left) == len(right) and all(map(same, left, right))


def assert_mirror_equals_collection(spark: SparkSession, collection: Any, mirror: str) -> int:
    """Compare the documents of a MongoDB collection with its mirror, byte by byte; return their number."""
    raw = collection.with_options(codec_options=bson.CodecOptions(document_class=RawBSONDocument))
    expected = sorted(document.raw for document in raw.find())
    rows = spark.table(f"lake.{mirror}").select("document").collect()
    options = json_util.JSONOptions(
        json_mode=json_util.JSONMode.CANONICAL, document_class=bson.SON, tz_aware=True
    )
    found = sorted(bson.encode(json_util.loads(row[0], json_options=options)) for row in rows)
    assert found == expected, (
        f"{len(found)} documents in the mirror, {len(expected)} in the collection; first difference: "
        f"{next((pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]), None)}"
    )
    return len(rows)

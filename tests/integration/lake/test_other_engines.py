"""Mirrors with deletions, evolved columns and several types, read by other engines."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable
from pyspark.sql.pandas.types import to_arrow_schema as spark_to_arrow
from pyspark.sql.types import StructType

from airflow_cdc_provider.changes.column_names import column_names, distinct_fields
from airflow_cdc_provider.lake.mirror import spark_schema
from tests.integration.lake.conftest import MakeTable

pytestmark = pytest.mark.integration

DDL = (
    "id bigint, name string, price decimal(20,4), at timestamp, day date, raw binary, tags array<string>, "
    "attributes map<string,int>, small int, _cdc struct<id: binary, state: binary>"
)


@dataclass(frozen=True)
class Mirror:
    """A mirror on disk and the ids that it has to show."""

    metadata: str
    ids: list[int]
    evolved: int


def people(spark: Any, begin: int, end: int) -> Any:
    return spark.range(begin, end).selectExpr(
        "id",
        "concat('n', id) name",
        "cast(id * 1.5 as decimal(20,4)) price",
        "timestamp'2026-01-01 00:00:00.123456' + make_interval(0, 0, 0, 0, 0, 0, id) at",
        "date'2026-01-01' day",
        "cast(cast(id as string) as binary) raw",
        "array('x', cast(id as string)) tags",
        "map('k', cast(id as int)) attributes",
        "cast(id as int) small",
        "named_struct('id', cast(cast(id as string) as binary), 'state', cast(null as binary)) _cdc",
    )


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def mirror(request: pytest.FixtureRequest, make_table: MakeTable) -> Mirror:
    """1000 rows; 150 deleted and 100 of them written again; columns widened and added; 65 more deleted."""
    table = make_table(DDL, format_version=request.param)
    spark = table.spark
    head = table.commit(table.head(), append=people(spark, 0, 1000), properties={"cdc.n": "1"})
    keys = people(spark, 100, 250).select("_cdc.id")
    head = table.commit(
        head, delete_keys=("_cdc.id", keys), append=people(spark, 100, 200), properties={"cdc.n": "2"}
    )
    table.evolve(StructType.fromDDL("small bigint, extra string"))
    added = people(spark, 300, 350).selectExpr("*", "'new' extra")
    keys = people(spark, 300, 360).select("_cdc.id")
    table.commit(
        head, delete="id < 5", delete_keys=("_cdc.id", keys), append=added, properties={"cdc.n": "3"}
    )
    location = table.load().operations().current().metadataFileLocation()
    gone = {*range(5), *range(200, 250), *range(350, 360)}
    return Mirror(re.sub("^file:(//)?", "", location), [i for i in range(1000) if i not in gone], evolved=50)


def test_pyiceberg_reads_a_mirror(mirror: Mirror) -> None:
    table = StaticTable.from_metadata(mirror.metadata)
    found = table.scan().to_arrow().sort_by("id")
    assert found["id"].to_pylist() == mirror.ids
    assert found["extra"].null_count == len(mirror.ids) - mirror.evolved
    row = table.scan(row_filter="id = 7").to_arrow().to_pylist()
    assert row == [
        {
            "id": 7,
            "name": "n7",
            "price": Decimal("10.5000"),
            "at": datetime(2026, 1, 1, 0, 0, 7, 123456, tzinfo=UTC),
            "day": date(2026, 1, 1),
            "raw": b"7",
            "tags": ["x", "7"],
            "attributes": [("k", 7)],
            "small": 7,
            "_cdc": {"id": b"7", "state": None},
            "extra": None,
        }
    ]


def test_pyiceberg_finds_no_deleted_row_by_a_filter(mirror: Mirror) -> None:
    scan = StaticTable.from_metadata(mirror.metadata).scan(
        row_filter="id >= 90 and id < 260", selected_fields=("id",)
    )
    assert sorted(scan.to_arrow()["id"].to_pylist()) == [i for i in mirror.ids if 90 <= i < 260]


@pytest.mark.parametrize("reader", ["native", "pyiceberg"])
def test_polars_reads_a_mirror(mirror: Mirror, reader: Any) -> None:
    # polars plans by PyIceberg where its own planner is not installed, and says that it's slower
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = polars.scan_iceberg(mirror.metadata, reader_override=reader)
        assert rows.select("id").collect()["id"].sort().to_list() == mirror.ids
        part = (
            rows.filter(polars.col("id").is_between(90, 259)).select("id", "price", "at", "extra").collect()
        )
    assert sorted(part["id"].to_list()) == [i for i in mirror.ids if 90 <= i < 260]
    assert part.filter(polars.col("id") == 101).rows() == [
        (101, Decimal("151.5000"), datetime(2026, 1, 1, 0, 1, 41, 123456, tzinfo=UTC), None)
    ]


def test_the_newest_metadata_file_is_found_from_the_hint(mirror: Mirror) -> None:
    """The way that docs/reading-mirrors.md shows for Hadoop catalogs."""
    folder = Path(mirror.metadata).parent
    version = (folder / "version-hint.text").read_text().strip()
    assert Path(mirror.metadata) == folder / f"v{version}.metadata.json"


def test_engines_read_columns_of_any_name(make_table: MakeTable) -> None:
    """Names that SQL, Iceberg's paths, file schemas or engines without case can't take as they are."""
    names = [
        "first name",
        "zip-code",
        "a",
        "a.b",
        "A",
        "ä",
        "Ä",
        "a_x2Eb",
        "1a",
        "_1a",
        "_file",
        "_row_id",
        "",
    ]
    names += [
        "s`q",
        's"q',
        "s'q",
        "a,b",
        "a\nb",
        "select",
        "\U0001f600",
        "key",
        "element",
        "İ",
        "i",
        "x:y",
        "{}",
        "\\",
    ]
    struct = pa.struct([pa.field(name, pa.int32()) for name in distinct_fields(names)])
    columns = {name: pa.int32() for name in column_names(names).values()}
    early, late = dict(list(columns.items())[::2]), dict(list(columns.items())[1::2])
    nested = {"s": struct, "l": pa.list_(pa.field("element", struct)), "m": pa.map_(pa.string(), struct)}
    table = make_table()
    table.evolve(spark_schema(pa.schema([("id", pa.int64()), *early.items(), *nested.items()])))
    table.evolve(
        spark_schema(pa.schema([("id", pa.int64()), *early.items(), *late.items(), *nested.items()]))
    )
    numbers = {name: number for number, name in enumerate([*early, *late])}
    whole = {field.name: number for number, field in enumerate(struct)}
    row = {"id": 1, **numbers, "s": whole, "l": [whole], "m": {"k": whole}}
    rows = table.spark.createDataFrame(
        pa.Table.from_pylist([{**row, "m": [("k", whole)]}], schema=spark_to_arrow(table.schema()))
    )
    table.commit(table.head(), append=rows, properties={"cdc.n": "1"})
    assert [found.asDict(recursive=True) for found in table.read().collect()] == [row]
    location = table.load().operations().current().metadataFileLocation()
    scan = StaticTable.from_metadata(re.sub("^file:(//)?", "", location)).scan()
    assert scan.to_arrow().to_pylist() == [{**row, "m": [("k", whole)]}]
    by_duckdb = scan.to_duckdb("mirror")
    assert isinstance(by_duckdb, duckdb.DuckDBPyConnection)
    for name, number in numbers.items():
        quoted = name.replace('"', '""')
        assert by_duckdb.sql(f'SELECT "{quoted}" FROM mirror').fetchall() == [(number,)]

"""The verify stage: compare mirrors with their source, row by row.

The snapshot reader reads the source again. The same code as in a merge decodes and projects its rows, without
any stored state, so a wrong merge shows as a difference. Writes to the source during the reading are
differences too: verify after a sync, or while nothing writes to the source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException

from airflow_cdc_provider.changes.worker import map_in_arrow
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.arrow_bytes import without_first_bytes
from airflow_cdc_provider.jobs.comparing.differences import (
    OUTCOME_DDL,
    Sides,
    compared_tables,
    judged,
    outcome_of,
    table_result,
    total,
)
from airflow_cdc_provider.jobs.comparing.mirrors import existing_mirror
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.merging.decode import decode
from airflow_cdc_provider.jobs.reporting.report import build_result
from airflow_cdc_provider.jobs.spark.failures import described
from airflow_cdc_provider.jobs.spark.read import read_partitions
from airflow_cdc_provider.jobs.spec import JobResult, TableResult
from airflow_cdc_provider.lake.compare import Comparison, compare_tables
from airflow_cdc_provider.lake.merge_kernel import LIVE, LIVE_STATIC, PENDING, MergeKernel
from airflow_cdc_provider.lake.mirror import CDC_COLUMN, ID_KEY_BEGINS, spark_schema
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Families = Callable[[pa.Array], pa.Array | None]

_FAMILY = "_cdc_family"
_ROWS_PER_PARTITION = 50_000
_SIDES = Sides("source", "mirror")


def verify(run: Run) -> JobResult:
    """Compare the mirrors of the job's tables; differences make the result not ok.

    A table that has no mirror yet, or that can't be compared, doesn't stop the others.

    Raises:
        ConfigurationError: The source's tables can't be read.
    """
    if run.source.feed_is_complete:
        raise ConfigurationError(
            f"mirrors of source {run.job.connector.type} can't be verified: its feed has all rows, and their "
            "tables are never read",
            remedy="compare them with the database by other means",
        )
    results = compared_tables(run, partial(_verify_table, run.stores, run.source))
    return judged(build_result(run, tables=results), results, _SIDES)


def _verify_table(stores: Stores, source: Source, table: str) -> TableResult:
    started = time.monotonic()
    mirror = existing_mirror(stores, table)
    state = mirror.state()
    codec = source.codec(table, state.memory)
    mirror.require_layout(codec.static_columns, codec.drift.replaced)
    own, in_static_table = mirror.layout(codec.mirror_schema(), codec.static_columns)
    kernel = MergeKernel(
        model=codec.model,
        rules=codec.rules,
        columns=codec.mirror_schema(),
        project=codec.project,
        now_seconds=int(time.time()),
        static_columns_table=bool(len(in_static_table)),
    )
    plan = source.plan_snapshot(table)
    rows = read_partitions(stores.spark, source.snapshot_reader(), plan.ranges)
    decoded = decode(rows, {table: codec}, {}).where("fault is null").drop("fault", "source_table")
    partitions = max((plan.estimated_rows or 0) // _ROWS_PER_PARTITION + 1, 1)
    shuffled = decoded.selectExpr(
        "*", f"cast({PENDING} as tinyint) _from", "cast(null as bigint) _expires_at"
    ).repartition(partitions, "key")
    merged = map_in_arrow(shuffled, kernel, spark_schema(kernel.output_schema))
    live = merged.where(f"_cdc_kind IN ({LIVE}, {LIVE_STATIC})")
    try:
        mirrored = _with_id(mirror.table.read(state.head), own)
        if state.static_columns is not None:
            # No row has the id of static columns, so both can be compared together.
            static_rows = _with_id(mirror.static_columns.read(state.static_columns.head), in_static_table)
            mirrored = mirrored.unionByName(static_rows, allowMissingColumns=True)
        found = _compare(live, mirrored, kernel.columns, partitions, codec.families)
    except AnalysisException as error:
        raise ConfigurationError(
            f"{table} has other columns than its mirror",
            expected="the columns of the last merge",
            found=described(error),
            remedy="run a sync, then verify; if it fails for this table, its error says what to do",
        ) from error
    return table_result(
        table,
        found,
        _SIDES,
        merged_through=state.merged_through,
        mirror_rows=mirror.row_count(state),
        seconds=time.monotonic() - started,
    )


def _with_id(rows: DataFrame, columns: pa.Schema) -> DataFrame:
    quoted = ["`" + n.replace("`", "``") + "`" for n in columns.names]
    return rows.selectExpr(f"{CDC_COLUMN}.id _cdc_id", *quoted)


def _compare(
    source: DataFrame, mirror: DataFrame, columns: pa.Schema, partitions: int, families: Families
) -> Comparison:
    """Compare rows of the source, as the kernel returns them, with rows of the mirror, by ``_cdc_id``.

    A row that the mirror has under another id of its family is compared with that one, if each side has one.
    """
    from pyspark.sql.functions import lit
    from pyspark.sql.types import BinaryType, StructField, StructType

    both = (
        _with_id(source, columns)
        .withColumn("_cdc_source", lit(True))
        .unionByName(mirror.withColumn("_cdc_source", lit(False)))
    )
    by = "_cdc_id"
    if families(pa.array([], pa.binary())) is not None:
        by = _FAMILY
        wider = StructType([*both.schema.fields, StructField(_FAMILY, BinaryType())])
        both = map_in_arrow(both, _WithFamilies(families), wider)
    shuffled = both.repartition(partitions, by)
    return total(map_in_arrow(shuffled, _Compare(columns), OUTCOME_DDL))


@dataclass(frozen=True)
class _WithFamilies:
    families: Families

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = without_first_bytes(batch.column("_cdc_id"), ID_KEY_BEGINS)
            yield batch.append_column(_FAMILY, self.families(keys))


def _under_ids_of(source: pa.Table, mirror: pa.Table) -> pa.Table:
    """Return the mirror's rows, those whose id the source doesn't have under the id of their family's row."""
    missing = source.filter(pc.invert(pc.is_in(source["_cdc_id"], mirror["_cdc_id"])))
    left = pc.invert(pc.is_in(mirror["_cdc_id"], source["_cdc_id"]))
    singletons = [_singletons(table[_FAMILY]) for table in (missing, mirror.filter(left))]
    index = pc.index_in(mirror[_FAMILY], missing[_FAMILY].combine_chunks())
    inherited = pc.and_(left, pc.and_(*(pc.is_in(mirror[_FAMILY], one) for one in singletons)))
    ids = pc.if_else(
        inherited, missing["_cdc_id"].combine_chunks().take(index.combine_chunks()), mirror["_cdc_id"]
    )
    return mirror.set_column(mirror.column_names.index("_cdc_id"), "_cdc_id", ids)


def _singletons(families: pa.ChunkedArray) -> pa.Array:
    """Return the families that occur once."""
    counted = pc.value_counts(families.combine_chunks())
    return counted.field("values").filter(pc.equal(counted.field("counts"), 1))


@dataclass(frozen=True)
class _Compare:
    columns: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [batch for batch in batches if batch.num_rows]
        if not found:
            return
        table = pa.Table.from_batches(found)
        own = ["_cdc_id", *self.columns.names]
        source = table.filter(table["_cdc_source"])
        mirror = table.filter(pc.invert(table["_cdc_source"]))
        if _FAMILY in table.column_names:
            mirror = _under_ids_of(source, mirror)
        yield outcome_of(compare_tables(source.select(own), mirror.select(own), "_cdc_id"))

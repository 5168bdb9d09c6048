"""The check_lake stage: whether the lake can be written and read, and its mirrors are as declared."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

from pyspark.sql.types import StructType

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, listed
from airflow_cdc_provider.jobs.capturing.reselected import reselected
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.context.tables import selected_tables
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.spark.failures import described
from airflow_cdc_provider.jobs.spec import JobResult
from airflow_cdc_provider.lake.iceberg import IcebergLake
from airflow_cdc_provider.lake.mirror import CDC_COLUMN, require_distinct_names
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import Source
from airflow_cdc_provider.sources.findings import grouped


def check_lake(run: Run) -> JobResult:
    """Commit a row to a table of its own, read it and drop the table; compare mirrors with the declaration.

    The findings also name the tables that are no longer selected, and those that the next capture finds
    selected again.

    Raises:
        ConfigurationError: The namespace can't be written or read.
    """
    _write_and_read(run.stores.lake, run.job.connector.namespace)
    tables = selected_tables(run.job, run.stores, run.source)
    findings = grouped(said for table in tables for said in _of_table(run.stores, run.source, table))
    state = run.stores.changes.state()
    progress = Progress.from_offset(state.offset)
    if left_out := sorted(table for table in progress.snapshots if not run.job.connector.selects(table)):
        findings.append(
            f"{listed(left_out)}: captured before, no longer selected; mirrors stay as they are, and a table "
            "that is selected again is read in full"
        )
    findings += grouped(reselected(run.stores, run.source, progress, state).items())
    return JobResult(ok=True, findings=tuple(findings))


def _write_and_read(lake: IcebergLake, namespace: str) -> None:
    table = lake.table(f"{namespace}.cdc_check_{uuid.uuid4().hex[:12]}")
    try:
        table.create(StructType.fromDDL("id bigint"))
        table.commit(table.head(), append=lake.spark.range(1), properties={"cdc.check": "1"})
        found = table.read().count()
        table.drop()
    except Exception as error:
        with contextlib.suppress(Exception):  # the first error is the one to report
            table.drop()
        raise ConfigurationError(
            f"tables of {lake.catalog}.{namespace} can't be created, written, read and dropped",
            found=described(error),
            remedy="check the catalog's properties, and the rights on the catalog and the warehouse",
        ) from error
    if found != 1:
        raise ConfigurationError(
            f"a commit to {lake.catalog}.{namespace} can't be read", expected="1 row", found=f"{found} rows"
        )


def _of_table(stores: Stores, source: Source, table: str) -> Iterator[tuple[str, str]]:
    mirror, declared = stores.mirror(table), stores.lake.format_version
    if mirror.table.exists() and (version := mirror.table.format_version()) != declared:
        yield (
            mirror.name,
            f"has version {version} of the format, lake.format_version is {declared}: tables keep the "
            "version that they were created with",
        )
    try:
        codec = source.codec(table, mirror.state().memory)
        require_distinct_names(mirror.name, codec.mirror_schema())
    except CdcError as error:
        yield f"{table}:", str(error)
        return
    kafka = stores.connector.publish.kafka
    has_events = kafka.enabled and kafka.after_merge and codec.model == "row" and mirror.table.exists()
    if has_events and mirror.table.read().where(f"{CDC_COLUMN}.state IS NULL").limit(1).count():
        yield (
            mirror.name,
            "has rows without the source's own bytes, of an earlier version: they have no events until they "
            "change; take a new snapshot",
        )

"""The source tables of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.context.job import Job, log
from airflow_cdc_provider.jobs.spark.failures import of_one_table, or_failure
from airflow_cdc_provider.jobs.spec import TableResult
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import Source
from airflow_cdc_provider.sources.schema_history import learn_schema, require_tables


def selected_tables(job: Job, stores: Stores, source: Source) -> list[str]:
    """List the tables that a job is for, without those that :func:`refused_tables` returns.

    Raises:
        ConfigurationError: The spec names a table that the source doesn't have or the declaration excludes.
    """
    learn_schema(source, stores.changes)
    known = source.tables()
    require_tables(known, job.spec.tables, job.connector.name)
    refused = _shared_names(job, stores, known)
    return [table for table in job.spec.tables or known if table not in refused]


def refused_tables(job: Job, stores: Stores, source: Source) -> list[TableResult]:
    """Return the job's tables whose mirrors would have a name that another lake table has, with the error.

    Their changes are captured and stay pending.
    """
    refused = _shared_names(job, stores, source.tables())
    return [
        of_one_table(TableResult(table), error)
        for table, error in refused.items()
        if table in job.spec.tables or not job.spec.tables
    ]


def _shared_names(job: Job, stores: Stores, tables: Sequence[str]) -> Mapping[str, ConfigurationError]:
    def has_mirror(table: str) -> bool:
        return or_failure(TableResult(table), stores.mirror(table).is_owned) is True

    return job.connector.shared_names(tables, has_mirror)


def require_within_guardrail(connector: Connector, changes: ChangesTable, source: Source) -> None:
    """Enforce the declared limit on the number of tables.

    Raises:
        ConfigurationError: There are more tables, and the declared action is to fail.
    """
    guardrail = connector.guardrail
    if not guardrail.max_tables:
        return
    learn_schema(source, changes)
    text = connector.guardrail_message(source.tables())
    if text and guardrail.action == "fail":
        raise ConfigurationError(
            text, remedy="check tables and exclude_tables, or raise the limit; nothing was captured"
        )
    if text:
        log.warning("%s: %s", connector.name, text)

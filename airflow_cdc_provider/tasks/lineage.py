"""Lineage of a run: the tables that it read and wrote, by OpenLineage's naming.

A source table has the namespace ``<type>://<host>:<port>``, of the first contact point, and the name
``keyspace.table`` or ``database.collection``. A lake table has its catalog as namespace, and the name
``namespace.table``. The catalog is the declaration's ``catalog_options.uri`` (``thrift`` becomes ``hive``),
else its ``warehouse``; ``iceberg://<catalog>`` if the catalog is part of Spark's own configuration. No name
contains a login.

Airflow's OpenLineage provider calls an operator's ``get_openlineage_facets_on_complete`` when its task has
ended, successfully or not. Only then does this module need the provider.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.jobs.spec import JobResult

_SCHEMES: Final = {"thrift": "hive", "": "file"}


@dataclass(frozen=True)
class Dataset:
    """A table that a run read or wrote.

    Args:
        namespace: The server or the catalog.
        name: The table there.
        rows: The number of rows written to it; None for a table that was read.
    """

    namespace: str
    name: str
    rows: int | None = None


@dataclass(frozen=True)
class Lineage:
    """The tables that a run read and wrote."""

    inputs: tuple[Dataset, ...] = ()
    outputs: tuple[Dataset, ...] = ()


def lineage_of(
    connector: Connector,
    connection: Mapping[str, Any],
    result: JobResult,
    *,
    captures: bool,
    changes_mirrors: bool,
) -> Lineage:
    """Return the tables that a stage read and wrote.

    Args:
        connector: Its connector.
        connection: The source's connection; empty if there is none.
        result: Its result; failed tables are omitted.
        captures: Whether it reads the source's tables and appends to the changes table; else it reads the
            changes table.
        changes_mirrors: Whether it writes mirrors.
    """
    source, lake = source_namespace(connector, connection), catalog_namespace(connector)
    merged = [table for table in result.tables if not table.error]
    mirrors = (
        [Dataset(lake, connector.mirror_table(table.table), table.rows_written) for table in merged]
        if changes_mirrors
        else []
    )
    if not captures:
        return Lineage((Dataset(lake, connector.changes_table),) if mirrors else (), tuple(mirrors))
    tables = sorted({*result.selected, *(table.table for table in merged)})
    appended = result.changes + (result.snapshot.rows if result.snapshot else 0)
    changes = Dataset(lake, connector.changes_table, appended)
    return Lineage(tuple(Dataset(source, table) for table in tables), (changes, *mirrors))


def source_namespace(connector: Connector, connection: Mapping[str, Any]) -> str:
    """Return the source's namespace; a recording has its connector's name."""
    extra = connection.get("extra", {})
    if brokers := str(extra.get("bootstrap.servers") or ""):
        return f"kafka://{brokers.partition(',')[0].strip()}"
    host = str(extra.get("secret_uri") or connection.get("host") or "")
    if not host:
        return f"{connector.type}://{connector.name}"
    first = _authority(host).split(",")[0].strip()
    port = connection.get("port")
    named = first.rpartition(":")[2].isdigit() and (first.count(":") == 1 or "]:" in first)
    address = f"[{first}]" if first.count(":") > 1 and not first.startswith("[") else first
    return f"{connector.type}://{address if named or not port else f'{address}:{port}'}"


def catalog_namespace(connector: Connector) -> str:
    """Return the namespace of the lake's tables."""
    options = connector.lake.catalog_options
    address = options.get("uri") or options.get("warehouse")
    if not address:
        return f"iceberg://{connector.lake.catalog}"
    parts = urlsplit(address.removeprefix("jdbc:"))
    scheme = _SCHEMES.get(parts.scheme, parts.scheme)
    return f"{scheme}://{_authority(address)}{parts.path}".rstrip("/")


def as_openlineage(lineage: Lineage) -> Any:
    """Return a lineage in the form of Airflow's OpenLineage provider.

    Raises:
        ImportError: The provider isn't installed, so it doesn't call this.
    """
    from airflow.providers.common.compat.openlineage.facet import (
        InputDataset,
        OutputDataset,
        OutputStatisticsOutputDatasetFacet,
    )
    from airflow.providers.openlineage.extractors import OperatorLineage

    return OperatorLineage(
        inputs=[InputDataset(namespace=one.namespace, name=one.name) for one in lineage.inputs],
        outputs=[
            OutputDataset(
                namespace=one.namespace,
                name=one.name,
                outputFacets={"outputStatistics": OutputStatisticsOutputDatasetFacet(rowCount=one.rows)},
            )
            for one in lineage.outputs
        ],
    )


def _authority(address: str) -> str:
    """Return hosts and ports without a login, from an address or a list of hosts."""
    if "://" not in address:
        return "" if address.startswith("/") else address
    return urlsplit(address.removeprefix("jdbc:")).netloc.rpartition("@")[2]

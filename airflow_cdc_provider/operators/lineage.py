"""Lineage of a run: which tables it read and which it wrote, in OpenLineage's names.

A table of the source is ``<type>://<host>:<port>`` and ``keyspace.table`` or ``database.collection``; of
several contact points the first one names it. A table of the lake is its catalog and ``namespace.table``. The
catalog is the one that the declaration's ``catalog_options`` tell: its ``uri`` (``thrift`` becomes ``hive``),
else its ``warehouse``; ``iceberg://<catalog>`` where they stand in Spark's own configuration. No name has a
login.

Airflow's OpenLineage provider asks an operator by ``get_openlineage_facets_on_complete`` when its task has
ended, well or not. Only then this module needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.jobs.spec import JobResult

_DEFAULT_PORTS: Final = {"cassandra": 9042, "mongodb": 27017}
_SCHEMES: Final = {"thrift": "hive", "": "file"}


@dataclass(frozen=True)
class Dataset:
    """A table that a run read or wrote.

    Args:
        namespace: The server or the catalog.
        name: The table there.
        rows: How many rows were written to it; None for one that was read.
    """

    namespace: str
    name: str
    rows: int | None = None


@dataclass(frozen=True)
class Lineage:
    """What a run read and wrote."""

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
    """Return what a stage read and wrote.

    Args:
        connector: Its connector.
        connection: The source's connection, empty if there is none.
        result: What it did; a table that failed is left out.
        captures: Whether it reads the source's tables and appends to the changes table; else it reads that.
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
    """Return the source's namespace; that of a recording is named by its connector."""
    extra = connection.get("extra", {})
    if brokers := str(extra.get("bootstrap.servers") or ""):
        return f"kafka://{brokers.partition(',')[0].strip()}"
    host = str(extra.get("uri") or connection.get("host") or "")
    if not host:
        return f"{connector.type}://{connector.name}"
    first = _authority(host).split(",")[0].strip()
    port = connection.get("port") or _DEFAULT_PORTS[connector.type]
    named = first.rpartition(":")[2].isdigit() and (first.count(":") == 1 or "]:" in first)
    address = f"[{first}]" if first.count(":") > 1 and not first.startswith("[") else first
    return f"{connector.type}://{address if named else f'{address}:{port}'}"


def catalog_namespace(connector: Connector) -> str:
    """Return the namespace of the lake's tables."""
    options = connector.lake.catalog_options
    place = options.get("uri") or options.get("warehouse")
    if not place:
        return f"iceberg://{connector.lake.catalog}"
    parts = urlsplit(place.removeprefix("jdbc:"))
    scheme = _SCHEMES.get(parts.scheme, parts.scheme)
    return f"{scheme}://{_authority(place)}{parts.path}".rstrip("/")


def as_openlineage(lineage: Lineage) -> Any:
    """Return a lineage as what Airflow's OpenLineage provider takes.

    Raises:
        ImportError: The provider isn't installed; then nobody asks.
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


def _authority(place: str) -> str:
    """Return hosts and ports without a login, of an address or of hosts alone."""
    if "://" not in place:
        return "" if place.startswith("/") else place
    return urlsplit(place.removeprefix("jdbc:")).netloc.rpartition("@")[2]

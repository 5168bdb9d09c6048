"""Lineage of a run: the tables that it read and wrote, by OpenLineage's naming.

A source table has the namespace ``<type>://<host>:<port>``, of the first contact point, and the name
``keyspace.table`` or ``database.collection``. A lake table has its catalog as namespace, and the name
``namespace.table``. The catalog is the declaration's ``catalog_options.uri`` (``thrift`` becomes ``hive``),
else its ``warehouse``; ``iceberg://<catalog>`` if the catalog is part of Spark's own configuration or
its address has an unknown form. Of an address, only scheme, host, port and path get into a name.

Airflow's OpenLineage provider calls an operator's ``get_openlineage_facets_on_complete`` when its task has
ended, successfully or not. Only then does this module need the provider.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.jobs.spec import JobResult

_SCHEMES: Final = {"thrift": "hive", "": "file"}
_HOST: Final = r"(?P<host>\[[0-9A-Fa-f:.]+\]|[\w.-]+)?(?P<port>:\d+)?"
_ADDRESS: Final = re.compile(
    r"(?:(?P<scheme>[a-z][a-z0-9+._-]*)(?::[a-z]+)*:(?=/)(?://)?)?(?:[^@/?;#,]*@)?"
    rf"{_HOST}(?P<path>(?:/[\w.%~+-]+)*)(?P<rest>(?:[/?;#:,\\].*)?)",
    re.ASCII | re.DOTALL | re.IGNORECASE,
)
"""An address; what follows the path may be parameters, and further hosts."""
_ORACLE: Final = re.compile(
    rf"(?P<scheme>oracle):[a-z]+:[^@]*@(?://)?{_HOST}(?P<path>(?:[:/][\w.$#]+)?)(?P<rest>(?:[/?;#:,].*)?)",
    re.ASCII | re.DOTALL | re.IGNORECASE,
)
_IPV6: Final = re.compile(r"[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*")


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
    """Return the source's namespace; a recording, or a host of unknown form, has its connector's name."""
    extra = connection.get("extra", {})
    if brokers := str(extra.get("bootstrap.servers") or ""):
        return f"kafka://{_place(brokers)[1] or connector.name}"
    host = str(extra.get("secret_uri") or connection.get("host") or "")
    bare = host.split(",", maxsplit=1)[0].strip()
    _, place, _ = _place(f"[{bare}]" if _IPV6.fullmatch(bare) else host)
    if not place:
        return f"{connector.type}://{connector.name}"
    port = connection.get("port")
    named = not port or re.search(r":\d+$", place) is not None
    return f"{connector.type}://{place if named else f'{place}:{port}'}"


def catalog_namespace(connector: Connector) -> str:
    """Return the namespace of the lake's tables."""
    options = connector.lake.catalog_options
    scheme, place, path = _place(options.get("uri") or options.get("warehouse") or "")
    if (not place and not path) or (place and not scheme):
        return f"iceberg://{connector.lake.catalog}"
    return f"{_SCHEMES.get(scheme, scheme)}://{place}{path}"


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


def _place(address: str) -> tuple[str, str, str]:
    """Return scheme, first host with port, and path of an address or a list of hosts; nothing else.

    All are empty if the address has another form, as with a login of characters that addresses reserve.
    """
    text = address.strip().removeprefix("jdbc:")
    found = _ORACLE.fullmatch(text) or _ADDRESS.fullmatch(text)
    if found is None or "@" in found["rest"]:
        return "", "", ""
    path = found["path"].replace(":", "/")
    return (found["scheme"] or "").lower(), (found["host"] or "") + (found["port"] or ""), path

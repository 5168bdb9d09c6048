"""Assets of a connector; their names are the same in every DAG.

There are three kinds; ``cdc/<connector>/`` finds them in Airflow's asset list:

* the **changes** asset, one per connector. Its state store has a copy of offset, lag and counts.
* a **mirror** asset per table. It gets an event if a run changed rows of the table, so a DAG with
  ``schedule=[mirror_asset("shop", "shop.orders")]`` runs after real changes only.
* a **source** asset per table, for lineage: the database's own table.

Example::

    from airflow_cdc_provider.assets import mirror_asset

    with DAG("report", schedule=[mirror_asset("shop", "shop.orders")]):
        ...
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, quote

from airflow.providers.common.compat.sdk import Asset, AssetAlias

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector

_LONGEST: Final = 1_200
_TABLE_PATH = re.compile(r"/[^/]+/[^/]+")


def changes_asset(connector: Connector | str) -> Asset:
    """Return the asset of a connector's changes table.

    Args:
        connector: The connector or its name.
    """
    name = _name(connector)
    return Asset(name=f"cdc/{name}/changes", uri=f"cdc://{name}/changes")


def mirror_asset(connector: Connector | str, table: str) -> Asset:
    """Return the asset of a table's mirror.

    Args:
        connector: The connector or its name.
        table: ``keyspace.table`` or ``database.collection``. Characters other than ASCII letters, digits and
            ``._-~`` are percent-encoded in the asset's name, as in its URI.
    """
    name, own = _name(connector), _quoted(table)
    return Asset(name=f"cdc/{name}/mirror/{own}", uri=f"cdc://{name}/mirror/{own}")


def _quoted(table: str) -> str:
    """Return any name of a table as a part of a URI, within Airflow's limit of 1,500 ASCII characters."""
    quoted = quote(table, safe="", errors="surrogatepass")
    if len(quoted) <= _LONGEST:
        return quoted
    return f"{quoted[:_LONGEST]}~{hashlib.sha256(quoted.encode()).hexdigest()}"


def mirrors_alias(connector: Connector | str) -> AssetAlias:
    """Return the alias through which a run emits events of the mirrors that it changed.

    A declaration selects tables by pattern, so the changed mirrors are only known at the end of a run.
    """
    return AssetAlias(name=f"cdc/{_name(connector)}/mirrors")


def sanitize_table_uri(uri: SplitResult) -> SplitResult:
    """Check a ``cassandra://cluster/keyspace/table`` URI (Airflow calls this when a DAG is parsed).

    Raises:
        ValueError: The URI names no cluster, no keyspace or no table.
    """
    if not uri.netloc or not _TABLE_PATH.fullmatch(uri.path):
        raise ValueError(
            f"invalid URI {uri.scheme}://{uri.hostname or ''}{uri.path}: "
            f"expected {uri.scheme}://cluster/keyspace/table"
        )
    return uri


def sanitize_cdc_uri(uri: SplitResult) -> SplitResult:
    """Check a ``cdc://connector/changes`` or ``cdc://connector/mirror/table`` URI.

    Raises:
        ValueError: The URI has neither form.
    """
    if not uri.netloc or not (uri.path == "/changes" or re.fullmatch(r"/mirror/[^/]+", uri.path)):
        raise ValueError(
            f"invalid URI cdc://{uri.netloc}{uri.path}: "
            "expected cdc://connector/changes or cdc://connector/mirror/table"
        )
    return uri


def _name(connector: Connector | str) -> str:
    return connector if isinstance(connector, str) else connector.name

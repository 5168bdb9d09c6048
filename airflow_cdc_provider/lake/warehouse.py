"""Warehouses in which Iceberg's catalog of type ``hadoop`` can't detect that another job committed first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from airflow_cdc_provider.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector

_OBJECT_STORES: Final = re.compile("s3[an]?|gs|abfss?|wasbs?|adl|oss|cosn?|obs|swift|oci", re.IGNORECASE)
"""Schemes of stores that rename a file onto an existing one."""


def require_atomic_commits(connector: Connector, catalog: Mapping[str, str]) -> None:
    """Refuse a ``hadoop`` catalog on an object store unless only one job ever writes.

    Args:
        connector: The declaration.
        catalog: Properties of the catalog: ``type``, ``catalog-impl``, ``warehouse``.

    Raises:
        ConfigurationError: Two writers would lose data.
    """
    scheme = catalog.get("warehouse", "").partition("://")[0]
    is_hadoop = catalog.get("type") == "hadoop" or catalog.get("catalog-impl", "").endswith(".HadoopCatalog")
    if is_hadoop and _OBJECT_STORES.fullmatch(scheme) and not connector.lake.single_writer:
        raise ConfigurationError(
            f"catalog {connector.lake.catalog} would lose the changes of one of two jobs that commit at once",
            expected="a catalog of type rest, hive, jdbc, glue or nessie, or one of type hadoop on HDFS",
            found=f"type hadoop on {scheme}",
            remedy="use another catalog; or set lake.single_writer: true if no two jobs ever write at once",
        )

"""Mirrors to compare with."""

from __future__ import annotations

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.lake.mirror import Mirror
from airflow_cdc_provider.lake.stores import Stores


def existing_mirror(stores: Stores, table: str) -> Mirror:
    """Return the mirror of a source table.

    Raises:
        ConfigurationError: There is none yet.
    """
    mirror = stores.mirror(table)
    if not mirror.table.exists():
        raise ConfigurationError(
            f"{table} has no mirror",
            expected=f"the lake table {mirror.name}",
            remedy="run sync, or capture and merge; if that failed for this table, its error says what to do",
        )
    return mirror

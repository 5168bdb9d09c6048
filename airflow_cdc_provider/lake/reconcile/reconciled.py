"""The result of a reconciliation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.changes.contribution import LIVE_ROW_SCHEMA
from airflow_cdc_provider.lake.reconcile.replica_duplicates import NO_CHANGES, ReplicaDuplicates


def _no_keys() -> Any:
    return pa.array([], pa.binary())


@dataclass(frozen=True)
class Reconciled:
    """The state of all keys that occur in the contributions.

    Args:
        live: ``LIVE_ROW_SCHEMA``: every live row. If static columns are returned separately, without them,
            and without rows of partitions that have only static columns.
        tombstones: ``CONTRIBUTION_SCHEMA``: the rows of the tombstone table for these keys, with which a
            later reconciliation of ``live``, ``tombstones`` and new contributions is exact.
        unresolved_keys: Binary keys whose state the data can't decide, each once; they must be read again at
            the source.
        static_columns: ``LIVE_ROW_SCHEMA``, if returned separately: the static columns of every partition
            that has some, with null ``clustering`` and ``state``. Else empty.
        replica_duplicates: Number of changes of rows, and of replica duplicates among them.
    """

    live: pa.Table
    tombstones: pa.Table
    unresolved_keys: Any = field(default_factory=_no_keys)
    static_columns: pa.Table = field(default_factory=LIVE_ROW_SCHEMA.empty_table)
    replica_duplicates: ReplicaDuplicates = NO_CHANGES

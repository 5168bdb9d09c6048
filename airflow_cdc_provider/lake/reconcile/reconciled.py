"""What a reconciliation gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.changes.contribution import LIVE_ROW_SCHEMA
from airflow_cdc_provider.lake.reconcile.copies import NO_CHANGES, Copies


def _no_keys() -> Any:
    return pa.array([], pa.binary())


@dataclass(frozen=True)
class Reconciled:
    """The state of all keys that were given.

    Args:
        live: ``LIVE_ROW_SCHEMA``: every row that lives. If statics were asked for apart, without them, and
            without rows of partitions of which only statics live.
        side: ``CONTRIBUTION_SCHEMA``: all that the side table must hold for these keys so that a later
            reconciliation of ``live``, ``side`` and new contributions is exact.
        doubtful_keys: Binary keys whose state the data can't decide, each once: to be read again at the
            source.
        statics: ``LIVE_ROW_SCHEMA``, if asked for apart: the statics of every partition that has some, with
            null ``clustering`` and ``state``. Else empty.
        copies: How many changes of rows were given, and how many of them were copies.
    """

    live: pa.Table
    side: pa.Table
    doubtful_keys: Any = field(default_factory=_no_keys)
    statics: pa.Table = field(default_factory=LIVE_ROW_SCHEMA.empty_table)
    copies: Copies = NO_CHANGES

"""Reconciliation: from contributions in any order to live rows and the tombstones to keep with them.

Which function applies depends on how a source's contributions compete
(:mod:`airflow_cdc_provider.changes.contribution`). In :func:`reconcile_rows` the greatest version of a whole
row wins, in :func:`reconcile_cells` each cell competes by its own write time. :func:`reconcile_patched`
extends the first for sources whose changes may describe a modification only. All are commutative, associative
and idempotent.
"""

from airflow_cdc_provider.lake.reconcile.cells import reconcile_cells
from airflow_cdc_provider.lake.reconcile.patched import Patch, reconcile_patched
from airflow_cdc_provider.lake.reconcile.reconciled import Reconciled
from airflow_cdc_provider.lake.reconcile.replica_duplicates import ReplicaDuplicates
from airflow_cdc_provider.lake.reconcile.rows import reconcile_rows

__all__ = [
    "Patch",
    "Reconciled",
    "ReplicaDuplicates",
    "reconcile_cells",
    "reconcile_patched",
    "reconcile_rows",
]

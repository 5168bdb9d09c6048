"""Reconciliation: from contributions in any order to the rows that live and what to remember beside them.

By how a source's contributions compete (:mod:`airflow_cdc_provider.changes.contribution`):
:func:`reconcile_rows` where the greatest version of a row wins whole, :func:`reconcile_cells` where each cell
competes by its own write time. :func:`reconcile_patched` is the first of them for sources whose changes may
tell no more than what became of a row. All are commutative, associative and idempotent.
"""

from airflow_cdc_provider.lake.reconcile.cells import reconcile_cells
from airflow_cdc_provider.lake.reconcile.copies import Copies
from airflow_cdc_provider.lake.reconcile.patched import Patch, reconcile_patched
from airflow_cdc_provider.lake.reconcile.reconciled import Reconciled
from airflow_cdc_provider.lake.reconcile.rows import reconcile_rows

__all__ = ["Copies", "Patch", "Reconciled", "reconcile_cells", "reconcile_patched", "reconcile_rows"]

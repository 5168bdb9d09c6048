"""Earlier states of a mirror: its snapshots that haven't expired, and those that are pinned.

Events of a batch need rows from before it, but the mirror has usually merged it when they are built. For the
same batch and time the answer is the same each time, however many merges followed: an interrupted run repeats
its events.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_cdc_provider.lake.iceberg import MAINTENANCE
from airflow_cdc_provider.lake.iceberg_difference import pins
from airflow_cdc_provider.lake.iceberg_java import lineage, own_properties
from airflow_cdc_provider.lake.mirror import MERGED_THROUGH, Mirror, MirrorState
from airflow_cdc_provider.lake.table import Head

if TYPE_CHECKING:
    from airflow_cdc_provider.lake.iceberg import IcebergTable


def state_before(mirror: Mirror, table: IcebergTable, batch: int, before_ms: int) -> MirrorState | None:
    """Return the newest state that has merged no batch after the given one.

    Args:
        mirror: The mirror.
        table: Its table.
        batch: The batch.
        before_ms: Only states that were committed by then, in ms since 1970.

    Returns:
        The state, without a snapshot if nothing was merged by then; None if it has expired.
    """
    for committed_ms, head in _commits(table):
        merged = int(head.properties.get(MERGED_THROUGH, "-1"))
        if merged <= batch and committed_ms <= before_ms:
            return mirror.state_of(head)
    return None


def _commits(table: IcebergTable) -> Iterator[tuple[int, Head]]:
    """Yield the time and head of each commit, newest first; last the time before the first one if known."""
    if not table.exists():
        yield 0, Head(None)
        return
    loaded = table.load()
    found = list(lineage(loaded, loaded.currentSnapshot()))
    known = {snapshot.snapshotId() for snapshot in found}
    pinned = [loaded.snapshot(name) for name in pins(loaded)]
    older = [snapshot for snapshot in pinned if snapshot.snapshotId() not in known]
    complete = not found or found[-1].parentId() is None
    for snapshot in [*found, *sorted(older, key=lambda one: -one.sequenceNumber())]:
        properties = own_properties(table.spark, snapshot)
        if properties and MAINTENANCE not in properties:
            yield snapshot.timestampMillis(), Head(str(snapshot.snapshotId()), properties)
    if complete:
        yield 0, Head(None)

"""Snapshot mode ``custom``: a custom class decides when and how snapshots are taken.

Option ``snapshot.custom`` names the class. It is instantiated once per process with
``snapshot.custom_settings``. Derive it from :class:`Snapshotter` and override methods::

    class OncePerQuarter(Snapshotter):
        def snapshot_data(self, offset_exists: bool, snapshot_in_progress: bool) -> bool:
            return snapshot_in_progress or not offset_exists or date.today().timetuple().tm_yday % 91 == 1

        def query(self, table: str) -> str | None:
            return None if table == "shop.logs" else super().query(table)

The methods correspond to Debezium's ``Snapshotter`` and ``SnapshotQuery``. Each may be called several times
in a run, so results must not depend on the number of calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from airflow_cdc_provider.custom_classes import load_custom
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.secrets import resolve_secrets

EVERYTHING: Final = ""
"""Query that selects all rows."""


class Snapshotter:
    """Base class of snapshotters; behaves like mode ``initial``.

    Args:
        settings: ``snapshot.custom_settings`` of the declaration.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def snapshot_data(self, offset_exists: bool, snapshot_in_progress: bool) -> bool:
        """Return whether this run takes a snapshot.

        Args:
            offset_exists: Whether the connector has an offset, that is, has run before.
            snapshot_in_progress: Whether an earlier snapshot is incomplete. It is continued; otherwise all
                tables are read again.
        """
        return snapshot_in_progress or not offset_exists

    def snapshot_schema(self, offset_exists: bool, snapshot_in_progress: bool) -> bool:
        """Return whether schemas are read. Has no effect for MongoDB, whose documents contain field names.

        Args:
            offset_exists: See :meth:`snapshot_data`.
            snapshot_in_progress: See :meth:`snapshot_data`.
        """
        return self.snapshot_data(offset_exists, snapshot_in_progress)

    def stream(self) -> bool:
        """Return whether changes are captured after the snapshot."""
        return True

    def snapshot_on_schema_error(self) -> bool:
        """Return whether to take a new snapshot if the schema history is lost. Has no effect for MongoDB."""
        return False

    def snapshot_on_data_error(self) -> bool:
        """Return whether to take a new snapshot if the source no longer has the changes after the offset."""
        return False

    def stream_from_snapshot_start(self) -> bool:
        """Return where capture resumes after a snapshot of a connector with an offset.

        True: at the start of the snapshot, so that changes between the stored offset and that time are
        skipped and have no events; only if the snapshot read all captured tables completely. False: at the
        stored offset.
        """
        return False

    def query(self, table: str) -> str | None:
        """Return the filter of a table's snapshot, in the query language of the source.

        Args:
            table: ``database.collection``.

        Returns:
            A filter (for MongoDB in Extended JSON); :data:`EVERYTHING` for all rows, or those of
            ``snapshot.filters``; None to skip the table, whose changes are still captured.
        """
        return EVERYTHING

    def snapshot_completed(self) -> None:
        """Called when a snapshot of all tables is complete."""

    def snapshot_aborted(self) -> None:
        """Called when a snapshot failed; rows already read are kept, and the next run may continue."""


class WhenLost(Snapshotter):
    """Takes no snapshot but after changes were lost: Debezium's start.stream and snapshot.on.data.error."""

    def snapshot_data(self, offset_exists: bool, snapshot_in_progress: bool) -> bool:
        """Return whether this run continues a snapshot."""
        return False

    def snapshot_on_data_error(self) -> bool:
        """Return that lost changes are due for a new snapshot."""
        return True


def load_snapshotter(class_path: str, settings: Mapping[str, Any]) -> Snapshotter:
    """Return the snapshotter of a declaration, one instance per process.

    Args:
        class_path: ``package.module:Class``.
        settings: Settings of the class, plain data.

    Raises:
        ConfigurationError: The class can't be loaded, or is not a :class:`Snapshotter`.
    """
    return _load(class_path, json.dumps(settings, sort_keys=True, default=str))


@cache
def _load(class_path: str, settings: str) -> Snapshotter:
    found = load_custom("snapshot.custom", class_path)
    if not (isinstance(found, type) and issubclass(found, Snapshotter)):
        raise ConfigurationError(
            f"snapshot.custom {class_path} is not a snapshotter",
            expected="a class derived from airflow_cdc_provider.connector.snapshotter.Snapshotter",
            found=type(found).__name__ if not isinstance(found, type) else found.__name__,
        )
    return found(resolve_secrets(json.loads(settings), "snapshot.custom_settings"))

"""Snapshot mode ``custom``: a class of one's own that decides when tables are read in full, and what of them.

It is named by ``snapshot.custom`` and made once in a process, with ``snapshot.custom_settings`` as its one
argument. Derive it from :class:`Snapshotter` and answer what is to be otherwise::

    class OncePerQuarter(Snapshotter):
        def snapshot_data(self, offset_exists: bool, snapshot_in_progress: bool) -> bool:
            return snapshot_in_progress or not offset_exists or date.today().timetuple().tm_yday % 91 == 1

        def query(self, table: str) -> str | None:
            return None if table == "shop.logs" else super().query(table)

The questions are those of Debezium's ``Snapshotter`` and ``SnapshotQuery``. Each may be asked more than once
in a run, so an answer must not depend on how often it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.plugins import load_plugin

EVERYTHING: Final = ""
"""A query that selects all."""


class Snapshotter:
    """Decides as mode ``initial`` does; to derive from.

    Args:
        settings: ``snapshot.custom_settings`` of the declaration.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def snapshot_data(self, offset_exists: bool, snapshot_in_progress: bool) -> bool:
        """Tell whether this run reads the tables in full.

        Args:
            offset_exists: Whether the connector has an offset, so that it has run before.
            snapshot_in_progress: Whether a snapshot began and wasn't read to its end. It goes on then;
                otherwise tables that were read before are read anew.
        """
        return snapshot_in_progress or not offset_exists

    def snapshot_schema(self, offset_exists: bool, snapshot_in_progress: bool) -> bool:
        """Tell whether schemas are to be read. For MongoDB it says nothing: documents name their own fields.

        Args:
            offset_exists: As above.
            snapshot_in_progress: As above.
        """
        return self.snapshot_data(offset_exists, snapshot_in_progress)

    def stream(self) -> bool:
        """Tell whether changes are captured, after the snapshot."""
        return True

    def snapshot_on_schema_error(self) -> bool:
        """Tell whether to read anew where the schema's history is lost. For MongoDB it says nothing."""
        return False

    def snapshot_on_data_error(self) -> bool:
        """Tell whether to read the tables anew when the source no longer has what follows the offset."""
        return False

    def stream_from_snapshot_start(self) -> bool:
        """Tell where capture goes on after a snapshot that a connector with an offset took.

        True: where the snapshot began, so that what was changed between the stored offset and that moment
        gives no changes and no events; only where the snapshot read all captured tables whole. False: where
        it was.
        """
        return False

    def query(self, table: str) -> str | None:
        """Return what of a table is read in full: a filter in the source's language.

        Args:
            table: ``database.collection``.

        Returns:
            A filter (for MongoDB in Extended JSON); :data:`EVERYTHING` for all, or what ``snapshot.filters``
            says; None to pass over the table, whose changes are captured all the same.
        """
        return EVERYTHING

    def snapshot_completed(self) -> None:
        """Learn that all tables of a snapshot are read to their end."""

    def snapshot_aborted(self) -> None:
        """Learn that a snapshot failed; what was read stays, and the next run goes on if it is asked to."""


def load_snapshotter(place: str, settings: Mapping[str, Any]) -> Snapshotter:
    """Return the snapshotter of a declaration: in a process always the same.

    Args:
        place: ``package.module:Class``.
        settings: Its settings, plain data.

    Raises:
        ConfigurationError: It can't be loaded or made, or is no :class:`Snapshotter`.
    """
    return _made(place, json.dumps(settings, sort_keys=True, default=str))


@cache
def _made(place: str, settings: str) -> Snapshotter:
    found = load_plugin("snapshot.custom", place)
    if not (isinstance(found, type) and issubclass(found, Snapshotter)):
        raise ConfigurationError(
            f"snapshot.custom {place} is no snapshotter",
            expected="a class derived from airflow_cdc_provider.connector.snapshotter.Snapshotter",
            found=type(found).__name__ if not isinstance(found, type) else found.__name__,
        )
    return found(json.loads(settings))

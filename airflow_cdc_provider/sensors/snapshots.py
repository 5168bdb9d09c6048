"""Sensor of the snapshots of a connector's tables, for all sources."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.connector.declaration import ConnectorLike, to_connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.links.connector import ConnectorAssetsLink
from airflow_cdc_provider.sensors.observing import ObservingSensor
from airflow_cdc_provider.tasks.parameters import to_tables
from airflow_cdc_provider.tasks.state import stored, with_state

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_cdc_provider.triggers.observing import Given
    from airflow_cdc_provider.triggers.snapshots import SnapshotsDoneTrigger


class CdcSnapshotSensor(ObservingSensor):
    """Waits until the snapshots of a connector's tables are complete, whichever run or DAG takes them.

    It queries no database: when a run of the connector ends, it stores in Airflow which snapshots are
    complete. Those of a continuous application are therefore visible when it ends. A snapshot that is
    outdated by lost changes isn't complete.

    XCom: ``done`` and ``remaining``, lists of tables.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        tables: Only these tables: a list, or comma-separated text or a JSON list (templated); empty for all
            tables of which its runs take snapshots.
        since: Only count snapshots that started at or after this time: a time, or ISO 8601 text such as ``{{
            dag_run.start_date }}`` (templated). None for all.
        kwargs: As for :class:`~airflow_cdc_provider.sensors.observing.ObservingSensor`.
    """

    template_fields: Sequence[str] = ("connector", "tables", "since")
    operator_extra_links = (ConnectorAssetsLink(),)

    def __init__(
        self,
        *,
        connector: ConnectorLike,
        tables: Sequence[str] | str = (),
        since: datetime | str | None = None,
        poke_interval: float = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **with_state(connector, kwargs))
        self.connector = connector
        self.tables = tables
        self.since = since

    def given(self, context: Context) -> Given:
        """Return what the connector's runs reported about snapshots."""
        from airflow_cdc_provider.triggers.observing import Given

        return Given(snapshots=stored(context, to_connector(self.connector), "snapshots"))

    def trigger(self, context: Context) -> SnapshotsDoneTrigger:
        """Return the trigger."""
        from airflow_cdc_provider.triggers.snapshots import SnapshotsDoneTrigger

        connector = to_connector(self.connector)
        tables = to_tables(self.tables)
        if wrong := [table for table in tables if not connector.selects(table)]:
            raise ConfigurationError(
                f"connector {connector.name} doesn't capture {', '.join(wrong)}",
                expected="tables that its patterns select",
                remedy="check the names, and the connector's tables and exclude_tables",
            )
        return SnapshotsDoneTrigger(
            connector=connector.name,
            tables=tables,
            since=_epoch_seconds(self.since),
            poll_seconds=self.poke_interval,
        )


def _epoch_seconds(moment: datetime | str | None) -> float | None:
    if moment is None or moment in ("", "None"):
        return None
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            raise ConfigurationError(
                "invalid value for since", expected="2026-11-23T07:00:00+00:00", found=str(moment)
            ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

"""Base of sensors of a database's change feed, for all databases."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_cdc_provider.connector.declaration import ConnectorLike, to_connector
from airflow_cdc_provider.hooks._of_connector import hook_for
from airflow_cdc_provider.links.connector import ConnectorAssetsLink
from airflow_cdc_provider.sensors.observing import ObservingSensor
from airflow_cdc_provider.sources.plugin import SourceOptions, options_of
from airflow_cdc_provider.tasks.state import stored_offset, with_state
from airflow_cdc_provider.tasks.stats import Stats

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.triggers.observing import Given


class FeedSensor(ObservingSensor):
    """Checks a feed for changes after the connector's stored offset.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        kwargs: As for :class:`~airflow_cdc_provider.sensors.observing.ObservingSensor`.
    """

    operator_extra_links = (ConnectorAssetsLink(),)
    source_options: ClassVar[type[SourceOptions]]
    """Options of the source with this feed."""
    continues_after_loss: ClassVar[bool] = False
    """Whether the feed itself continues after lost changes."""

    def __init__(self, *, connector: ConnectorLike, **kwargs: Any) -> None:
        super().__init__(**with_state(connector, kwargs))
        self.connector = connector

    @property
    @abstractmethod
    def own_conn_id(self) -> str | None:
        """Connection to use instead of the declared one."""

    @abstractmethod
    def feed(self, connector: Connector) -> dict[str, Any]:
        """Return the arguments of the database's ``Feed``."""

    def given(self, context: Context) -> Given:
        """Look up the connection and the stored offset."""
        from airflow_cdc_provider.triggers.observing import Given

        connector = self.own_connector()
        values = hook_for(connector, self.own_conn_id).connection_values()
        return Given(values, stored_offset(context, connector))

    def seen(self, value: Mapping[str, Any]) -> None:
        """Emit the lag."""
        if value.get("lag_seconds") is not None:
            Stats.gauge("cdc.lag_seconds", value["lag_seconds"], tags=self.own_connector().tags)

    def own_connector(self) -> Connector:
        """Return the connector.

        Raises:
            ConfigurationError: The connector has another source.
        """
        connector = to_connector(self.connector)
        options_of(connector, self.source_options)
        return connector

    def trigger_arguments(self) -> dict[str, Any]:
        """Return the arguments that all triggers of the feed share."""
        connector = self.own_connector()
        return {
            "source_conn_id": hook_for(connector, self.own_conn_id).source_conn_id,
            "connector": connector.name,
            "feed": {
                **self.feed(connector),
                "tables": list(connector.tables),
                "exclude_tables": list(connector.exclude_tables),
                "recovers_from_loss": connector.lost_position_action(hole=self.continues_after_loss)
                != "fail",
            },
            "poll_seconds": self.poke_interval,
        }

"""Sensors of topics: the lag of publishing behind capture, and of consumer groups behind topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.connections.kafka import kafka_values
from airflow_cdc_provider.connector.declaration import ConnectorLike, to_connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.links.connector import ConnectorAssetsLink
from airflow_cdc_provider.sensors.observing import ObservingSensor
from airflow_cdc_provider.tasks.parameters import to_integer, to_tables
from airflow_cdc_provider.tasks.state import stored, with_state
from airflow_cdc_provider.tasks.stats import Stats

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.triggers.observing import Given
    from airflow_cdc_provider.triggers.topics import ConsumerLagTrigger, PublishLagTrigger


class _TopicSensor(ObservingSensor):
    """Queries the brokers of a connector.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        kafka_conn_id: Connection to use instead of the declared one (templated).
        kwargs: As for :class:`~airflow_cdc_provider.sensors.observing.ObservingSensor`.
    """

    operator_extra_links = (ConnectorAssetsLink(),)

    def __init__(
        self,
        *,
        connector: ConnectorLike,
        kafka_conn_id: str | None = None,
        poke_interval: float = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **with_state(connector, kwargs))
        self.connector = connector
        self.kafka_conn_id = kafka_conn_id

    def given(self, context: Context) -> Given:
        """Look up the connection."""
        from airflow_cdc_provider.triggers.observing import Given

        return Given(kafka_values(self._conn_id(to_connector(self.connector))))

    def trigger_arguments(self, connector: Connector) -> dict[str, Any]:
        """Return the arguments that all triggers of topics share."""
        return {
            "kafka_conn_id": self._conn_id(connector),
            "consumer": dict(connector.publish.kafka.consumer),
            "poll_seconds": self.poke_interval,
        }

    def _conn_id(self, connector: Connector) -> str:
        conn_id = self.kafka_conn_id or connector.publish.kafka.connection
        if not conn_id:
            raise ConfigurationError(
                f"connector {connector.name} publishes nothing",
                expected="publish.kafka.connection with the id of an Airflow connection of type kafka",
            )
        return conn_id


class CdcPublishLagSensor(_TopicSensor):
    """Waits until captured changes are published, except for a number of batches or seconds.

    The connector's runs report the captured batches, the positions topic has the position of publishing. A
    continuous application publishes its own captured changes; it reports batches only when it ends.

    XCom: ``batch`` (all up to this one are published), ``newest_batch``, ``pending_batches``, ``lag_seconds``
    (time since the oldest of these was committed; 0 for none). The last three are null before the first
    capture; the sensor waits then.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        max_batches: The maximum number of unpublished batches; default 0, or no limit with
            ``max_lag_seconds``.
        max_lag_seconds: The greatest allowed age of the oldest one; default: no limit. With both, both must
            hold.
        kafka_conn_id: Connection to use instead of the declared one (templated).
        kwargs: As for :class:`~airflow_cdc_provider.sensors.observing.ObservingSensor`.
    """

    template_fields: Sequence[str] = ("connector", "kafka_conn_id")

    def __init__(
        self, *, max_batches: int | None = None, max_lag_seconds: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.max_batches = max_batches
        self.max_lag_seconds = max_lag_seconds

    def given(self, context: Context) -> Given:
        """Look up the connection, and the batches that runs reported."""
        from airflow_cdc_provider.triggers.observing import Given

        found = super().given(context)
        return Given(found.connection, batches=stored(context, to_connector(self.connector), "batches"))

    def trigger(self, context: Context) -> PublishLagTrigger:
        """Return the trigger."""
        from airflow_cdc_provider.triggers.topics import PublishLagTrigger

        connector = to_connector(self.connector)
        most = 0 if self.max_batches is None and self.max_lag_seconds is None else self.max_batches
        kafka = connector.publish.kafka
        return PublishLagTrigger(
            connector=connector.name,
            positions_topic=kafka.positions_topic or f"{connector.topic_prefix}.cdc-positions",
            max_batches=most,
            max_lag_seconds=self.max_lag_seconds,
            **self.trigger_arguments(connector),
        )

    def seen(self, value: Mapping[str, Any]) -> None:
        """Emit the lag."""
        tags = to_connector(self.connector).tags
        for name in ("batch", "pending_batches", "lag_seconds"):
            if value[name] is not None:
                Stats.gauge(f"cdc.publish.{name}", value[name], tags=tags)


class CdcConsumerLagSensor(_TopicSensor):
    """Waits until a consumer group's lag in a connector's topics is at most ``max_lag`` messages.

    Only committed messages count (``read_committed``).

    XCom: ``lag`` (messages; null while the group has committed nothing), ``topics`` (the same by topic).

    Args:
        group_id: The group's ``group.id`` (templated).
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        max_lag: The greatest allowed number of unread messages (templated).
        topics: Anchored regular expressions of topics, all of which count (templated). Default: topics with
            the connector's prefix for which the group has committed an offset.
        wait_for_first_commit: Whether to wait for a group that has committed no offset yet, and to fail if
            topics don't exist; False: the lag is 0 then. Use False for a sensor before a publishing task: the
            group waits for that task.
        kafka_conn_id: Connection to use instead of the declared one (templated).
        kwargs: As for :class:`~airflow_cdc_provider.sensors.observing.ObservingSensor`.
    """

    template_fields: Sequence[str] = ("connector", "kafka_conn_id", "group_id", "topics", "max_lag")

    def __init__(
        self,
        *,
        group_id: str,
        max_lag: int | str = 0,
        topics: Sequence[str] | str = (),
        wait_for_first_commit: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.group_id = group_id
        self.max_lag = max_lag
        self.topics = topics
        self.wait_for_first_commit = wait_for_first_commit

    def trigger(self, context: Context) -> ConsumerLagTrigger:
        """Return the trigger.

        Raises:
            ConfigurationError: The connector's topics don't share a prefix, or an argument is invalid.
        """
        from airflow_cdc_provider.feeds.topics import topics_of_prefix
        from airflow_cdc_provider.triggers.topics import ConsumerLagTrigger

        connector = to_connector(self.connector)
        publish = connector.publish
        chosen = to_tables(self.topics)
        if not chosen and (publish.topic_pattern or publish.topic_naming):
            raise ConfigurationError(
                f"the topics of connector {connector.name} don't all start with its prefix",
                expected="topics, regular expressions of their names",
            )
        own = publish.kafka.positions_topic or f"{connector.topic_prefix}.cdc-positions"
        return ConsumerLagTrigger(
            group_id=self.group_id,
            topics=chosen or (topics_of_prefix(connector.topic_prefix, publish.topic_delimiter),),
            every_topic=bool(chosen),
            without=() if chosen else (own,),
            max_lag=to_integer("max_lag", self.max_lag) or 0,
            wait_for_first_commit=self.wait_for_first_commit,
            **self.trigger_arguments(connector),
        )

    def seen(self, value: Mapping[str, Any]) -> None:
        """Emit the lag."""
        tags = {**to_connector(self.connector).tags, "group": self.group_id}
        for topic, lag in value["topics"].items():
            Stats.gauge("cdc.consumer.lag_messages", lag, tags={**tags, "topic": topic})

"""Hook of Kafka clusters with Debezium's events; accepts Airflow's stock connection type ``kafka``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.connections.registry import registry_values
from airflow_cdc_provider.hooks.source import CdcHook
from airflow_cdc_provider.kafka.settings import machine_identity
from airflow_cdc_provider.sources.debezium.options import SOURCE_REGISTRY, DebeziumOptions
from airflow_cdc_provider.sources.plugin import options_of

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from airflow_cdc_provider.connector import Connector

_CALL_SECONDS = 5.0


class DebeziumCdcHook(CdcHook):
    """A Kafka cluster.

    Args:
        kafka_conn_id: The connection. Its extra has librdkafka's settings: ``bootstrap.servers``, login, TLS.

    Example::

        DebeziumCdcHook("kafka_shop").get_conn().list_topics()
    """

    conn_name_attr = "kafka_conn_id"
    default_conn_name = "kafka_default"
    conn_type = "kafka"
    hook_name = "Apache Kafka"
    accepted_types = ("kafka",)

    def __init__(self, kafka_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.kafka_conn_id = kafka_conn_id
        self.registry_conn_id = ""

    @property
    def source_conn_id(self) -> str:
        """Id of the connection."""
        return self.kafka_conn_id

    def configure(self, connector: Connector) -> None:
        """Use the declared connection of the schema registry."""
        self.registry_conn_id = options_of(connector, DebeziumOptions).registry.connection

    def get_conn(self) -> AdminClient:
        """Return an admin client."""
        return self._client()[0]

    def connection_values(self) -> dict[str, Any]:
        """Return the connection's values, with those of the registry's connection if there is one.

        The asynchronous variant omits the registry: triggers read no messages.
        """
        values = super().connection_values()
        if not self.registry_conn_id:
            return values
        found = registry_values(self.registry_conn_id, "source.registry.connection")
        return {**values, SOURCE_REGISTRY: found}

    def normalize(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values unchanged: all settings are in the extra."""
        return values

    def _machine_identity(self, values: dict[str, Any]) -> str:
        """Return the setting of librdkafka."""
        return machine_identity(values["extra"])

    def describe_server(self) -> str:
        """Return the number of brokers and topics.

        Raises:
            CdcError: The cluster doesn't answer, or refuses the login.
        """
        from confluent_kafka import KafkaException

        from airflow_cdc_provider.kafka.errors import error_of

        client, last = self._client()
        try:
            metadata = client.list_topics(timeout=_CALL_SECONDS)
        except KafkaException as error:
            raise error_of(error.args[0], "listing the brokers", last.error) from None
        return f"Kafka, {len(metadata.brokers)} brokers, {len(metadata.topics)} topics"

    def _client(self) -> tuple[AdminClient, Any]:
        from confluent_kafka.admin import AdminClient

        from airflow_cdc_provider.kafka.errors import LastError, client_of
        from airflow_cdc_provider.kafka.settings import ClientSettings

        last = LastError()
        settings = ClientSettings(self.connection_values()["extra"]).of_admin()
        return client_of(AdminClient, settings, last), last

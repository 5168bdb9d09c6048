"""Creates the topics of a connector's tables, for the operator and the command line."""

from __future__ import annotations

from dataclasses import asdict

from airflow_cdc_provider.connections.kafka import kafka_values
from airflow_cdc_provider.connector.declaration import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.hooks._of_connector import hook_for


def create_missing(
    connector: Connector, source_conn_id: str | None = None, kafka_conn_id: str | None = None
) -> dict[str, list[str]]:
    """List the source's tables, and create their topics.

    Args:
        connector: The declaration.
        source_conn_id: As for the operator.
        kafka_conn_id: Likewise.

    Returns:
        ``created`` and ``existing``.

    Raises:
        ConfigurationError: The connector publishes nothing, or a configuration change is required.
        TransientError: The source or the brokers don't answer.
    """
    from airflow_cdc_provider.jobs.topics.rules import create_topics

    conn_id = kafka_conn_id or connector.publish.kafka.connection
    if not conn_id:
        raise ConfigurationError(
            f"connector {connector.name} publishes nothing",
            expected="publish.kafka.connection with the id of an Airflow connection of type kafka",
        )
    source = hook_for(connector, source_conn_id).source(connector)
    try:
        tables = source.tables()
    finally:
        source.close()
    created = create_topics(connector, tables, kafka_values(conn_id))
    return {name: list(topics) for name, topics in asdict(created).items()}

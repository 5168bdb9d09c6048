"""Rules for the creation of a connector's topics: ``publish.topics``, and rules for other kinds of topics."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.transforms.outbox import topics_begin
from airflow_cdc_provider.kafka.positions import PositionsTopic
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.kafka.topics import TopicCreator, TopicRule
from airflow_cdc_provider.sources.encoding import topic_of_table
from airflow_cdc_provider.sources.own_topics import (
    heartbeats_topic,
    positions_topic,
    schema_changes_topic,
    transactions_topic,
)


def topic_rules(connector: Connector) -> tuple[TopicRule, ...]:
    """Return the rules for the creation of a connector's topics, in the order of their evaluation.

    Groups come first. Topics other than those of tables have one partition, to keep their records in order.
    In those of transactions and schema changes a record doesn't replace the previous one of its key, so they
    are never compacted, even if the topics of tables are. The last rule applies to all others.
    """
    options = connector.publish.topics
    groups = (
        TopicRule(
            f"group {group.name or number}",
            group.include,
            group.exclude,
            options.partitions if group.partitions is None else group.partitions,
            options.replication if group.replication is None else group.replication,
            group.settings,
        )
        for number, group in enumerate(options.groups, 1)
    )
    kept = dict(options.settings)
    if "compact" in str(kept.get("cleanup.policy", "")):
        kept["cleanup.policy"] = "delete"
    logs = (transactions_topic(connector), schema_changes_topic(connector))
    return (
        *groups,
        TopicRule(
            "heartbeats",
            (re.escape(heartbeats_topic(connector)),),
            partitions=1,
            replication=options.replication,
            settings=options.settings,
        ),
        TopicRule(
            "transactions and schema changes",
            tuple(re.escape(name) for name in logs),
            partitions=1,
            replication=options.replication,
            settings=kept,
        ),
        TopicRule(
            "default",
            partitions=options.partitions,
            replication=options.replication,
            settings=options.settings,
        ),
    )


def topic_maker(connector: Connector, settings: ClientSettings) -> TopicCreator | None:
    """Return the creator of missing topics; None to leave that to brokers or operators."""
    if not connector.publish.topics.create:
        return None
    beginnings = None
    if connector.publish.outbox.enabled:
        beginnings = (f"{connector.topic_prefix}.", topics_begin(connector.publish.outbox))
    return TopicCreator(settings, topic_rules(connector), beginnings=beginnings)


@dataclass(frozen=True)
class CreatedTopics:
    """Created and existing topics of a connector.

    Args:
        created: Topics that were created.
        existing: Topics that existed; they are unchanged.
    """

    created: Sequence[str]
    existing: Sequence[str]


def create_topics(connector: Connector, tables: Sequence[str], values: Mapping[str, Any]) -> CreatedTopics:
    """Create the missing topics of tables, of transactions and schema changes, and of positions.

    Args:
        connector: The declaration; ``publish.topics`` has the rules, which apply even if ``create`` is false.
        tables: Its tables.
        values: librdkafka settings of the Kafka connection.

    Raises:
        ConfigurationError: A rule, login or permission is invalid; or the connector doesn't publish.
        TransientError: The brokers don't respond.
    """
    publish = connector.publish
    settings = ClientSettings(values, publish.kafka.producer, publish.kafka.consumer)
    names = {topic_of_table(connector, table) for table in tables}
    if publish.transactions:
        names.add(transactions_topic(connector))
    if publish.schema_changes:
        names.add(schema_changes_topic(connector))
    created = TopicCreator(settings, topic_rules(connector)).create_missing(names)
    positions_under(connector, settings, connector.name).make(publish.kafka.slices)
    return CreatedTopics(created, tuple(sorted(names - set(created))))


def positions_under(connector: Connector, settings: ClientSettings, name: str) -> PositionsTopic:
    """Return the topic of a connector's positions, for those that are stored under a name."""
    options = connector.publish.kafka
    replication = options.positions_replication
    if replication == -1:
        replication = connector.publish.topics.replication
    return PositionsTopic(settings, positions_topic(connector), name, replication)

"""By what rules a connector's topics are made: ``publish.topics``, and what topics of other kinds need."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.topics.own import (
    heartbeats_topic,
    schema_changes_topic,
    transactions_topic,
)
from airflow_cdc_provider.jobs.topics.settings import topics_of
from airflow_cdc_provider.kafka.positions import PositionsTopic
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.kafka.topics import TopicMaker, TopicRule


def topic_rules(connector: Connector) -> tuple[TopicRule, ...]:
    """Return the rules by which a connector's topics are made, in the order in which they are asked.

    Groups come first. Topics that are not tables' have one partition: their records are in order only so.
    In those of transactions and schema changes a record doesn't replace the one before of its key, so what
    tables' topics may be, compacted, they are not. The last rule is for all others.
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


def topic_maker(connector: Connector, settings: ClientSettings) -> TopicMaker | None:
    """Return what makes missing topics; None where brokers or people do."""
    return TopicMaker(settings, topic_rules(connector)) if connector.publish.topics.create else None


@dataclass(frozen=True)
class CreatedTopics:
    """What became of a connector's topics.

    Args:
        made: Those that were missing.
        there: Those that weren't; they stay as they are.
    """

    made: Sequence[str]
    there: Sequence[str]


def topic_of_table(connector: Connector, table: str) -> str:
    """Name the topic of a table's events, before transforms that route them elsewhere.

    Args:
        connector: The declaration.
        table: ``keyspace.table`` or ``database.collection``.
    """
    naming = topics_of(connector)
    own = connector.publish.vitess
    if own.topic_prefix and not any(re.fullmatch(one, table) for one in own.topic_prefix_not_for):
        naming = replace(naming, prefix=own.topic_prefix)
    database, _, name = table.partition(".")
    return naming.topic(database, name)


def create_topics(connector: Connector, tables: Sequence[str], values: Mapping[str, Any]) -> CreatedTopics:
    """Make the topics of tables, of what stands beside them, and of positions, where they are missing.

    Args:
        connector: The declaration; ``publish.topics`` says with what, also where ``create`` is false.
        tables: Its tables.
        values: Librdkafka's settings of the Kafka connection.

    Raises:
        ConfigurationError: A rule, a login or a right is wrong; or the connector publishes nothing.
        TransientError: The brokers don't answer.
    """
    publish = connector.publish
    settings = ClientSettings(values, publish.kafka.producer, publish.kafka.consumer)
    wanted = {topic_of_table(connector, table) for table in tables}
    if publish.transactions:
        wanted.add(transactions_topic(connector))
    if publish.schema_changes:
        wanted.add(schema_changes_topic(connector))
    made = TopicMaker(settings, topic_rules(connector)).make_missing(wanted)
    own = publish.kafka.positions_topic or f"{connector.topic_prefix}.cdc-positions"
    copies = publish.kafka.positions_replication
    PositionsTopic(settings, own, connector.name, copies).make(publish.kafka.slices)
    return CreatedTopics(made, tuple(sorted(wanted - set(made))))

"""Import of ``topic.naming.strategy``: Debezium's strategies and custom classes."""

from __future__ import annotations

from typing import Final

from airflow_cdc_provider.migration.rules import Draft, unsupported_error

_STRATEGIES: Final = {
    "io.debezium.schema.DefaultTopicNamingStrategy": "",
    "io.debezium.schema.SchemaTopicNamingStrategy": "collections of MongoDB "
    "have no schema, so they would all have one topic",
    "io.debezium.schema.DefaultRegexTopicNamingStrategy": "it maps several collections to one topic by "
    "topic.regex",
    "io.debezium.schema.SchemaRegexTopicNamingStrategy": "it maps several collections to one topic by "
    "topic.regex",
    "io.debezium.schema.DefaultUnicodeTopicNamingStrategy": "it escapes characters that topics can't have",
    "io.debezium.schema.SchemaUnicodeTopicNamingStrategy": "it escapes characters that topics can't have",
}
"""Debezium's strategies, and why they are not supported; empty: the names are the same."""


def topic_naming(draft: Draft, name: str, value: str) -> None:
    """Import a topic naming strategy.

    Raises:
        ConfigurationError: It is a Java class with other names.
    """
    if not value:
        return
    if ":" in value:
        draft.set("publish.topic_naming", value)
        return
    if draft.type == "scylla":
        draft.notes.append(f"property {name} is ignored: ScyllaDB's connector doesn't read it")
        return
    reason = _STRATEGIES.get(value, "it is a Java class")
    if draft.type in ("cassandra", "vitess") and value.endswith(".SchemaTopicNamingStrategy"):
        reason = ""
    elif draft.type == "vitess":
        if value == "io.debezium.connector.vitess.TableTopicNamingStrategy":
            reason = ""
        elif value.endswith(".DefaultTopicNamingStrategy"):
            reason = "it uses shards as databases"
    if reason:
        raise unsupported_error(
            name,
            value,
            f"{reason[0].upper()}{reason[1:]}; implement it as a Python class with the method "
            "data_change_topic(prefix, database, table) and set package.module:Class, or use "
            "`publish.topic_pattern`",
        )

"""What becomes of ``topic.naming.strategy``: Debezium's own strategies, and classes of one's own."""

from __future__ import annotations

from typing import Final

from airflow_cdc_provider.connector.imported import Draft, refusal

_STRATEGIES: Final = {
    "io.debezium.schema.DefaultTopicNamingStrategy": "",
    "io.debezium.schema.SchemaTopicNamingStrategy": "in MongoDB collections have no schema, so it would give "
    "all of them one topic",
    "io.debezium.schema.DefaultRegexTopicNamingStrategy": "it puts several collections into one topic by "
    "topic.regex",
    "io.debezium.schema.SchemaRegexTopicNamingStrategy": "it puts several collections into one topic by "
    "topic.regex",
    "io.debezium.schema.DefaultUnicodeTopicNamingStrategy": "it writes characters that topics can't have as "
    "their numbers",
    "io.debezium.schema.SchemaUnicodeTopicNamingStrategy": "it writes characters that topics can't have as "
    "their numbers",
}
"""Debezium's strategies, and why they can't be followed; an empty text: names are the same here."""


def topic_naming(draft: Draft, name: str, value: str) -> None:
    """Take over a class that names topics.

    Raises:
        ConfigurationError: It is a Java class that names them otherwise.
    """
    if not value:
        return
    if ":" in value:
        draft.set("publish.topic_naming", value)
        return
    reason = _STRATEGIES.get(value, "it is a Java class")
    if draft.type in ("cassandra", "vitess") and value.endswith(".SchemaTopicNamingStrategy"):
        reason = ""
    elif draft.type == "vitess":
        if value == "io.debezium.connector.vitess.TableTopicNamingStrategy":
            reason = ""
        elif value.endswith(".DefaultTopicNamingStrategy"):
            reason = "it takes Vitess's shards for databases"
    if reason:
        raise refusal(
            name,
            value,
            f"{reason[0].upper()}{reason[1:]}; write what it does as a Python class with the method "
            "data_change_topic(prefix, database, table) and name that as package.module:Class, or use "
            "`publish.topic_pattern`",
        )

"""Rules for Debezium's signal properties; part of :mod:`.all_connectors`.

As in Debezium's ``KafkaSignalChannel``, the address and group of ``signal.consumer.*`` take precedence over
those of ``signal.kafka.*``. All of them have an effect only if ``kafka`` is among the channels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from airflow_cdc_provider.migration import rules
from airflow_cdc_provider.migration.debezium.kafka_clients import client_rules
from airflow_cdc_provider.migration.rules import Draft, Rule

_CHANNELS: Final = "signal.enabled.channels"
_ADDRESSES: Final = frozenset({"signal.kafka.bootstrap.servers", "signal.consumer.bootstrap.servers"})


def _channels(draft: Draft, name: str, value: str) -> None:
    """Import channels; Airflow replaces JMX."""
    channels = []
    for channel in rules.split_list(value):
        if channel in ("source", "kafka", "file"):
            channels.append(channel)
        elif channel == "jmx":
            draft.notes.append(
                f"property {name}: jmx becomes channel airflow (CdcSignalOperator, airflow cdc signal)"
            )
        else:
            raise rules.unsupported_error(
                name, value, "Custom channels are Python classes: add them to signals.channels"
            )
    if "kafka" in channels and not draft.properties.keys() & _ADDRESSES:
        raise rules.invalid("signal.kafka.bootstrap.servers", "host:port, required by channel kafka", "")
    draft.set("signals.channels", [*channels, "airflow"])


def _poll_timeout(draft: Draft, name: str, value: str) -> None:
    """Import milliseconds; 0 is a valid value."""
    draft.set("signals.kafka.poll_timeout_seconds", rules.integer(name, value) / 1000)


def _unless(other: str, rule: Rule) -> Rule:
    """Apply a rule unless another property is set, which takes precedence."""

    def apply(draft: Draft, name: str, value: str) -> None:
        if other not in draft.properties:
            rule.apply(draft, name, value)

    return replace(rule, apply=apply)


def _of_channel(rule: Rule) -> Rule:
    """Apply a rule if channel kafka is enabled; else note, without the value, that it has no effect."""

    def apply(draft: Draft, name: str, value: str) -> None:
        if "kafka" in rules.split_list(draft.properties.get(_CHANNELS, "")):
            rule.apply(draft, name, value)
        else:
            draft.notes.append(f"property {name} is ignored: kafka is not among {_CHANNELS}")

    return replace(rule, apply=apply)


_SERVERS: Final = rules.option("signals.kafka.bootstrap_servers")
_GROUP: Final = rules.option("signals.kafka.group_id")
_OF_KAFKA: Final[dict[str, Rule]] = {
    "signal.kafka.topic": rules.option("signals.kafka.topic"),
    "signal.kafka.groupId": _unless("signal.consumer.group.id", _GROUP),
    "signal.kafka.bootstrap.servers": _unless("signal.consumer.bootstrap.servers", _SERVERS),
    "signal.kafka.poll.timeout.ms": rules.custom_rule("`signals.kafka.poll_timeout_seconds`", _poll_timeout),
    **client_rules(
        "signals.kafka.consumer",
        "signal.consumer.",
        connection="signals.kafka.connection, in place of signals.kafka.bootstrap_servers",
        known=("auto.offset.reset",),
    ),
    "signal.consumer.group.id": _GROUP,
    "signal.consumer.bootstrap.servers": _SERVERS,
}

SIGNALS: Final[dict[str, Rule]] = {
    "signal.data.collection": rules.unsupported(
        "Signals aren't read from a table of the source: use channel `kafka`, `file` or `airflow`"
    ),
    _CHANNELS: rules.custom_rule("`signals.channels`, plus `airflow`, which also replaces jmx", _channels),
    "signal.poll.interval.ms": rules.seconds("signals.poll_interval_seconds"),
    "signal.file": rules.option("signals.file"),
    **{name: _of_channel(rule) for name, rule in _OF_KAFKA.items()},
}

"""Debezium's properties of signals, and what becomes of each: part of :mod:`.debezium_rules`.

As in its ``KafkaSignalChannel``, an address or a group among ``signal.consumer.*`` wins over that of
``signal.kafka.*``, and all of them say nothing unless ``kafka`` is one of the channels.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from airflow_cdc_provider.connector.debezium_clients import client_rules
from airflow_cdc_provider.connector.imported import (
    Draft,
    Rule,
    option,
    refusal,
    refused,
    seconds,
    split_list,
    taken,
    wrong,
)

_CHANNELS: Final = "signal.enabled.channels"
_ADDRESSES: Final = frozenset({"signal.kafka.bootstrap.servers", "signal.consumer.bootstrap.servers"})


def _channels(draft: Draft, name: str, value: str) -> None:
    """Take over channels; what Debezium's users do over JMX is done through Airflow."""
    channels = []
    for channel in split_list(value):
        if channel in ("source", "kafka", "file"):
            channels.append(channel)
        elif channel == "jmx":
            draft.notes.append(
                f"property {name}: jmx is channel airflow, CdcSignalOperator and airflow cdc signal"
            )
        else:
            raise refusal(
                name, value, "Channels of your own are Python classes: name them in signals.channels"
            )
    if "kafka" in channels and not draft.properties.keys() & _ADDRESSES:
        raise wrong("signal.kafka.bootstrap.servers", "host:port, as channel kafka is named", "")
    draft.set("signals.channels", [*channels, "airflow"])


def _poll_timeout(draft: Draft, name: str, value: str) -> None:
    """Take over milliseconds; 0 is a value of its own here."""
    if not re.fullmatch(r"\d+", value):
        raise wrong(name, "a whole number", value)
    draft.set("signals.kafka.poll_timeout_seconds", int(value) / 1000)


def _unless(other: str, rule: Rule) -> Rule:
    """Apply a rule unless another property is there, which wins."""

    def apply(draft: Draft, name: str, value: str) -> None:
        if other not in draft.properties:
            rule.apply(draft, name, value)

    return replace(rule, apply=apply)


def _of_channel(rule: Rule) -> Rule:
    """Apply a rule where signals come by Kafka; else tell that it says nothing, without its value."""

    def apply(draft: Draft, name: str, value: str) -> None:
        if "kafka" in split_list(draft.properties.get(_CHANNELS, "")):
            rule.apply(draft, name, value)
        else:
            draft.notes.append(f"property {name} is left out: kafka is none of {_CHANNELS}")

    return replace(rule, apply=apply)


_SERVERS: Final = option("signals.kafka.bootstrap_servers")
_GROUP: Final = option("signals.kafka.group_id")
_OF_KAFKA: Final[dict[str, Rule]] = {
    "signal.kafka.topic": option("signals.kafka.topic"),
    "signal.kafka.groupId": _unless("signal.consumer.group.id", _GROUP),
    "signal.kafka.bootstrap.servers": _unless("signal.consumer.bootstrap.servers", _SERVERS),
    "signal.kafka.poll.timeout.ms": taken("`signals.kafka.poll_timeout_seconds`", _poll_timeout),
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
    "signal.data.collection": refused("Signals come by channel `file` or `airflow`, not in Cassandra's log"),
    _CHANNELS: taken("`signals.channels`, with `airflow` besides, which also stands for jmx", _channels),
    "signal.poll.interval.ms": seconds("signals.poll_interval_seconds"),
    "signal.file": option("signals.file"),
    **{name: _of_channel(rule) for name, rule in _OF_KAFKA.items()},
}

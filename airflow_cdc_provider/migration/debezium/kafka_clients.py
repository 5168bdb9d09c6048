"""Rules for pass-through settings of Kafka clients, such as ``producer.*`` to ``publish.kafka.producer``.

Settings with the same name in Java's clients and librdkafka are passed through; the few that differ are
translated. Broker addresses and credentials belong in the Airflow connection; they are noted without their
value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from airflow_cdc_provider.kafka.allowed_settings import TUNING
from airflow_cdc_provider.kafka.settings import belongs_to_connection
from airflow_cdc_provider.migration.rules import (
    Draft,
    Rule,
    boolean,
    custom_rule,
    ignored,
    integer,
    unsupported_error,
)

_OURS: Final = (
    "enable.idempotence",
    "transactional.id",
    "isolation.level",
    "group.id",
    "client.id",
    "auto.offset.reset",
    "enable.auto.commit",
)
"""Settings that this package determines."""
_RENAMED: Final = {
    "max.request.size": "message.max.bytes",
    "metadata.max.age.ms": "topic.metadata.refresh.interval.ms",
}
_COMPUTED: Final = ("buffer.memory", "partitioner.ignore.keys", "partitioner.class")
_PARTITIONERS: Final = {
    "": "murmur2_random",
    "DefaultPartitioner": "murmur2_random",
    "UniformStickyPartitioner": "random",
    "RoundRobinPartitioner": "random",
}
"""librdkafka's partitioners by Kafka's: by key, or without regard to it."""

OF_CONNECTION: Final = ignored("it belongs in the extra of the Kafka connection, publish.kafka.connection")


def client_rules(
    path: str, prefix: str, *, connection: str = "publish.kafka.connection", known: Sequence[str] = ()
) -> dict[str, Rule]:
    """Return the rules of one client's pass-through settings.

    Args:
        path: Option that receives the settings.
        prefix: Prefix of the properties; Kafka Connect's ``override.`` may follow.
        connection: Option with the client's Airflow connection.
        known: Additional settings to pass through that other clients ignore.

    Returns:
        Rules by property.
    """
    of_connection = ("bootstrap.servers", "security.*", "sasl.*", "ssl.*")
    reason = ignored(f"it belongs in the extra of the Kafka connection, {connection}")
    return {
        **{f"{prefix}{name}": reason for name in of_connection},
        f"{prefix}*": _passed_through(path, prefix, known),
    }


def _passed_through(path: str, prefix: str, known: Sequence[str]) -> Rule:
    def apply(draft: Draft, name: str, value: str) -> None:
        short = name.removeprefix(prefix).removeprefix("override.")
        if belongs_to_connection(short):
            draft.notes.append(f"property {name} is ignored: it belongs in the extra of the Kafka connection")
        elif short not in known and (short in _OURS or short not in {*TUNING, *_RENAMED, *_COMPUTED}):
            draft.notes.append(
                f"property {name} is ignored: librdkafka has no such setting, delivery determines it, or "
                "it is not allowed"
            )
        else:
            own = _translated(name, short, value.strip())
            before = draft.get(path)
            draft.set(path, {**before, **own} if isinstance(before, dict) else own)

    return custom_rule(
        f"`{path}`, passed through; addresses and credentials belong in the Kafka connection, settings that "
        "librdkafka lacks or that are not allowed are ignored",
        apply,
    )


def _translated(name: str, short: str, value: str) -> dict[str, str | int]:
    if short == "buffer.memory":
        return {"queue.buffering.max.kbytes": max(1, integer(name, value) // 1024)}
    if short == "partitioner.ignore.keys":
        return {"partitioner": "random"} if boolean(name, value) else {}
    if short == "partitioner.class":
        java = value.removeprefix("org.apache.kafka.clients.producer.").removeprefix("internals.")
        if java not in _PARTITIONERS:
            reason = "It is a Java class: use a transform of type partition, or a partitioner of librdkafka"
            raise unsupported_error(name, value, reason)
        return {"partitioner": _PARTITIONERS[java]}
    return {_RENAMED.get(short, short): value}

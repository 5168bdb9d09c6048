"""Settings of Kafka's clients among Debezium's properties: to ``publish.kafka.producer`` and its like.

Names that Java's clients and librdkafka share go on as they are; of the few that differ each is translated.
What says where the broker is, or how to log in, belongs into the Airflow connection and is told, without its
value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from airflow_cdc_provider.connector.imported import Draft, Rule, left_out, taken, wrong
from airflow_cdc_provider.kafka.settings import belongs_to_connection

_JAVA_ALONE: Final = (
    "key.serializer",
    "value.serializer",
    "key.deserializer",
    "value.deserializer",
    "max.block.ms",
    "receive.buffer.bytes",
    "send.buffer.bytes",
    "interceptor.classes",
    "metric.reporters",
    "partitioner.class",
    "auto.offset.reset",
    "enable.auto.commit",
    "max.poll.records",
)
"""What librdkafka has no counterpart for, or what this package decides itself."""
_OURS: Final = ("enable.idempotence", "transactional.id", "isolation.level", "group.id", "client.id")
_RENAMED: Final = {
    "max.request.size": "message.max.bytes",
    "metadata.max.age.ms": "topic.metadata.refresh.interval.ms",
}

OF_CONNECTION: Final = left_out("it belongs into the extra of the Kafka connection, publish.kafka.connection")


def client_rules(
    place: str, prefix: str, *, connection: str = "publish.kafka.connection", known: Sequence[str] = ()
) -> dict[str, Rule]:
    """Return the rules of one client's pass-through settings.

    Args:
        place: The option that they go to.
        prefix: What leads their names; ``override.`` may follow it, as Kafka Connect has it.
        connection: The option that names the client's connection.
        known: Settings that go there, too, of those that other clients leave out.
    """
    of_connection = ("bootstrap.servers", "security.*", "sasl.*", "ssl.*")
    reason = left_out(f"it belongs into the extra of the Kafka connection, {connection}")
    return {
        **{f"{prefix}{name}": reason for name in of_connection},
        f"{prefix}*": _passed_through(place, prefix, known),
    }


def _passed_through(place: str, prefix: str, known: Sequence[str]) -> Rule:
    def apply(draft: Draft, name: str, value: str) -> None:
        short = name.removeprefix(prefix).removeprefix("override.")
        if belongs_to_connection(short):
            draft.notes.append(
                f"property {name} is left out: it belongs into the extra of the Kafka connection"
            )
        elif short not in known and short in (*_JAVA_ALONE, *_OURS):
            draft.notes.append(f"property {name} is left out: librdkafka has none, or delivery decides it")
        else:
            own = _translated(name, short, value.strip())
            before = draft.get(place)
            draft.set(place, {**before, **own} if isinstance(before, dict) else own)

    return taken(
        f"`{place}`, as it is; what says where the broker is or how to log in belongs into the "
        "Kafka connection, and a few names that only Java's clients have are left out",
        apply,
    )


def _translated(name: str, short: str, value: str) -> dict[str, str | int]:
    if short == "buffer.memory":
        if not value.isdigit():
            raise wrong(name, "a number of bytes", value)
        return {"queue.buffering.max.kbytes": max(1, int(value) // 1024)}
    return {_RENAMED.get(short, short): value}

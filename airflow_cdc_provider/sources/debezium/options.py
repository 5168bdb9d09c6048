"""Options of a source of Debezium's topics. Has no heavy imports: DAG files import it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_cdc_provider.connector.publish.registry import invalid_registry_urls
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.kafka.settings import wrong_tuning
from airflow_cdc_provider.options import option
from airflow_cdc_provider.patterns import wrong_patterns
from airflow_cdc_provider.sources.plugin import SourceOptions

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector

ConverterName = Literal["json", "string", "avro", "protobuf", "json_schema"]
FRAMED: Final = ("avro", "protobuf", "json_schema")
"""Converters with schemas in a registry."""

SOURCE_REGISTRY: Final = "source_registry"
"""Key of the registry's connection values among a connection's values."""

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


def _patterns(values: tuple[str, ...]) -> str:
    if not values:
        return "at least one topic"
    return wrong_patterns(values)


def _start(value: str) -> str:
    if value in (EARLIEST, LATEST):
        return ""
    try:
        timestamp = datetime.fromisoformat(value)
    except ValueError:
        timestamp = None
    if timestamp is None or timestamp.tzinfo is None:
        return "earliest, latest, or a timestamp with a time zone, such as 2026-11-23T12:00:00Z"
    return ""


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


@dataclass(frozen=True)
class RegistryAddress:
    """The address of a schema registry with Confluent's REST API."""

    connection: str = option("Airflow connection of type http with the registry's address, login and TLS", "")
    url: str = option(
        "The registry's URL, or several, separated by commas; default: that of its connection. Credentials "
        "belong in the connection",
        "",
        check=invalid_registry_urls,
    )

    @property
    def enabled(self) -> bool:
        """Whether an address is configured."""
        return bool(self.url or self.connection)


@dataclass(frozen=True)
class DebeziumAdvanced:
    """Options that few users need."""

    strict: bool = option("Fail on the first undecodable event instead of quarantining it", False)
    slice_messages: int = option(
        "Minimum number of offsets per task when a partition is split for several tasks", 50_000, minimum=1
    )
    max_inferred_columns: int = option(
        "Maximum number of inferred columns of a table without a schema; other values are stored in _rest",
        500,
        minimum=0,
    )
    max_message_bytes: int = option(
        "Largest message, key and value together; larger ones are quarantined without them",
        64 << 20,
        minimum=1 << 10,
        check=lambda value: "" if value <= 1 << 30 else "at most 1 GiB",
    )
    unavailable_value: str = option(
        "Debezium's unavailable.value.placeholder: the placeholder of an unavailable value",
        "__debezium_unavailable_value",
    )
    retry_timeout_seconds: float = option(
        "How long to retry brokers or a registry that don't answer before a run fails with a transient error",
        60.0,
        minimum=1,
    )
    schema_lookup_timeout_seconds: float = option(
        "How long to retry a schema id that the registry doesn't have before its messages are quarantined. "
        "Each later run retries once, and reads the messages if the registry has the schema",
        6.0,
        minimum=0,
    )
    consumer: Mapping[str, Any] = option(
        "librdkafka's tuning settings of consumers: fetch.message.max.bytes, "
        "queued.max.messages.kbytes ... Secrets are not allowed",
        {},
        check=wrong_tuning,
    )


@dataclass(frozen=True)
class DebeziumOptions(SourceOptions):
    """The topics with Debezium's events, and their format."""

    topics: tuple[str, ...] = option(
        "Topics: one or a list of anchored regular expressions", check=_patterns, read=_as_list
    )
    conn_id: str = option(
        "Airflow connection of type kafka, with librdkafka settings in its extra: bootstrap.servers, "
        "login, TLS",
        "",
    )
    envelope: Literal["debezium", "unwrapped"] = option(
        "debezium: events with before, after, op and source; unwrapped: rows without "
        "envelopes, as written by ExtractNewRecordState",
        "debezium",
    )
    key_converter: ConverterName = option(
        "Format of keys: json, with or without schemas; string: text; avro, protobuf, json_schema: "
        "Confluent's converters, with schemas in a registry",
        "json",
    )
    value_converter: Literal["json", "avro", "protobuf", "json_schema"] = option(
        "Format of values, as for keys", "json"
    )
    registry: RegistryAddress = option(
        "The schema registry of avro, protobuf and json_schema", RegistryAddress
    )
    tables_from: Literal["topic", "source"] = option(
        "Where a table's name comes from. topic: the topic without its first part (prefix.shop.orders: "
        "shop.orders); source: the event's source block, for topics with several tables, whose tombstones "
        "have none",
        "topic",
    )
    start: str = option(
        "Where a new connector starts: earliest, latest, or a timestamp with a time zone. Topics that are "
        "added later are read from their start",
        EARLIEST,
        check=_start,
    )
    isolation: Literal["read_committed", "read_uncommitted"] = option(
        "Kafka's isolation.level: whether messages of uncommitted and aborted transactions are read",
        "read_committed",
    )
    on_partitions_added: Literal["fail", "follow"] = option(
        "What to do if partitions are added to a topic, which moves keys to other partitions. fail: the "
        "run fails and reads nothing of that topic; follow: later messages are newer than all earlier ones",
        "fail",
    )
    batch_messages: int = option(
        "Approximate maximum number of messages per batch; 0: the job's limit", 0, minimum=0
    )
    advanced: DebeziumAdvanced = option("Options that few users need", DebeziumAdvanced)

    @property
    def strict(self) -> bool:
        """Whether a record that can't be decoded fails the job instead of being quarantined."""
        return self.advanced.strict

    def __post_init__(self) -> None:
        """Reject invalid combinations of options.

        Raises:
            ConfigurationError: The combination is invalid.
        """
        if self.envelope == "unwrapped" and self.tables_from == "source":
            raise ConfigurationError(
                "option source.tables_from: source is not supported with source.envelope: unwrapped",
                expected="tables_from: topic, because unwrapped rows have no source block",
            )
        framed = {self.key_converter, self.value_converter} & set(FRAMED)
        if bool(framed) != self.registry.enabled:
            raise ConfigurationError(
                "converters with schemas in a registry require one, and other converters don't support one",
                expected="source.registry.connection or source.registry.url, with avro, protobuf "
                "or json_schema as source.key_converter or source.value_converter",
                found=f"{self.key_converter} and {self.value_converter}, "
                + ("a registry" if self.registry.enabled else "no registry"),
            )

    def validate(self, connector: Connector) -> None:
        """Reject snapshots and publishing: the topics have Debezium's snapshots, and the events."""
        mode, lost = connector.snapshot.mode, connector.snapshot.on_lost_position
        if mode not in ("initial", "never") or lost == "snapshot":
            raise ConfigurationError(
                "source debezium doesn't support snapshots: Debezium's snapshots are in the topics",
                expected="snapshot.mode: initial or never, and on_lost_position other than snapshot",
                found=f"mode {mode}, on_lost_position {lost}",
            )
        if connector.publish != type(connector.publish)():
            raise ConfigurationError(
                "source debezium doesn't support publishing: its events are already in topics",
                expected="no publish",
            )

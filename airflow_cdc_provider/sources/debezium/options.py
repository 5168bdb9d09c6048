"""Options of a source of Debezium's topics. Light: read by DAG files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.kafka.settings import wrong_tuning
from airflow_cdc_provider.options import option

ConverterName = Literal["json", "string", "avro", "protobuf", "json_schema"]
FRAMED: Final = ("avro", "protobuf", "json_schema")
"""Converters that keep schemas in a registry."""

SOURCE_REGISTRY: Final = "source_registry"
"""Where, among a connection's values, those of the registry's connection stand."""

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


def _patterns(values: tuple[str, ...]) -> str:
    if not values:
        return "a topic at least"
    for value in values:
        try:
            re.compile(value)
        except re.error as error:
            return f"regular expressions ({value!r}: {error})"
    return ""


def _start(value: str) -> str:
    if value in (EARLIEST, LATEST):
        return ""
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        return "earliest, latest, or a moment with its zone, such as 2026-11-23T12:00:00Z"
    return ""


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _url(value: str) -> str:
    parts = urlsplit(value)
    good = parts.scheme in ("http", "https") and parts.hostname and not parts.username and not parts.password
    return "" if not value or good else "http://host:port or https://..., without a login"


@dataclass(frozen=True)
class RegistryAddress:
    """Where a schema registry is that speaks Confluent's REST interface."""

    connection: str = option("Airflow connection of type http with the registry's address, login and TLS", "")
    url: str = option(
        "The registry's address; default: that of its connection. Logins belong to the connection",
        "",
        check=_url,
    )

    @property
    def enabled(self) -> bool:
        """Whether it is said where the registry is."""
        return bool(self.url or self.connection)


@dataclass(frozen=True)
class DebeziumAdvanced:
    """Options that few users need."""

    strict: bool = option("Fail on the first event that can't be decoded instead of setting it apart", False)
    slice_messages: int = option(
        "Offsets that one task reads at least before a partition is cut for several tasks", 50_000, minimum=1
    )
    most_inferred_columns: int = option(
        "The most columns of a table whose rows come without a schema; what finds no column stands in _rest",
        500,
        minimum=0,
    )
    unavailable_value: str = option(
        "Debezium's unavailable.value.placeholder: what stands for a value that it doesn't have",
        "__debezium_unavailable_value",
    )
    retry_seconds: float = option(
        "How long brokers, or a registry, that don't answer are waited for before a run fails, to be run "
        "again",
        60.0,
        minimum=1,
    )
    schema_seconds: float = option(
        "How long a schema's id that the registry doesn't have is asked for again before its messages are "
        "set apart. Each later run asks once more, and reads them where the registry has it by then",
        6.0,
        minimum=0,
    )
    consumer: Mapping[str, Any] = option(
        "Settings of librdkafka for consumers, passed on as they are: fetch.message.max.bytes, "
        "queued.max.messages.kbytes ... None that carries a secret",
        {},
        check=wrong_tuning,
    )


@dataclass(frozen=True)
class DebeziumOptions:
    """Where Debezium's events are read from, and how they are written."""

    topics: tuple[str, ...] = option(
        "Topics: one, or a list; anchored regular expressions", check=_patterns, read=_as_list
    )
    conn_id: str = option(
        "Airflow connection of type kafka, whose extra has librdkafka's settings: bootstrap.servers, login, "
        "TLS",
        "",
    )
    envelope: Literal["debezium", "unwrapped"] = option(
        "debezium: events with before, after, op and source; unwrapped: rows alone, as ExtractNewRecordState "
        "leaves them",
        "debezium",
    )
    key_converter: ConverterName = option(
        "How keys are written: json, with schemas or without; string: text; avro, protobuf, "
        "json_schema: as Confluent's converters do, with schemas in a registry",
        "json",
    )
    value_converter: Literal["json", "avro", "protobuf", "json_schema"] = option(
        "How values are written, likewise", "json"
    )
    registry: RegistryAddress = option("Where schemas of avro, protobuf and json_schema are", RegistryAddress)
    tables_from: Literal["topic", "source"] = option(
        "What names a table. topic: the topic without its first part (prefix.shop.orders: shop.orders); "
        "source: the event's source block, for topics that hold several tables; tombstones name none there",
        "topic",
    )
    start: str = option(
        "Where a new connector begins: earliest, latest, or a moment with its zone. Topics that come later "
        "are read from their begin",
        EARLIEST,
        check=_start,
    )
    isolation: Literal["read_committed", "read_uncommitted"] = option(
        "Whether messages of transactions count before these are committed, and of aborted ones at all",
        "read_committed",
    )
    partitions_added: Literal["fail", "follow"] = option(
        "What happens when a topic gets more partitions, which moves keys to others. fail: the run says so, "
        "nothing is read; follow: what comes after is newer than all that was there before",
        "fail",
    )
    batch_messages: int = option("Messages of one batch at the most, about; 0: as the job says", 0, minimum=0)
    advanced: DebeziumAdvanced = option("Options that few users need", DebeziumAdvanced)

    def __post_init__(self) -> None:
        """Refuse what goes together with nothing.

        Raises:
            ConfigurationError: With what is expected.
        """
        if self.envelope == "unwrapped" and self.tables_from == "source":
            raise ConfigurationError(
                "option source.tables_from: source doesn't go with source.envelope: unwrapped",
                expected="tables_from: topic, for rows alone have no source block",
            )
        framed = {self.key_converter, self.value_converter} & set(FRAMED)
        if bool(framed) != self.registry.enabled:
            raise ConfigurationError(
                "converters that keep schemas in a registry need one, and others know none",
                expected="source.registry.connection or source.registry.url, with avro, protobuf "
                "or json_schema as source.key_converter or source.value_converter",
                found=f"{self.key_converter} and {self.value_converter}, "
                + ("a registry" if self.registry.enabled else "no registry"),
            )

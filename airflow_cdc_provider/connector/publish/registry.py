"""Options of the schema registry for published keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.options import option

_STRATEGIES = (
    "topic: <topic>-{side}; record: full name of the record; topic_record: both (Confluent's "
    "subject.name.strategy)"
)


def invalid_registry_urls(value: str) -> str:
    """Return what is expected if the addresses of a registry are invalid, else an empty string."""
    for parts in map(urlsplit, map(str.strip, value.split(",") if value else ())):
        good = parts.scheme in ("http", "https") and parts.hostname
        if not good or parts.username or parts.password:
            return "http://host:port or https://..., without credentials; several are separated by commas"
    return ""


@dataclass(frozen=True)
class RegistryOptions:
    """Schema registry for Avro, Protobuf and JSON Schema."""

    url: str = option(
        "Address of the registry, or several, separated by commas, of which one must answer; default: that "
        "of the connection. Credentials belong in the connection",
        "",
        check=invalid_registry_urls,
    )
    connection: str = option(
        "Airflow connection of type http with the registry's address, credentials and TLS", ""
    )
    key_subjects: Literal["topic", "record", "topic_record"] = option(
        "Subject name strategy of keys. " + _STRATEGIES.format(side="key"), "topic"
    )
    value_subjects: Literal["topic", "record", "topic_record"] = option(
        "Subject name strategy of values. " + _STRATEGIES.format(side="value"), "topic"
    )
    auto_register: bool = option(
        "Register missing schemas; false: only look up schemas, a missing one fails the run",
        True,
    )
    normalize: bool = option("Let the registry normalize schemas", False)

    @property
    def enabled(self) -> bool:
        """Whether a registry is configured."""
        return bool(self.url or self.connection)


def validate_registry_options(key: str, value: str, registry: RegistryOptions) -> None:
    """Reject registry options without effect.

    Args:
        key: Converter of keys.
        value: Converter of values.
        registry: The options.

    Raises:
        ConfigurationError: Neither converter uses a registry; or options are set without an address.
    """
    if registry.enabled and not {key, value} & {"avro", "protobuf", "json_schema"}:
        raise ConfigurationError(
            "publish.registry has no effect: neither converter uses a registry",
            expected="avro, protobuf or json_schema as publish.key or publish.value",
            found=f"{key} and {value}",
        )
    if not registry.enabled and registry != RegistryOptions():
        raise ConfigurationError(
            "publish.registry has options but no address",
            expected="publish.registry.connection or publish.registry.url",
        )

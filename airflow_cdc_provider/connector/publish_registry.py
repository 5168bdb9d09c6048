"""Options of the schema registry, in which keys and values that are published have their schemas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.options import option

_STRATEGIES = (
    "topic: <topic>-{side}; record: the record's full name; topic_record: both (Confluent's "
    "subject.name.strategy)"
)


def _url(value: str) -> str:
    parts = urlsplit(value)
    good = parts.scheme in ("http", "https") and parts.hostname and not parts.username and not parts.password
    return "" if not value or good else "http://host:port or https://..., without a login"


@dataclass(frozen=True)
class RegistryOptions:
    """Where schemas of Avro, Protobuf and JSON Schema are registered."""

    url: str = option(
        "The registry's address; default: that of its connection. Logins belong to the connection",
        "",
        check=_url,
    )
    connection: str = option("Airflow connection of type http with the registry's address, login and TLS", "")
    key_subjects: Literal["topic", "record", "topic_record"] = option(
        "What subjects of keys are named by. " + _STRATEGIES.format(side="key"), "topic"
    )
    value_subjects: Literal["topic", "record", "topic_record"] = option(
        "What subjects of values are named by. " + _STRATEGIES.format(side="value"), "topic"
    )
    auto_register: bool = option(
        "Register schemas that the registry doesn't have; otherwise they are only looked up, and a missing "
        "one fails the run",
        True,
    )
    normalize: bool = option("Let the registry bring schemas into its normal form first", False)

    @property
    def enabled(self) -> bool:
        """Whether a registry takes part."""
        return bool(self.url or self.connection)


def refuse_clashing_registry(key: str, value: str, registry: RegistryOptions) -> None:
    """Refuse a registry that nothing would be registered in.

    Args:
        key: Converter of keys.
        value: Converter of values.
        registry: The choices.

    Raises:
        ConfigurationError: Neither is written by a schema; or choices are made and there is no registry.
    """
    if registry.enabled and not {key, value} & {"avro", "protobuf", "json_schema"}:
        raise ConfigurationError(
            "publish.registry says nothing of what is written without a registry",
            expected="avro, protobuf or json_schema as publish.key or publish.value",
            found=f"{key} and {value}",
        )
    if not registry.enabled and registry != RegistryOptions():
        raise ConfigurationError(
            "publish.registry has choices but no address",
            expected="publish.registry.connection or publish.registry.url",
        )

"""Files with another connector's configuration: Java properties, or Kafka Connect's JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.datastax import from_datastax, is_datastax
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.migration.rules import Imported
from airflow_cdc_provider.properties_file import parse_properties


def load_connector_file(path: str | Path) -> Imported:
    """Load a file of Debezium or DataStax as a connector declaration.

    Raises:
        ConfigurationError: The file is missing, or a property is unknown, invalid or unsupported.
    """
    file = Path(path)
    try:
        raw = file.read_bytes()
    except FileNotFoundError as error:
        raise ConfigurationError(f"connector file {file} does not exist") from error
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = raw.decode("latin-1")  # what java.util.Properties reads
    properties = read_settings(text)
    return from_datastax(properties) if is_datastax(properties) else from_debezium(properties)


def read_settings(text: str) -> dict[str, str]:
    """Read a connector's configuration: a properties file, or JSON of Kafka Connect's REST API.

    Args:
        text: ``name=value`` lines; or a JSON object of properties, optionally nested in ``config`` next to
            the connector's ``name``.

    Returns:
        Property values by name.

    Raises:
        ConfigurationError: The text starts like a JSON object but is not a connector configuration.
    """
    if not text.lstrip("\ufeff \t\r\n").startswith("{"):
        return parse_properties(text)
    try:
        document: Any = json.loads(text.lstrip("\ufeff"))
    except ValueError as error:
        raise ConfigurationError("the connector configuration is not valid JSON", found=str(error)) from None
    config = document.get("config", document)
    if not isinstance(config, dict) or any(isinstance(value, (dict, list)) for value in config.values()):
        raise ConfigurationError(
            "invalid connector configuration",
            expected='{"name": "...", "config": {...}}, of one connector, or the properties alone',
            found=f"members {', '.join(map(repr, document))}"[:200],
        )
    named = (
        {"name": document["name"]} if config is not document and isinstance(document.get("name"), str) else {}
    )
    return {name: _as_text(value) for name, value in {**named, **config}.items() if value is not None}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

"""Validation of custom converters. Imports little: read when DAG files are parsed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_cdc_provider.custom_classes import IMPORT_PATH, invalid_import_path
from airflow_cdc_provider.exceptions import ConfigurationError


def invalid_converters(values: Mapping[str, Mapping[str, Any]]) -> str:
    """Check the type and the columns of converters; their other settings, which may be secret, aren't shown.

    Raises:
        ConfigurationError: Names the converter.
    """
    for name, settings in values.items():
        pattern, path = str(settings.get("columns", "")), str(settings.get("type", ""))
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigurationError(
                f"the columns of converter {name} are not a valid expression: {error}"
            ) from error
        if not pattern:
            raise ConfigurationError(
                f"converter {name} has no columns", expected="an expression that matches keyspace.table.column"
            )
        if not path or invalid_import_path(path):
            raise ConfigurationError(
                f"invalid type of converter {name}", expected=IMPORT_PATH, found=repr(path)
            )
    return ""

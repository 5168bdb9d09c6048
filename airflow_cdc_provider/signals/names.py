"""Names of channels in a declaration. Has no dependencies: DAG files import it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SOURCE: Final = "source"
FILE: Final = "file"
AIRFLOW: Final = "airflow"
KAFKA: Final = "kafka"
OWN: Final = (SOURCE, KAFKA, FILE, AIRFLOW)
"""Channels of this package."""


def check_names(names: Sequence[str]) -> str:
    """Return the expected names, if one of the names isn't a channel; else an empty text."""
    for name in names:
        if name == "jmx":
            return "airflow instead of jmx: there is no JMX channel"
        module, _, attribute = name.partition(":")
        if name not in OWN and not (module.replace(".", "").isidentifier() and attribute.isidentifier()):
            return f"some of {', '.join(OWN)}, or a custom package.module:Class ({name!r})"
    return ""

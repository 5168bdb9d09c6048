"""Names of channels, as a declaration has them. Light: read by DAG files."""

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
    """Return what is expected, if one of the names is no channel; else an empty text."""
    for name in names:
        if name == "jmx":
            return "airflow in place of jmx: no process of ours listens to JMX"
        module, _, attribute = name.partition(":")
        if name not in OWN and not (module.replace(".", "").isidentifier() and attribute.isidentifier()):
            return f"some of {', '.join(OWN)}, or package.module:Class of your own ({name!r})"
    return ""

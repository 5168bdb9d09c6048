"""Airflow's metrics, with tags that are safe to send: names of tables and servers are others' words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from airflow.providers.common.compat.sdk import Stats as AirflowStats

_SYNTAX: Final = re.compile(r"[\s,=|#]")
"""Characters with a meaning in StatsD's lines, in InfluxDB's or in Datadog's form."""
_LONGEST: Final = 200


class Stats:
    """Airflow's ``Stats``, whose tags have ``_`` in place of characters that end a tag or a line."""

    @staticmethod
    def incr(stat: str, count: int = 1, *, tags: Mapping[str, str] | None = None) -> None:
        """Add to a counter."""
        AirflowStats.incr(stat, count, tags=_safe(tags))

    @staticmethod
    def gauge(stat: str, value: float, *, tags: Mapping[str, str] | None = None) -> None:
        """Set a gauge."""
        AirflowStats.gauge(stat, value, tags=_safe(tags))

    @staticmethod
    def timing(stat: str, dt: timedelta | float, *, tags: Mapping[str, str] | None = None) -> None:
        """Send a duration."""
        AirflowStats.timing(stat, dt, tags=_safe(tags))


def _safe(tags: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: safe_tag(str(value)) for name, value in (tags or {}).items()}


def safe_tag(value: str) -> str:
    """Return a tag's value without characters that end it; at most 200 characters."""
    plain = "".join(one if one.isprintable() else "_" for one in value[:_LONGEST])
    return _SYNTAX.sub("_", plain)

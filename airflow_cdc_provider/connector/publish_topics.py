"""Options of topics: whether they are made, and with what."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_cdc_provider.options import option


def _patterns(values: tuple[str, ...]) -> str:
    for value in values:
        try:
            re.compile(value)
        except re.error as error:
            return f"regular expressions ({value!r}: {error})"
    return ""


def _some_patterns(values: tuple[str, ...]) -> str:
    return _patterns(values) if values else "at least one regular expression"


def _count(value: int | None) -> str:
    return "" if value is None or value == -1 or value > 0 else "a number from 1, or -1"


def _settings(values: Mapping[str, Any]) -> str:
    for name, value in values.items():
        if not isinstance(value, (str, int, float, bool)):
            return f"a text, number or flag for {name}"
        if name in ("partitions", "replication", "replication.factor"):
            return f"settings of topics; {name.partition('.')[0]} is an option beside settings"
    return ""


@dataclass(frozen=True)
class TopicGroup:
    """Topics that are made otherwise than the rest."""

    include: tuple[str, ...] = option("Regular expressions of whole names of topics", check=_some_patterns)
    exclude: tuple[str, ...] = option("Likewise, of names that don't belong to it", (), check=_patterns)
    name: str = option("What messages call it; default: its number", "")
    partitions: int | None = option(
        "How many they are made with; -1: as the brokers have it. Default: as of all others",
        None,
        check=_count,
    )
    replication: int | None = option("Copies of each partition, likewise", None, check=_count)
    settings: Mapping[str, Any] = option(
        "Settings of these topics, such as cleanup.policy; those of all others aren't theirs too",
        {},
        check=_settings,
    )


@dataclass(frozen=True)
class TopicsOptions:
    """Topics that are made before their first record, where they are missing."""

    create: bool = option(
        "Make topics that are missing; false: brokers or people do. Topics that are there are never changed",
        True,
    )
    partitions: int = option(
        "How many partitions topics are made with; -1: as the brokers have it. Topics of heartbeats, "
        "transactions and schema changes get one",
        -1,
        check=_count,
    )
    replication: int = option(
        "Copies of each partition; -1: as the brokers have it. The topic of positions has as many, unless "
        "publish.kafka.positions_replication says otherwise",
        -1,
        check=_count,
    )
    settings: Mapping[str, Any] = option(
        "Settings of topics, such as cleanup.policy or retention.ms", {}, check=_settings
    )
    groups: tuple[TopicGroup, ...] = option(
        "Topics that are made otherwise: the first group that a name belongs to decides", ()
    )

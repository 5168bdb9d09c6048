"""Options of topic creation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_cdc_provider.options import option
from airflow_cdc_provider.patterns import wrong_patterns


def _patterns(values: tuple[str, ...]) -> str:
    return wrong_patterns(values)


def _some_patterns(values: tuple[str, ...]) -> str:
    return _patterns(values) if values else "at least one regular expression"


def _count(value: int | None) -> str:
    return "" if value is None or value == -1 or value > 0 else "a positive integer, or -1"


def _settings(values: Mapping[str, Any]) -> str:
    for name, value in values.items():
        if not isinstance(value, (str, int, float, bool)):
            return f"a string, number or boolean for {name}"
        if name in ("partitions", "replication", "replication.factor"):
            return f"topic settings; {name.partition('.')[0]} is a separate option"
    return ""


@dataclass(frozen=True)
class TopicGroup:
    """Topics with different creation options."""

    include: tuple[str, ...] = option("Anchored regular expressions of topics", check=_some_patterns)
    exclude: tuple[str, ...] = option(
        "Anchored regular expressions of topics to exclude", (), check=_patterns
    )
    name: str = option("Name of the group in messages; default: its index", "")
    partitions: int | None = option(
        "Number of partitions; -1: broker default. Default: publish.topics.partitions",
        None,
        check=_count,
    )
    replication: int | None = option(
        "Replication factor; -1: broker default. Default: publish.topics.replication", None, check=_count
    )
    settings: Mapping[str, Any] = option(
        "Topic settings, such as cleanup.policy; publish.topics.settings are not inherited",
        {},
        check=_settings,
    )


@dataclass(frozen=True)
class TopicsOptions:
    """Creation of missing topics before their first record."""

    create: bool = option(
        "Create missing topics; existing topics are never changed",
        True,
    )
    partitions: int = option(
        "Number of partitions; -1: broker default. Topics of heartbeats, transactions and schema changes "
        "have one",
        -1,
        check=_count,
    )
    replication: int = option(
        "Replication factor; -1: broker default. Also applies to the positions topic unless "
        "publish.kafka.positions_replication is set",
        -1,
        check=_count,
    )
    settings: Mapping[str, Any] = option(
        "Topic settings, such as cleanup.policy or retention.ms", {}, check=_settings
    )
    groups: tuple[TopicGroup, ...] = option(
        "Groups of topics with different options; the first matching group applies", ()
    )

"""Names of topics, as Debezium's ``DefaultTopicNamingStrategy`` makes them, by a pattern, or by a class."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.plugins import load_plugin

log = logging.getLogger(__name__)

_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9._-]")
_MAX_LENGTH = 249


def topic_name(*parts: str, delimiter: str = ".") -> str:
    """Join the parts and replace what Kafka doesn't allow.

    Args:
        parts: Prefix, database, collection (or keyspace, table).
        delimiter: What stands between them.

    Returns:
        The name: a ``_`` for each UTF-16 unit that is not allowed, cut at 249 characters, never ``.`` or
        ``..``.
    """
    name = _NOT_ALLOWED.sub(lambda match: "_" * (2 if ord(match[0]) > 0xFFFF else 1), delimiter.join(parts))
    name = name[:_MAX_LENGTH]
    return name.replace(".", "_") if name in (".", "..") else name


class TopicNamingStrategy(Protocol):
    """A class of one's own that names topics; it is made without arguments, once in a process."""

    def data_change_topic(self, prefix: str, database: str, table: str) -> str:
        """Return the topic of a table's or collection's events.

        Asked again for each batch, so it must answer the same every time. What Kafka doesn't allow in it is
        replaced by ``_``.

        Args:
            prefix: The connector's topic prefix.
            database: Database or keyspace.
            table: Collection or table.
        """
        ...


@cache
def load_strategy(place: str) -> TopicNamingStrategy:
    """Load a class that names topics.

    Args:
        place: ``package.module:Class``.

    Raises:
        ConfigurationError: It can't be loaded, or names no topics.
    """
    strategy: TopicNamingStrategy = load_plugin("publish.topic_naming", place)()
    if not callable(getattr(strategy, "data_change_topic", None)):
        raise ConfigurationError(
            "publish.topic_naming names no topics",
            expected="a class with the method data_change_topic(prefix, database, table)",
            found=place,
        )
    return strategy


@dataclass(frozen=True)
class TopicNaming:
    """How the topics of a connector are named.

    Args:
        prefix: The connector's topic prefix.
        delimiter: What stands between the parts.
        pattern: Instead of prefix, database and table in a row: text with ``{prefix}``, ``{database}`` and
            ``{table}``; empty for none.
        strategy: Names them instead.
    """

    prefix: str
    delimiter: str = "."
    pattern: str = ""
    strategy: TopicNamingStrategy | None = None

    def topic(self, database: str, table: str) -> str:
        """Return the topic of a table or collection.

        Raises:
            ConfigurationError: The strategy gave none.
        """
        if self.strategy is not None:
            chosen = self.strategy.data_change_topic(self.prefix, database, table)
            if not isinstance(chosen, str) or not chosen:
                raise ConfigurationError(
                    f"publish.topic_naming gives {database}.{table} no topic",
                    expected="a name",
                    found=repr(chosen),
                )
            return topic_name(chosen)
        if self.pattern:
            parts = {"prefix": self.prefix, "database": database, "table": table}
            return topic_name(re.sub(r"\{(\w+)\}", lambda match: parts[match[1]], self.pattern))
        topic = topic_name(self.prefix, database, table, delimiter=self.delimiter)
        if topic != self.delimiter.join((self.prefix, database, table)):
            _tell(topic, f"{database}.{table}")
        return topic


@cache
def _tell(topic: str, table: str) -> None:
    """Say once that a topic is not named as its table is: two tables might share it."""
    log.warning("topic %s is of %s, whose name no topic can have", topic, table)
